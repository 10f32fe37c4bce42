"""Runs the tests at a node of this machine alone, and compares them with the list of meant differences."""

import concurrent.futures
import os
import re
import subprocess
import sys
import time

from tests import suites

HERE = os.path.dirname(__file__)
LIMIT_SECONDS = 180
AT_ONCE = 4
# Some tests want five workers.
CORES = "8"


def names():
    code = "from tests.upstream import cases; print(*cases.TESTS, sep='\\n')"
    listed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if listed.returncode:
        last = listed.stderr.strip().splitlines()[-1]
        print("SKIPPED: %s has no tests of CPython: %s" % (sys.executable, last))
        sys.exit(0)
    return listed.stdout.split()


def run(name):
    """(how it ended, what it said)."""
    command = [sys.executable, "-m", "tests.upstream.one", name]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            return "failed", output + "\nit ran longer than %d s" % LIMIT_SECONDS
    return {0: "passed", 77: "skipped"}.get(process.returncode, "failed"), output


def main(patterns):
    meant = suites.differences(os.path.join(HERE, "differences.txt"))
    wanted = [name for name in names() if not patterns or any(re.search(pattern, name) for pattern in patterns)]
    problems, counts = [], {"passed": 0, "skipped": 0, "failed": 0, "meant differences": 0}
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
        for name, (end, output) in zip(wanted, threads.map(run, wanted)):
            if name in meant and end == "failed":
                end = "meant differences"
            elif end == "failed" or (name in meant and end == "passed"):
                problems.append((name, end, output))
                continue
            counts[end] += 1
            print("%-20s %s" % (end, name), flush=True)
    # Some look at the clock, and had others beside them: they are asked once more, alone.
    alone, problems = problems, []
    for name, end, output in alone:
        if end == "failed":
            end, output = run(name)
        if end == "failed" or name in meant:
            problems.append((name, end, output))
            end = "failed"
        counts[end] += 1
        print("%-20s %s" % (end, name), flush=True)
    for name, end, output in problems:
        print("\n=== %s\n%s" % (name, output if end == "failed" else "it passed, and is in differences.txt"))
    version = "CPython %d.%d.%d" % sys.version_info[:3]
    print("\n%s: %s; %.0f s" % (version, suites.counted(counts), time.monotonic() - began))
    return 1 if problems else 0


def with_node(patterns):
    with suites.node(CORES):
        return main(patterns)


if __name__ == "__main__":
    sys.exit(with_node(sys.argv[1:]))
