"""Programs on a machine without a node: they start one, and leave none behind. Needs the variable NODECTL."""

import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

EXAMPLES = os.path.join(os.path.dirname(__file__), "../examples")


def wait_until(holds, what, seconds=30):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError("not within %d s: %s" % (seconds, what))
        time.sleep(0.02)


def is_alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Base(unittest.TestCase):
    def setUp(self):
        # So long for each, not for all.
        faulthandler.dump_traceback_later(300, exit=True)
        self.directory = tempfile.mkdtemp(prefix="nodectl-")
        self.addCleanup(shutil.rmtree, self.directory, True)
        self.env = {**os.environ, "NODECTL_NODE__DATA_DIR": os.path.join(self.directory, "data"), "NO_COLOR": "1"}
        self.env.update(NODECTL_NETWORK__MDNS="false", NODECTL_NETWORK__BEACON_PORT="0", NODECTL_NETWORK__INTERFACES='["lo"]')

    def program(self, text, name="program.py", **options):
        path = os.path.join(self.directory, name)
        with open(path, "w") as file:
            file.write(text)
        return subprocess.Popen([sys.executable, path], env=self.env, stdout=subprocess.PIPE, text=True, cwd=self.directory, **options)

    def output(self, text):
        program = self.program(text, stderr=subprocess.PIPE)
        out, err = program.communicate(timeout=280)
        self.assertEqual(program.returncode, 0, out + err)
        return out


HEAD = """
import os, sys, time
import nodectl
from nodectl import Pool, _node
class Worker:
    def run(self, x=None):
        return os.getpid() if x is None else x
"""


class Solo(Base):
    def test_the_selftest_passes(self):
        ran = subprocess.run([sys.executable, "-m", "nodectl.selftest"], env=self.env, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("\nok ", ran.stdout)

    def test_examples_run_where_there_is_no_cluster(self):
        ran = subprocess.run([sys.executable, EXAMPLES + "/quick.py"], env=self.env, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("pi is about 3.1", ran.stdout)

    def test_workers_do_without_the_programs_package(self):
        # To import it takes as long as all else of a worker's start.
        out = self.output("""
import nodectl
from nodectl import futures

FACTOR = 2

class Worker:
    def run(self, x):
        return FACTOR * x, modules()

def modules():
    import sys
    return sorted(name for name in sys.modules if name.partition(".")[0] == "nodectl")

with nodectl.Pool(Worker, cpus=1) as pool:
    print(pool.map([3]))
with nodectl.Executor(cpus=1) as executor:
    print(executor.submit(modules).result())
print(futures.submit(modules).result())
""")
        own = ["nodectl._main"]
        self.assertEqual(out, "%r\n%r\n%r\n" % ([(6, own)], own, own))

    def test_a_killed_program_leaves_nothing(self):
        program = self.program(
            HEAD
            + """
pool = Pool(Worker)
print(_node._own.process.pid, pool.map([None])[0], flush=True)
pool.map([1])
time.sleep(60)
"""
        )
        self.addCleanup(program.stdout.close)
        pids = [int(pid) for pid in program.stdout.readline().split()]
        self.assertTrue(all(map(is_alive, pids)))
        program.send_signal(signal.SIGKILL)
        program.wait()
        wait_until(lambda: not any(map(is_alive, pids)), "node and worker are gone")

    def test_modules_beside_the_program_and_shipped_directories_are_found(self):
        with open(os.path.join(self.directory, "helper.py"), "w") as file:
            file.write("from deeper import FACTOR\nclass Helper:\n    def run(self, x):\n        return x * FACTOR\n")
        with open(os.path.join(self.directory, "deeper.py"), "w") as file:
            file.write("FACTOR = 3\n")
        shipped = os.path.join(self.directory, "shipped")
        os.makedirs(os.path.join(shipped, "inner"))
        with open(os.path.join(shipped, "lib.py"), "w") as file:
            file.write("def name():\n    return open('shipped/inner/data.txt').read()\n")
        with open(os.path.join(shipped, "inner", "data.txt"), "w") as file:
            file.write("the data")
        out = self.output(
            """
from nodectl import Pool
from helper import Helper
class Reader:
    def run(self):
        import lib
        return lib.name()
with Pool(Helper) as pool:
    print(pool.map([1, 2]))
with Pool(Reader, sources=["shipped"]) as pool:
    print(pool.submit().result())
"""
        )
        self.assertEqual(out, "[3, 6]\nthe data\n")

    def test_functions_of_a_script_share_its_variables_on_workers(self):
        out = self.output(
            """
import nodectl
SCALE, CALLS, LOCAL = None, 0, object()
DEFAULTS = {"local": LOCAL}
class Counter:
    made = []
def init(scale):
    global SCALE
    SCALE = scale
def scaled(x):
    global CALLS
    CALLS += 1
    Counter.made.append(x)
    return SCALE * x, CALLS, len(Counter.made), DEFAULTS["local"] is LOCAL
factor = 2
with nodectl.Executor(1, initializer=init, initargs=(10,)) as executor:
    print(list(executor.map(scaled, [1, 2, 3])))
    print(executor.submit(scaled, 4).result())
    print(executor.submit(lambda x: factor * x, 4).result())
    factor = 3
    print(executor.submit(lambda x: factor * x, 4).result())
print(SCALE, CALLS, Counter.made)
"""
        )
        expected = ["[(10, 1, 1, True), (20, 2, 2, True), (30, 3, 3, True)]", "(40, 4, 4, True)", "8", "12", "None 0 []"]
        self.assertEqual(out.splitlines(), expected)

    def test_a_lost_node_is_replaced(self):
        out = self.output(
            HEAD
            + """
class Slow(Worker):
    def __init__(self):
        self.seen = []
    def handle_update(self, x):
        self.seen.append(x)
    def run(self, x):
        time.sleep(0.02)
        return x, self.seen
with Pool(Slow) as pool:
    pool.update_workers("u")
    results = []
    for result in pool.imap(range(100)):
        results.append(result)
        if len(results) in (20, 50):
            os.kill(_node._own.process.pid, 9)
    print(results == [(x, ["u"]) for x in range(100)])
"""
        )
        self.assertEqual(out, "True\n")

    def test_a_time_out_costs_an_attempt_and_no_worker(self):
        out = self.output(
            HEAD
            + """
class Slow(Worker):
    def run(self, seconds):
        time.sleep(seconds)
        return seconds
with Pool(Slow, timeout=3, max_workers=2, cpus=0.25, retries=0) as pool:
    lost = 0
    results = pool.imap([60, 60, 60, 60, 60])
    for _ in range(5):
        try:
            next(results)
        except nodectl.WorkerLost as error:
            lost += "timeout" in str(error)
    print(lost, pool.map([0] * 20) == [0] * 20)
"""
        )
        self.assertEqual(out, "5 True\n")

    def test_a_lost_task_tells_how_and_where_its_worker_ended(self):
        out = self.output(
            HEAD
            + """
import os, signal
class Fragile(Worker):
    def run(self, how):
        print("about to end by", how, file=sys.stderr, flush=True)
        if how == "exit":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGSEGV)
with Pool(Fragile, max_workers=1, cpus=0.25, retries=0) as pool:
    for how in ("exit", "signal"):
        try:
            pool.map([how])
        except nodectl.WorkerLost as error:
            print(error)
"""
        )
        self.assertIn("the task ended its worker; the last one: on ", out)
        self.assertIn("ended with exit status 7", out)
        self.assertIn("killed by signal 11 (SIGSEGV)", out)
        self.assertIn("it wrote last:\nabout to end by exit\n", out)
        self.assertIn("about to end by signal", out)

    def test_a_program_goes_on_when_the_one_that_started_the_node_ends(self):
        # Each program's own interpreter.
        self.env.pop("NODECTL_PYTHON", None)
        task = HEAD + "class Slow(Worker):\n    def run(self, x):\n        time.sleep(0.05)\n        return x, sys.executable\n"
        first = self.program(task + "pool = Pool(Slow, cpus=0.5)\nprint(pool.map([0]), flush=True)\nsys.stdin.readline()\n", stdin=subprocess.PIPE)
        self.addCleanup(first.stdout.close)
        first.stdout.readline()
        second = self.program(
            task
            + """
with Pool(Slow, cpus=0.5) as pool:
    results = []
    for result in pool.imap(range(60)):
        results.append(result)
        if len(results) == 10:
            print("under way", flush=True)
    print(results == [(x, sys.executable) for x in range(60)])
""",
            name="second.py",
        )
        self.addCleanup(second.stdout.close)
        self.assertEqual(second.stdout.readline(), "under way\n")
        first.communicate("end\n", timeout=200)
        self.assertEqual(first.returncode, 0)
        self.assertEqual(second.stdout.readline(), "True\n")
        self.assertEqual(second.wait(60), 0)

    def test_a_pool_that_cannot_be_made_leaves_its_node_to_the_next(self):
        out = self.output(
            HEAD
            + """
import threading
try:
    Pool(Worker, threading.Lock())
except TypeError as error:
    print("pickle" in str(error), _node._own is not None)
begun = _node._own.process.pid
with Pool(Worker) as pool:
    print(pool.map([1]), _node._own.process.pid == begun)
"""
        )
        self.assertEqual(out, "True True\n[1] True\n")

    def test_what_is_no_program_of_this_version_starts_no_node(self):
        newer = "#!/bin/sh\n[ \"$1\" = --version ] && echo nodectl 99.0.0 || exit 2\n"
        other = "#!/bin/sh\necho something else\n"
        for text, said in ((newer, "is nodectl 99.0.0, and"), (other, "is no nodectl, and"), (None, "does not start: ")):
            path = os.path.join(self.directory, "stand-in")
            with open(path, "w") as file:
                file.write(text or "")
            os.chmod(path, 0o755 if text else 0o644)
            self.env["NODECTL"] = path
            out = self.output(HEAD + "try:\n    Pool(Worker)\nexcept nodectl.NodeError as error:\n    print(error)\n")
            self.assertIn("%s %s" % (path, said), out)
            self.assertIn("\nhint: ", out)

    def test_a_node_that_leaves_costs_no_result(self):
        out = self.output(
            HEAD
            + """
import subprocess
class Slow(Worker):
    def run(self, x):
        time.sleep(0.02)
        return x
with Pool(Slow) as pool:
    results = []
    for result in pool.imap(range(100)):
        results.append(result)
        if len(results) == 20:
            _node._own.process.stdin.close()
    print(results == list(range(100)))
"""
        )
        self.assertEqual(out, "True\n")

    def test_a_cluster_that_is_not_found_is_an_error(self):
        out = self.output(
            HEAD
            + """
began = time.monotonic()
try:
    Pool(Worker, None, "a password of nobody", "127.0.0.2", 9)
except nodectl.NodeError as error:
    print("127.0.0.2:9" in str(error) and "password" in str(error), time.monotonic() - began < 30)
"""
        )
        self.assertEqual(out, "True True\n")

    def test_a_node_that_finds_no_cluster_says_so(self):
        program = self.program(
            HEAD
            + """
terminate, wait = nodectl.start_node("a password of nobody", "127.0.0.2", 9)
terminate(); wait()
""",
            stderr=subprocess.PIPE,
        )
        _, err = program.communicate(timeout=200)
        self.assertIn("warning: no node was found at 127.0.0.2:9 so far", err)

    def test_a_node_that_works_alone_is_not_taken_for_a_cluster(self):
        out = self.output(
            HEAD
            + """
with Pool(Worker) as pool:
    print(pool.map([5]))
    try:
        Pool(Worker, None, "a password of nobody", "127.0.0.2", 9)
    except nodectl.NodeError as error:
        print("works alone" in str(error))
"""
        )
        self.assertEqual(out, "[5]\nTrue\n")

    def test_what_was_submitted_runs_before_the_program_ends(self):
        out = self.output(
            """
import atexit, nodectl
executor, other = nodectl.Executor(), nodectl.Executor()
def note(name):
    open(%r + "/ran-" + name, "w").close()
for number in range(20):
    executor.submit(note, "a%%d" %% number)
other.map(note, ["b%%d" %% number for number in range(20)])
other.shutdown(wait=False)
def late():
    try:
        executor.submit(note, "late")
    except RuntimeError as error:
        print(error)
atexit.register(late)
"""
            % self.directory
        )
        self.assertEqual(out, "cannot schedule new futures after shutdown\n")
        self.assertEqual(sum(name.startswith("ran-") for name in os.listdir(self.directory)), 40)

    def test_a_result_of_two_gibibytes_arrives(self):
        with open("/proc/meminfo") as info:
            free = next(int(line.split()[1]) << 10 for line in info if line.startswith("MemAvailable"))
        if free < 12 << 30:
            print("SKIPPED: a result of 2 GiB needs 12 GiB of free memory")
            return
        out = self.output(
            """
from nodectl import Pool
class Worker:
    def run(self, size):
        return bytes(size)
with Pool(Worker, max_workers=1) as pool:
    print(len(pool.map([2 << 30])[0]) == 2 << 30)
"""
        )
        self.assertEqual(out, "True\n")

    def test_a_class_that_fails_shows_its_traceback(self):
        program = self.program(
            """
from nodectl import Pool
class Broken:
    def __init__(self):
        raise OSError("no data set")
with Pool(Broken) as pool:
    pool.map([1])
""",
            stderr=subprocess.PIPE,
        )
        _, err = program.communicate(timeout=200)
        self.assertIn("no data set", err)
        self.assertIn("PoolBroken", err)

    def test_nodes_are_started_from_python(self):
        out = self.output(
            HEAD
            + """
print(nodectl.is_server_running(), nodectl.start_redis("a long enough secret"))
terminate, wait = nodectl.start_node("a long enough secret")
print(nodectl.is_server_running(), nodectl.is_client_running())
with Pool(Worker, None, "a long enough secret") as pool:
    print(pool.map([5]))
terminate(); wait()
print(nodectl.is_client_running())
"""
        )
        lines = ["nodectl needs no redis server; nothing was started", "False None", "True True", "[5]", "False"]
        self.assertEqual(out.splitlines(), lines)


if __name__ == "__main__":
    unittest.main()
