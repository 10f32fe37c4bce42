"""Pools beside multiprocessing.Pool, in one run on one machine: each line has both sides and their ratio.

    NODECTL=target/release/nodectl PYTHONPATH=packaging/python python3 benches/python/pool.py [--trials 5] [--peers]

`--peers` adds Ray and Dask, installed by pip into a throw-away virtual environment; one that cannot be installed is passed over.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time

WORKERS, TASKS, PAYLOADS, PAYLOAD_BYTES = 2, 10_000, 500, 1_000_000


class Worker:
    def run(self, value=None):
        return value


def echo(value):
    return value


def nothing(_):
    return None


class Nothing:
    def run(self, _):
        return None


def timed(work, trials):
    """Seconds of each trial, after one that does not count."""
    work()
    seconds = []
    for _ in range(trials):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return seconds


def tell(what, unit, ours, theirs, bar, name="multiprocessing.Pool"):
    """Medians and best of both, and what the bar asks for."""
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(
        "%-22s nodectl %9.0f (best %.0f)   %s %9.0f (best %.0f) %s   ratio %.2f, bar %.2f: %s"
        % (what, statistics.median(ours), max(ours), name, statistics.median(theirs), max(theirs), unit, ratio, bar,
           "holds" if ratio >= bar else "MISSED"),
        flush=True,
    )


def tasks(pool, processes, trials):
    ours = timed(lambda: pool.map(range(TASKS)), trials)
    theirs = timed(lambda: processes.map(nothing, range(TASKS), chunksize=1), trials)
    tell("no-op tasks", "tasks/s", [TASKS / s for s in ours], [TASKS / s for s in theirs], 0.5)


def payloads(pool, processes, trials):
    data = [os.urandom(PAYLOAD_BYTES) for _ in range(8)]
    items = [data[i % 8] for i in range(PAYLOADS)]
    ours = timed(lambda: pool.map(items), trials)
    theirs = timed(lambda: processes.map(echo, items, chunksize=1), trials)
    rate = PAYLOADS * PAYLOAD_BYTES / 1e6
    tell("1 MB there and back", "MB/s", [rate / s for s in ours], [rate / s for s in theirs], 1.0)


START = """
import time
began = time.perf_counter()
from nodectl import Pool
class Worker:
    def run(self, value):
        return value
pool = Pool(Worker)
assert pool.map([1]) == [1]
print(time.perf_counter() - began, flush=True)
pool.close()
"""


def first_result(trials):
    seconds = []
    with tempfile.TemporaryDirectory(prefix="nodectl-") as compiled:
        # The package is compiled once, as where it is installed.
        known = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        for _ in range(trials + 1):
            with tempfile.TemporaryDirectory(prefix="nodectl-") as directory:
                env = {**known, "PYTHONPYCACHEPREFIX": compiled, "NODECTL_NODE__DATA_DIR": directory}
                program = os.path.join(directory, "program.py")
                with open(program, "w") as file:
                    file.write(START)
                ran = subprocess.run([sys.executable, program], env=env, stdout=subprocess.PIPE, check=True)
                seconds.append(float(ran.stdout))
    seconds = seconds[1:]
    print(
        "%-22s nodectl %.3f s (best %.3f)   bar 0.5 s: %s"
        % ("import to first result", statistics.median(seconds), min(seconds), "holds" if statistics.median(seconds) <= 0.5 else "MISSED"),
        flush=True,
    )


RAY = """
import json, time, ray
ray.init(num_cpus=2, logging_level="error", include_dashboard=False)
@ray.remote
def nothing(_): return None
ray.get([nothing.remote(i) for i in range(200)])
began = time.perf_counter()
ray.get([nothing.remote(i) for i in range(TASKS)])
print(json.dumps(TASKS / (time.perf_counter() - began)))
"""
DASK = """
import json, time
from dask.distributed import Client
if __name__ == "__main__":
    client = Client(n_workers=2, threads_per_worker=1, dashboard_address=None)
    client.gather(client.map(lambda _: None, range(200)))
    began = time.perf_counter()
    client.gather(client.map(lambda _: None, range(TASKS)))
    print(json.dumps(TASKS / (time.perf_counter() - began)))
"""


def peers(ours):
    for name, package, program in (("ray", "ray", RAY), ("dask.distributed", "distributed", DASK)):
        with tempfile.TemporaryDirectory(prefix="nodectl-peer-") as directory:
            python = os.path.join(directory, "venv/bin/python")
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            made = subprocess.run([sys.executable, "-m", "venv", os.path.join(directory, "venv")], **quiet)
            if made.returncode or subprocess.run([python, "-m", "pip", "install", "-q", package], **quiet).returncode:
                print("SKIPPED: %s cannot be installed here" % name)
                continue
            path = os.path.join(directory, "program.py")
            with open(path, "w") as file:
                file.write("TASKS = 2000\n" + program)
            ran = subprocess.run([python, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=directory)
            if ran.returncode:
                print("SKIPPED: %s does not run here" % name)
                continue
            tell("no-op tasks", "tasks/s", [ours], [json.loads(ran.stdout.splitlines()[-1])], {"ray": 5, "dask.distributed": 20}[name], name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--peers", action="store_true")
    given = parser.parse_args()
    import nodectl

    with tempfile.TemporaryDirectory(prefix="nodectl-") as directory:
        os.environ["NODECTL_NODE__DATA_DIR"] = directory
        with multiprocessing.Pool(WORKERS) as processes:
            with nodectl.Pool(Nothing, cpus=1, max_workers=WORKERS) as pool:
                assert pool.wait_for_workers(WORKERS, 30)
                tasks(pool, processes, given.trials)
                if given.peers:
                    peers(TASKS / min(timed(lambda: pool.map(range(TASKS)), given.trials)))
            with nodectl.Pool(Worker, cpus=1, max_workers=WORKERS) as pool:
                assert pool.wait_for_workers(WORKERS, 30)
                payloads(pool, processes, given.trials)
        first_result(given.trials)


if __name__ == "__main__":
    main()
