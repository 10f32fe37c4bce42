"""A workflow of Snakemake's on three nodes that share no files, of which one dies: says when it is at work, and at the end whether all
came out right."""

import os
import subprocess
import sys
import tempfile
import time

SNAKEFILE = """
rule total:
    input: expand("part/{k}.txt", k=range(6))
    output: "total.txt"
    shell: "cat {input} > {output}"

rule part:
    input: "start.txt"
    output: "part/{k}.txt"
    shell: "sleep 1; cat {input} > {output}; echo {wildcards.k} >> {output}"
"""
LINE = ["-m", "snakemake", "--executor", "nodectl", "--jobs", "10", "--shared-fs-usage", "none", "--latency-wait", "1"]


def main(directory):
    for name, text in (("Snakefile", SNAKEFILE), ("start.txt", "start ")):
        with open(os.path.join(directory, name), "w") as file:
            file.write(text)
    with open(os.path.join(directory, "log"), "w+") as log:
        process = subprocess.Popen([sys.executable, *LINE], cwd=directory, stdout=log, stderr=subprocess.STDOUT)
        while process.poll() is None and not os.path.exists(os.path.join(directory, "part")):
            time.sleep(0.05)
        print("at work", flush=True)
        input()
        if process.wait() != 0:
            log.seek(0)
            sys.exit(log.read())
    with open(os.path.join(directory, "total.txt")) as file:
        assert file.read() == "".join("start %d\n" % k for k in range(6))
    print("ok", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="nodectl-") as directory:
        main(directory)
