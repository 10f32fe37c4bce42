"""What the Python front ends take beside the tools whose place they take, on the same work in the same run on one machine:

    python3 benches/python/peers.py [WHAT...] [--trials 3] [--rules 100]

WHAT is any of joblib, futures, parsl and snakemake; all if missing. A virtual environment with the peers is made in target/peers once;
what cannot be installed is skipped, with the reason, as is Snakemake's plugin for SLURM where this machine cannot have one
(`tests/lab/slurm-up.sh`). Each side starts its workers before the clock does, the sides take turns, and a
first turn of each does not count. Ratios are nodectl's seconds over the peer's: less than 1 is faster.
"""

import argparse
import collections
import contextlib
import glob
import heapq
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
HOME = os.path.join(ROOT, "target", "peers")
#: Installed one after the other: where one cannot be had, the others are measured.
PEERS = {
    "joblib": ["joblib", "scikit-learn", "distributed"],
    "futures": ["distributed", "cloudpickle"],
    "ray": ["ray"],
    "parsl": ["parsl", "cloudpickle"],
    "snakemake": ["snakemake", "snakemake-interface-executor-plugins"],
    "slurm": ["snakemake-executor-plugin-slurm"],
}
#: Those that others are measured beside, if they can be had.
BESIDE = {"futures": ["ray"], "snakemake": ["slurm"]}
WORKERS = 2
#: Cores for rules of Snakemake's: they sleep, so cores are counted, not used. All rules are submitted at once, and wait in the cluster.
AT_ONCE = 8


def make_environment(wanted):
    """Has the programs below `HOME` run this file, with what can be installed."""
    python = os.path.join(HOME, "bin", "python")
    if not os.path.exists(python):
        venv.create(HOME, with_pip=True, symlinks=True)
    for name in wanted:
        ready = os.path.join(HOME, "has-" + name)
        if os.path.exists(ready):
            continue
        line = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PEERS[name]]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode == 0:
            open(ready, "w").close()
        else:
            last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
            print("SKIPPED: %s: cannot be installed: %s" % (name, last), flush=True)
    return python


def has(name):
    return os.path.exists(os.path.join(HOME, "has-" + name))


def compare(what, sides, trials):
    """A line: the median seconds of nodectl's side, the first, and of each other one, and their ratio."""
    seconds = {name: [] for name, _ in sides}
    for trial in range(trials + 1):
        for name, work in sides:
            began = time.perf_counter()
            work()
            if trial:
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(of) for name, of in seconds.items()}
    ours = medians.pop("nodectl")
    told = ["%s %.3f s, ratio %.2f" % (name, taken, ours / taken) for name, taken in medians.items()]
    print("%-34s nodectl %.3f s; %s" % (what, ours, "; ".join(told)), flush=True)


@contextlib.contextmanager
def dask_client(directory):
    from dask.distributed import Client

    client = Client(n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None, local_directory=directory)
    try:
        yield client
    finally:
        client.close()


def joblib_peers(options, directory):
    import warnings

    import joblib
    import joblib_backends

    import nodectl.joblib

    warnings.simplefilter("ignore")
    nodectl.joblib.register()

    def on(backend, work):
        def run():
            with joblib.parallel_config(backend):
                work()

        return run

    with dask_client(directory):
        for what, work in (("grid search, 60 fits", joblib_backends.search), ("2,000 short calls", joblib_backends.short_calls)):
            compare("joblib: " + what, [(name, on(name, work)) for name in ("nodectl", "dask", "loky")], options.trials)
        for workers in list(nodectl.joblib._open):
            workers.pool.close()


def nothing(number):
    return number


def pause(number):
    time.sleep(0.05)
    return number


def add(one, other):
    return one + other


def block(number):
    return bytes([number]) * 1_000_000


def length(content, number):
    return len(content) + number


def words(number):
    return collections.Counter("word%d" % (number * word % 97) for word in range(5_000))


def ordered(number):
    draw = random.Random(number)
    return sorted(draw.random() for _ in range(20_000))


def merged(one, other):
    return list(heapq.merge(one, other))


def hits(number):
    draw = random.Random(number)
    return sum(draw.random() ** 2 + draw.random() ** 2 < 1 for _ in range(50_000))


def futures_peers(options, directory):
    import nodectl.futures

    def calls(submit, result, function, count):
        return lambda: [result(future) for future in [submit(function, number) for number in range(count)]]

    def joined(submit, level, function):
        """Of as many futures as a power of two, two by two."""
        while len(level) > 1:
            level = [submit(function, one, other) for one, other in zip(level[::2], level[1::2])]
        return level[0]

    def tree(submit, result):
        def run():
            assert result(joined(submit, [submit(nothing, number) for number in range(16)], add)) == 120

        return run

    def stages(submit, result):
        def run():
            level = [submit(nothing, number) for number in range(50)]
            for _ in range(2):
                level = [submit(add, future, 1) for future in level]
            assert [result(future) for future in level] == list(range(2, 52))

        return run

    def counted(submit, result):
        def run():
            assert sum(result(joined(submit, [submit(words, number) for number in range(32)], add)).values()) == 160_000

        return run

    def merge_sort(submit, result):
        def run():
            found = result(joined(submit, [submit(ordered, number) for number in range(8)], merged))
            assert len(found) == 160_000 and found == sorted(found)

        return run

    def pi(submit, result):
        def run():
            found = sum(result(future) for future in [submit(hits, number) for number in range(32)])
            assert abs(4 * found / (32 * 50_000) - 3.1416) < 0.01

        return run

    def there_and_back(submit, result):
        def run():
            contents = [block(number) for number in range(50)]
            assert [result(future) for future in [submit(nothing, content) for content in contents]] == contents

        return run

    def chain(submit, result):
        def run():
            last = submit(nothing, 0)
            for _ in range(199):
                last = submit(add, last, 1)
            assert result(last) == 199

        return run

    def fan(submit, result):
        def run():
            content = submit(block, 1)
            assert sum(result(future) for future in [submit(length, content, number) for number in range(100)]) == 100_004_950

        return run

    def of(future):
        return future.result()

    with dask_client(directory) as client, ray_calls() as ray:

        def dask_submit(function, *arguments):
            return client.submit(function, *arguments, pure=False)

        sides = [("nodectl", nodectl.futures.submit, of), ("dask", dask_submit, of), *ray]
        for what, function, count in (("1,000 calls that do nothing", nothing, 1000), ("40 calls of 50 ms", pause, 40)):
            compare("futures: " + what, [(name, calls(submit, result, function, count)) for name, submit, result in sides], options.trials)
        shapes = (
            ("a tree of 31 calls", tree),
            ("a chain of 200 calls", chain),
            ("1 MB for 100 calls", fan),
            ("50 things in three stages", stages),
            ("words of 32 texts, counted", counted),
            ("a merge sort of 160,000 numbers", merge_sort),
            ("pi by 32 calls", pi),
            ("1 MB there and back, 50 times", there_and_back),
        )
        for what, shape in shapes:
            compare("futures: " + what, [(name, shape(submit, result)) for name, submit, result in sides], options.trials)


@contextlib.contextmanager
def ray_calls():
    """Ray core's way to call a function, if it is there."""
    if not has("ray"):
        yield []
        return
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="error")
    remotes = {}

    def submit(function, *arguments):
        if function not in remotes:
            remotes[function] = ray.remote(function)
        return remotes[function].remote(*arguments)

    try:
        yield [("ray", submit, ray.get)]
    finally:
        ray.shutdown()


def parsl_peers(options, directory):
    import parsl
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    import nodectl.parsl

    provider = LocalProvider(init_blocks=1, min_blocks=1, max_blocks=1)
    peer = HighThroughputExecutor(label="htex", max_workers_per_node=WORKERS, address="127.0.0.1", provider=provider, encrypted=False)
    ours = nodectl.parsl.NodectlExecutor(max_workers=WORKERS)
    parsl.load(parsl.Config(executors=[ours, peer], run_dir=os.path.join(directory, "runinfo")))
    try:

        def perf(executor, count):
            app = parsl.python_app(nothing, executors=[executor], cache=False)
            return lambda: [future.result() for future in [app(number) for number in range(count)]]

        count = 1_000
        sides = [("nodectl", perf(ours.label, count)), ("HTEX", perf(peer.label, count))]
        compare("parsl: %d apps that do nothing" % count, sides, options.trials)
    finally:
        parsl.dfk().cleanup()
        parsl.clear()


def read(path):
    with open(path) as file:
        return file.read()


SNAKEFILE = """
rule all:
    input: expand("{directory}/{{number}}.txt", number=range({rules}))
rule one:
    output: "{directory}/{{number}}.txt"
    shell: "sleep 1; touch {{output}}"
"""


LAB = os.path.join(ROOT, "tests", "lab")
# What its scripts end with where this machine cannot have it.
CANNOT = 77
SLURM_NODES = 2
# The plugin's own first look is after 40 s. There is no accounting in the lab.
SLURM_OPTIONS = ["--slurm-init-seconds-before-status-checks", "1", "--slurm-status-command", "squeue"]


@contextlib.contextmanager
def slurm_lab(directory):
    """A SLURM cluster on this machine, of as many cores as jobs run at once: the variables of its clients, or None."""
    if not has("slurm"):
        yield None
        return
    place = os.path.join(directory, "slurm")
    size = {"SLURM_NODES": str(SLURM_NODES), "SLURM_CPUS": str(AT_ONCE // SLURM_NODES), "SLURM_GPUS": "0"}
    up = subprocess.run(["bash", os.path.join(LAB, "slurm-up.sh"), place], env={**os.environ, **size}, capture_output=True, text=True)
    if up.returncode:
        if up.returncode != CANNOT:
            sys.exit("slurm-up.sh failed: " + up.stderr[-2000:])
        print("SKIPPED: snakemake's slurm plugin: %s" % up.stderr.strip(), flush=True)
        yield None
        return
    try:
        yield {"PATH": clients_of(place) + os.pathsep + os.environ["PATH"]}
    finally:
        subprocess.run(["bash", os.path.join(LAB, "slurm-down.sh"), place, "--purge"], capture_output=True)


def clients_of(place):
    """A directory with SLURM's programs, which find that cluster: the plugin takes variables of SLURM's away from its jobs."""
    found = os.path.join(place, "bin")
    os.makedirs(found)
    for name in ("sacct", "sacctmgr", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"):
        path = os.path.join(found, name)
        with open(path, "w") as file:
            file.write('#!/bin/sh\nSLURM_CONF=%s exec %s "$@"\n' % (os.path.join(place, "slurm.conf"), shutil.which(name)))
        os.chmod(path, 0o755)
    return found


def run_workflow(options, directory, name, arguments, variables):
    """Seconds that a workflow takes by one of Snakemake's executors."""
    snakemake = os.path.join(HOME, "bin", "snakemake")
    with tempfile.TemporaryDirectory(dir=directory) as place:
        path = os.path.join(place, "Snakefile")
        with open(path, "w") as file:
            file.write(SNAKEFILE.format(directory=place, rules=options.rules))
        line = [snakemake, "--snakefile", path, "--directory", place, "--quiet", "all", "--executor", name, *arguments]
        began = time.perf_counter()
        done = subprocess.run(line, env={**os.environ, **variables}, capture_output=True, text=True)
        taken = time.perf_counter() - began
        if done.returncode:
            said = "".join(map(read, glob.glob(os.path.join(place, ".snakemake", "log", "*.log"))))
            sys.exit("snakemake --executor %s failed:\n%s" % (name, (done.stdout + done.stderr + said)[-4000:]))
    return taken


def snakemake_peers(options, directory):
    jobs = ["--jobs", str(options.rules)]
    sides = [("nodectl", jobs, {}), ("local", ["--cores", str(AT_ONCE)], {})]
    with slurm_lab(directory) as variables:
        if variables is not None:
            sides.append(("slurm", [*jobs, *SLURM_OPTIONS], variables))
        # One turn of each: minutes, of which starting Python is a small part.
        seconds = {}
        for side in sides:
            seconds[side[0]] = run_workflow(options, directory, *side)
            print("snakemake by %s: %.1f s, load %.1f" % (side[0], seconds[side[0]], os.getloadavg()[0]), flush=True)
    ours = seconds.pop("nodectl")
    told = ["%s %.1f s, ratio %.2f" % (name, taken, ours / taken) for name, taken in seconds.items()]
    what = "snakemake: %d rules of 1 s, %d cores" % (options.rules, AT_ONCE)
    print("%s  nodectl %.1f s; %s (sleeping alone: %.1f s)" % (what, ours, "; ".join(told), options.rules / AT_ONCE), flush=True)


WORK = {"joblib": joblib_peers, "futures": futures_peers, "parsl": parsl_peers, "snakemake": snakemake_peers}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", help="any of %s" % ", ".join(WORK))
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--rules", type=int, default=100)
    options = parser.parse_args()
    strange = set(options.what) - set(WORK)
    if strange:
        parser.error("no such peers: %s" % ", ".join(sorted(strange)))
    wanted = options.what or list(WORK)
    if os.path.abspath(sys.prefix) != HOME:
        python = make_environment(wanted + [peer for name in wanted for peer in BESIDE.get(name, [])])
        os.execv(python, [python, *sys.argv])
    sys.path.insert(0, os.path.join(ROOT, "packaging", "python"))
    os.environ["PYTHONPATH"] = os.path.join(ROOT, "packaging", "python")
    # Programs of the peers' own, and the interpreter of workers.
    os.environ["PATH"] = os.path.join(HOME, "bin") + os.pathsep + os.environ["PATH"]
    program = os.environ.setdefault("NODECTL", os.path.join(ROOT, "target", "release", "nodectl"))
    if shutil.which(program) is None:
        sys.exit("no program %s: build it with `cargo build --release`, or name one in NODECTL" % program)
    print("load %.1f, %d cores, %s" % (os.getloadavg()[0], os.cpu_count(), program), flush=True)
    for name in wanted:
        if not has(name):
            continue
        # A node of its own for each of them: the front end starts it, and it ends with the program.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            os.environ["NODECTL_NODE__DATA_DIR"] = os.path.join(directory, "node")
            # Nobody's workers are nicer than the others'.
            os.environ["NODECTL_NODE__NICE"] = "0"
            os.environ["NODECTL_NODE__CORES"] = str(AT_ONCE if name == "snakemake" else WORKERS)
            WORK[name](options, directory)


if __name__ == "__main__":
    main()
