"""One build of the program beside another, in turns in one run: medians of both, and their ratio (1.05 at most is wanted).

    python3 benches/python/programs.py target/static/nodectl target/dist/nodectl [--rounds 5]

Each works alone, with a data directory of its own. Frames are an Eiger 4M's, compressed, made by h5py and hdf5plugin of the interpreter
that NODECTL_BENCH_PYTHON names, or of a virtual environment that is made for it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "packaging", "python")
sys.path.insert(0, HERE)

import params  # noqa: E402

TASKS, FILES, BAR = 2000, 12, 1.05
JOB = 'name = "tasks"\ncommand = ["/bin/true"]\nrepeat = %d\n' % TASKS
INTEGRATE = """kind = "integrate"
name = "frames"
datasets = "frames-*.h5"
poni = "frames.poni"
unit = "q_nm^-1"
points = 1000
engine = "cpu"
"""
POOL = """
import json, os, time
import nodectl

class Nothing:
    def run(self, _):
        return None

class Echo:
    def run(self, value):
        return value

def timed(worker, items):
    with nodectl.Pool(worker, cpus=1, max_workers=2) as pool:
        assert pool.wait_for_workers(2, 30)
        pool.map(items[:20])
        began = time.perf_counter()
        pool.map(items)
        return time.perf_counter() - began

data = [os.urandom(1_000_000) for _ in range(8)]
print(json.dumps([timed(Nothing, range(10_000)), timed(Echo, [data[i % 8] for i in range(500)])]))
"""


def run(program, job, directory):
    """Seconds of `run` of a job's text in a directory, with no node beside it."""
    with tempfile.TemporaryDirectory() as home:
        with open(os.path.join(directory, "job.toml"), "w") as file:
            file.write(job)
        command = [program, "--data-dir", home, "run", "job.toml", "--into", os.path.join(home, "results")]
        began = time.perf_counter()
        subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - began


def pool(program):
    """Seconds of 10,000 tasks that do nothing, and of 500 that return 1 MB, on two workers."""
    with tempfile.TemporaryDirectory() as home:
        env = dict(os.environ, NODECTL=program, NODECTL_NODE__DATA_DIR=home, PYTHONPATH=PACKAGE)
        ran = subprocess.run([sys.executable, "-c", POOL], env=env, stdout=subprocess.PIPE, check=True)
        return json.loads(ran.stdout)


def parameters(program):
    """Seconds a GB of a push, and of a pull, of parameter servers on this machine."""
    os.environ["PYTHONPATH"] = PACKAGE
    found = params.on_one_machine(program, 10)
    return [1 / statistics.median(found[name][0]) for name in ("push", "pull")]


def frames(directory):
    """Makes files of frames; says why where it cannot."""
    python = os.environ.get("NODECTL_BENCH_PYTHON")
    if not python:
        python = os.path.join(directory, "venv", "bin", "python")
        subprocess.run([sys.executable, "-m", "venv", os.path.join(directory, "venv")], check=False)
        subprocess.run([python, "-m", "pip", "install", "-q", "h5py", "hdf5plugin"], check=False)
    made = subprocess.run([python, os.path.join(HERE, "frames.py"), "make", directory], stderr=subprocess.PIPE, text=True)
    if made.returncode:
        print("SKIPPED: no frames: %s" % (made.stderr.splitlines() or ["?"])[-1])
        return False
    for index in range(FILES):
        os.link(os.path.join(directory, "frames.h5"), os.path.join(directory, "frames-%02d.h5" % index))
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("other")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    programs = [os.path.abspath(given.program), os.path.abspath(given.other)]
    with tempfile.TemporaryDirectory() as directory:
        works = {
            ("%d tasks of /bin/true" % TASKS,): lambda program: [run(program, JOB, directory)],
            ("10,000 tasks of a pool", "500 of them with 1 MB"): pool,
            ("1 GB pushed", "1 GB pulled"): parameters,
        }
        if frames(directory):
            works["%d frames integrated" % (8 * FILES),] = lambda program: [run(program, INTEGRATE, directory)]
        for names, work in works.items():
            # One round that does not count; then in turns: what else the machine does hits both.
            turns = [[work(program) for program in programs] for _ in range(1 + given.rounds)][1:]
            for index, name in enumerate(names):
                ours, theirs = (statistics.median(turn[side][index] for turn in turns) for side in (0, 1))
                ratio = ours / theirs
                print("%-24s %.3f s beside %.3f s   ratio %.3f, bar %.2f: %s"
                      % (name, ours, theirs, ratio, BAR, "holds" if ratio <= BAR else "MISSED"), flush=True)


if __name__ == "__main__":
    main()
