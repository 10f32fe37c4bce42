"""Runs the tests at a node of this machine alone, and compares what came of them with what is excluded."""

import concurrent.futures
import os
import re
import subprocess
import sys
import time

from tests import suites

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
    excluded, there = suites.exclusions(suites.exclusions_of("cpython")), names()
    kinds = {name: {one.kind for one in excluded if one.fits(name)} for name in there}
    chosen = [name for name in there if not patterns or any(re.search(pattern, name) for pattern in patterns)]
    wanted = [name for name in chosen if "never" not in kinds[name]]
    problems = [(one.pattern, "no test has this name, which is among the exclusions") for one in suites.stale(excluded, there)]
    counts, once_more = suites.nothing_counted(), []
    counts["left out"] = len(chosen) - len(wanted)
    began = time.monotonic()

    def count(name, end, output):
        if "fails" in kinds[name] and end != "skipped":
            end, output = {
                "failed": ("meant differences", ""),
                "passed": ("failed", "it passed, and should fail by exclusions/cpython.txt"),
            }[end]
        if end == "failed":
            problems.append((name, output))
        counts[end] += 1
        print("%-20s %s" % (end, name), flush=True)

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
        for name, (end, output) in zip(wanted, threads.map(run, wanted)):
            if end == "failed" and "fails" not in kinds[name]:
                once_more.append(name)
            else:
                count(name, end, output)
    # Some look at the clock, and had others beside them: they are asked once more, alone.
    for name in once_more:
        count(name, *run(name))
    for name, output in problems:
        print("\n=== %s\n%s" % (name, output))
    version = "CPython %d.%d.%d" % sys.version_info[:3]
    print("\n%s: %s; %.0f s" % (version, suites.counted(counts), time.monotonic() - began))
    return 1 if problems else 0


def with_node(patterns):
    with suites.node(CORES):
        return main(patterns)


if __name__ == "__main__":
    sys.exit(with_node(sys.argv[1:]))
