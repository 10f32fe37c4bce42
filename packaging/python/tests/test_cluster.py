"""Programs on a node of a cluster of three, which `tests/python.rs` starts. Needs NODECTL,
NODECTL_NODE__DATA_DIR, SURVIVOR_SECRET and the cluster's settings."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import nodectl
from ludwigcluster.client import Client
from tests.test_solo import EXAMPLES, wait_until

NODES = 3


class Worker(nodectl.WorkerInterface):
    def __init__(self):
        self.seen = []

    def run(self, what, value=None):
        if what == "where":
            return os.environ["NODECTL_TASK_DIR"]
        if what == "seen":
            return list(self.seen)
        if what == "environment":
            return dict(os.environ)
        return value

    def handle_update(self, value):
        self.seen.append(value)


def command(*arguments):
    line = [os.environ["NODECTL"], "--data-dir", os.environ["NODECTL_NODE__DATA_DIR"], *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


class Cluster(unittest.TestCase):
    def test_workers_are_on_all_nodes(self):
        with nodectl.Pool(Worker) as pool:
            self.assertTrue(pool.wait_for_workers(NODES, 60))
            wait_until(lambda: pool.get_nodes_count() == NODES, "workers on every node")
            self.assertEqual(len(set(pool.starmap([("where",)] * 3000))), pool.get_workers_count())
            pool.update_workers("u")
            self.assertEqual(pool.starmap([("seen",)] * 300), [["u"]] * 300)
            data = os.urandom(5 << 20)
            self.assertEqual(pool.starmap([("echo", data)] * 12), [data] * 12)

    def test_secrets_do_not_reach_workers(self):
        with nodectl.Pool(Worker, env={"MINE": "yes"}) as pool:
            (environment,) = pool.starmap([("environment",)])
        self.assertEqual(environment["MINE"], "yes")
        self.assertNotIn("NODECTL_SECRET", environment)
        self.assertNotIn("NODECTL_WORKER_TOKEN", environment)

    def test_a_pool_is_a_job_and_cancelling_it_ends_the_pool(self):
        with nodectl.Pool(Worker, name="my-pool") as pool:
            pool.starmap([("echo", 1)])
            self.assertIn("my-pool", command("jobs"))
            command("cancel", pool.job)
            with self.assertRaises(nodectl.PoolError):
                while True:
                    pool.starmap([("echo", 1)])

    def test_a_machine_that_only_submits_joins_for_as_long_as_its_program_runs(self):
        with tempfile.TemporaryDirectory(prefix="nodectl-") as directory:
            program = os.path.join(directory, "program.py")
            with open(program, "w") as file:
                file.write(SUBMITTER)
            env = {**os.environ, "NODECTL_NODE__DATA_DIR": os.path.join(directory, "data"), "NODECTL_NODE__NAME": "guest"}
            ran = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertEqual(ran.stdout, "%d %d True\n" % (NODES, NODES))
        names = lambda: {node["name"] for node in json.loads(command("nodes", "--json")) if node["alive"]}
        wait_until(lambda: "guest" not in names(), "the guest has left")

    def test_the_programs_of_the_description_run_unchanged(self):
        for name, last in (("map.py", "[1.0, 10] {'parameter_3': 0.6} 0.99"), ("imap_unordered.py", "18 results, the best 0.99")):
            ran = subprocess.run([sys.executable, os.path.join(EXAMPLES, name)], capture_output=True, text=True)
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
            self.assertEqual(ran.stdout.splitlines()[-1], last)

    def test_ludwigcluster_submits_and_its_files_come_back(self):
        with tempfile.TemporaryDirectory() as directory:
            base = Path(directory)
            for name in ("src", "corpora"):
                (base / name).mkdir()
            (base / "src" / "model.py").write_text("def double(x):\n    return 2 * x\n")
            (base / "corpora" / "a.txt").write_text("words")
            run = base / "run.py"
            run.write_text(RUN)
            param2vals = [{"rate": 0.5, "layers": [1, 2]}, {"rate": 1.5, "layers": [3]}]
            client = Client("project", python=sys.executable)
            (base / "list.txt").write_text("one")
            job = client.submit([base / "src"], param2vals, [base / "corpora", base / "list.txt"], 2, run=run)
            into = base / "results"
            command("attach", job, "--into", str(into))
            if os.getuid() == 0:
                seen = [path.read_text() for path in into.glob("**/programs.csv")]
                self.assertEqual(seen, ["words True 1\n"] * 4, "other programs and libraries see the drive, too")
            self.assertEqual(list(into.glob("**/corpora/*")) + list(into.glob("**/list.txt")), [], "data are no results")
            tables = sorted(path.read_text() for path in into.glob("**/data1.csv"))
            self.assertEqual(tables, ["1.0 words [1, 2]"] * 2 + ["3.0 words [3]"] * 2)
            lines = [json.loads(line) for line in (into / "results.jsonl").read_text().splitlines()]
            self.assertEqual({line["params"]["rate"] for line in lines}, {0.5, 1.5})
            name = json.loads(command("nodes", "--json"))[0]["name"]
            paths = [base / "corpora", base / "list.txt"]
            job = client.submit([base / "src"], paths, param2vals, 2, True, name, run=run)
            tried = base / "tried"
            command("attach", job, "--into", str(tried))
            lines = [json.loads(line) for line in (tried / "results.jsonl").read_text().splitlines()]
            self.assertEqual([(line["params"]["rate"], line["node"]) for line in lines], [(0.5, name)])
            with self.assertRaises(ValueError):
                client.submit([], paths, param2vals, worker="' or true", run=run)


# No node has this address: the others are found as always.
SUBMITTER = """
import os
from nodectl import Pool, _node
class Worker:
    def run(self):
        pass
with Pool(Worker, None, os.environ["SURVIVOR_SECRET"], "127.0.0.2", 9) as pool:
    pool.wait_for_workers(3)
    nodes = _node.request(_node.socket_path(), "GET", "/v1/nodes")
    (guest,) = [node for node in nodes if node["this_node"]]
    print(pool.get_workers_count(), pool.get_nodes_count(), guest["draining"])
"""
RUN = """
from pathlib import Path
import pickle
import shutil
import os
import sqlite3
import subprocess
from model import double
import src.model

hostname = 'hebb'
p = Path('/media/research_data/project') / '{}_param2val_chunk.pkl'.format(hostname)
with p.open('rb') as f:
    param2val_chunk = pickle.load(f)
words = Path('/media/research_data/project/corpora/a.txt').read_text()
data_dir = Path('/var/sftp/ludwig/project')
for param2val in param2val_chunk:
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / 'data1.csv').write_text('{} {} {}'.format(double(param2val['rate']), words, param2val['layers']))
for data_path in data_dir.glob('data*.csv'):
    shutil.move(str(data_path), '/media/research_data/project/{}'.format(data_path.name))
if ' /var/sftp ' in open('/proc/self/mountinfo').read():
    os.chdir('/media/research_data/project')
    words = subprocess.run(['cat', 'corpora/a.txt', b'/media/research_data/project/list.txt'], stdout=subprocess.PIPE).stdout
    with sqlite3.connect('/var/sftp/results.db') as base:
        base.execute('create table t (x)')
        base.execute('insert into t values (1)')
    os.system('echo %s %s > programs.csv' % (words.decode()[:5], os.path.exists('/var/sftp/results.db')))
    for row in sqlite3.connect('/var/sftp/results.db').execute('select x from t'):
        text = open('programs.csv').read().strip()
        print(text, *row, file=open('programs.csv', 'w'))
"""


if __name__ == "__main__":
    unittest.main()
