"""Runs suites with pytest, at a node of this machine alone, and compares what came of them with what is excluded."""

import faulthandler
import importlib
import json
import os
import subprocess
import sys
import time

from tests import suites

SUITES = ("book", "ewoks", "executor", "futures", "hydra", "joblib", "notebook", "optuna", "parsl", "snakemake", "submitit")
LIMIT_SECONDS = 600
# Some tests want four workers, on a machine of two cores. A suite whose tests do not has a `CORES` of its own: each worker loads the
# suite's libraries anew.
CORES = "4"


def outcomes(suite, arguments, directory, more):
    """(name, how it ended, what it said) of each test."""
    report = os.path.join(directory, suite + ".jsonl")
    log = os.path.join(directory, suite + ".log")
    open(report, "w").close()
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.frontends.report", *arguments, *more]
    env = {**os.environ, "FRONTENDS_REPORT": report, "FRONTENDS_EXCLUSIONS": suites.exclusions_of(suite)}
    with open(log, "w") as output:
        process = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT, cwd=directory, env=env, start_new_session=True)
        try:
            status = process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            status = process.wait()
    with open(report) as lines:
        found = [json.loads(line) for line in lines]
    ended = {one["name"] for one in found if one["end"] != "begun"}
    results = [(one["name"], one["end"], one["said"]) for one in found if one["end"] != "begun"]
    results += [(one["name"], "failed", "it did not end") for one in found if one["end"] == "begun" and one["name"] not in ended]
    if status not in (0, 1, 5) or not results:
        with open(log) as text:
            results.append(("(pytest)", "failed", "it ended with %d\n%s" % (status, text.read()[-4000:])))
    return results


def run(suite, more):
    """Whether all is as it is meant to be. Prints a line that counts."""
    module = importlib.import_module("tests.frontends.suite_" + suite)
    missing = module.missing()
    if missing:
        print("SKIPPED: the suite %s: %s" % (suite, missing))
        return True
    with suites.node(getattr(module, "CORES", CORES)) as directory:
        return passes(suite, module, directory, more)


def passes(suite, module, directory, more):
    """The same, at the node that runs."""
    began = time.monotonic()
    meant = [one for one in suites.exclusions(suites.exclusions_of(suite)) if one.kind == "fails"]
    counts, problems = suites.nothing_counted(), []
    for name, end, said in outcomes(suite, module.arguments(), directory, more):
        if end in ("passed", "failed") and any(one.fits(name) for one in meant):
            if end == "failed":
                end = "meant differences"
            else:
                problems.append((name, "it passed, and should fail by exclusions/%s.txt" % suite))
                end = "failed"
        elif end == "failed":
            problems.append((name, said))
        counts[end] += 1
    for name, said in problems:
        print("\n=== %s: %s\n%s" % (suite, name, said))
    print("%s: %s; %.0f s" % (module.NAME, suites.counted(counts), time.monotonic() - began), flush=True)
    return not problems


def main(arguments):
    # Suites have limits of their own.
    faulthandler.cancel_dump_traceback_later()
    wanted = [name for name in arguments if name in SUITES] or SUITES
    more = [name for name in arguments if name not in SUITES]
    return 0 if all([run(suite, more) for suite in wanted]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
