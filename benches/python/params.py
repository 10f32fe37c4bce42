"""Parameter servers on one machine: 64 MiB as 16 tensors of 4 MiB, a worker's process and its node's, beside a plain TCP loop between
two processes and memcpy, all in one run.

    NODECTL=target/release/nodectl PYTHONPATH=packaging/python python3 benches/python/params.py [--rounds 30]

`cargo bench --bench params` uses it between two nodes (`elsewhere`).

A push ends when the optimizer (SGD) has applied it, a pull when the values are where the worker reads them. CPU-seconds are those of
both processes.
"""

import argparse
import json
import os
import resource
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

TENSORS, BYTES = 16, 4 << 20
TOTAL = TENSORS * BYTES
# Plaintext TCP, measured beforehand on a machine of this kind (2 virtual cores, shared): GB/s at best, CPU-seconds a GB.
PS_LITE = {"push": (4.0, 0.38), "pull": (3.1, 0.61), "push-pull": (1.7, 0.41)}


def cpu_seconds(pid):
    """User and system time of a process."""
    with open("/proc/%s/stat" % pid) as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(work, rounds, cpu):
    """(GB/s of each round, CPU-seconds a GB), after two that do not count."""
    work(), work()
    rates, before = [], cpu()
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        rates.append(TOTAL / (time.perf_counter() - began) / 1e9)
    return rates, (cpu() - before) / (rounds * TOTAL / 1e9)


def own_cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def worker(rounds):
    from nodectl.params import ParameterServer

    server = ParameterServer.connect(rate=1e-3, replicas=1, block_bytes=BYTES)
    names = ["t%d" % index for index in range(TENSORS)]
    server.register({name: np.ones(BYTES // 4, "f4") for name in names})
    for name in names:
        server.gradients[name][...] = 1e-3
    credentials = server._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    node = struct.unpack("3i", credentials)[0]
    elsewhere = {name: np.full(BYTES // 4, 1e-3, "f4") for name in names}

    def both():
        return own_cpu() + cpu_seconds(node)

    def push(gradients=None):
        server.push(gradients)
        server.clock()
        # Returns when the last ones count.
        server.push([])

    found = {}
    for _ in range(2):
        # In turns: what else the machine does hits all of them.
        for name, work in [
            ("memcpy", lambda: [np.copyto(server.gradients[n], elsewhere[n]) for n in names]),
            ("push", push),
            ("pull", None),
            ("push, copied", lambda: push(elsewhere)),
            ("push-pull", server.push_pull),
        ]:
            if name == "pull":
                # A pull reads blocks that are newer than the last: time that part alone.
                rates, before = [], 0.0
                for _ in range(rounds):
                    push()
                    cpu, began = both(), time.perf_counter()
                    server.pull()
                    rates.append(TOTAL / (time.perf_counter() - began) / 1e9)
                    before += both() - cpu
                result = rates, before / (rounds * TOTAL / 1e9)
            else:
                result = measure(work, rounds, both)
            known = found.setdefault(name, ([], []))
            known[0].extend(result[0])
            known[1].append(result[1])
    server.close()
    json.dump(found, open("found.json", "w"))


def elsewhere(rounds, streams, nodes):
    """One of two workers, of which one has all blocks on the other's node. They take turns; `nodes` are the nodes' processes."""
    from nodectl.params import ParameterServer

    settings = {"rate": 1e-3, "replicas": 1, "block_bytes": BYTES, "consistency": "async"}
    server = ParameterServer.connect(num_push_threads=streams, num_pull_threads=streams, **settings)
    names = ["t%d" % index for index in range(TENSORS)]
    server.register({name: np.ones(BYTES // 4, "f4") for name in names})
    found = {}

    def cpu():
        return own_cpu() + sum(cpu_seconds(node) for node in nodes)

    def push():
        server.push()
        server.clock()
        server.push([])

    def timed(name, work, before=None):
        rates, seconds = found.setdefault(name, ([], []))
        if before:
            before()
        spent, began = cpu(), time.perf_counter()
        work()
        rates.append(TOTAL / (time.perf_counter() - began) / 1e9)
        seconds.append(cpu() - spent)

    for turn in range(server.workers):
        server.barrier()
        if turn != server.worker:
            continue
        for name in names:
            server.gradients[name][...] = 1e-3
        for _ in range(3):
            server.push_pull()
        for _ in range(rounds):
            timed("push", push)
            timed("pull", server.pull, before=push)
            timed("push-pull", server.push_pull)
        plain = {"plain TCP": tcp(rounds), "plain TCP, one block": tcp(rounds, 1)}
    server.barrier()
    server.close()
    medians = {name: (statistics.median(rates), sum(spent) / (rounds * TOTAL / 1e9)) for name, (rates, spent) in found.items()}
    for name, (rates, seconds) in plain.items():
        medians[name] = statistics.median(rates), seconds
    json.dump(medians, open("found.json", "w"))


def tcp(rounds, blocks=TENSORS):
    """A plain TCP loop: 64 MiB from one process to another, and a byte back. Of so many blocks in either process's memory: as many as
    parameter servers read and write, or one again and again, which stays in the cache."""
    size = blocks * BYTES
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        receiver, _ = listener.accept()
        buffer = memoryview(bytearray(size))
        done = 0
        while True:
            count = receiver.recv_into(buffer[done % size :])
            if count == 0:
                os._exit(0)
            done += count
            if done == TOTAL:
                done = 0
                receiver.sendall(b"x")
    sender = socket.create_connection(listener.getsockname())
    # Written to, so that each page is its own.
    memory = memoryview(bytearray(b"x") * size)

    def work():
        for index in range(TENSORS):
            begin = index * BYTES % size
            sender.sendall(memory[begin : begin + BYTES])
        sender.recv(1)

    result = measure(work, rounds, lambda: own_cpu() + cpu_seconds(child))
    sender.close()
    os.waitpid(child, 0)
    return result


def on_one_machine(program, rounds):
    """{operation: (GB/s of each round, [CPU-seconds a GB])} of a worker beside its program's parameter servers."""
    with tempfile.TemporaryDirectory() as directory:
        job = "\n".join([
            'kind = "train"',
            "name = 'bench'",
            "command = %s" % json.dumps([sys.executable, "params.py", "--worker", "--rounds", str(rounds)]),
            'outputs = ["found.json"]',
            'into = "results"',
        ])
        with open(os.path.join(directory, "job.toml"), "w") as file:
            file.write(job)
        with open(os.path.join(directory, "params.py"), "w") as file, open(__file__) as own:
            file.write(own.read())
        environment = dict(os.environ, NODECTL_NODE__DATA_DIR=os.path.join(directory, "data"))
        path = [os.path.abspath(part) for part in os.environ.get("PYTHONPATH", "").split(":") if part]
        environment["PYTHONPATH"] = ":".join(path)
        subprocess.run([os.path.abspath(program), "run", "job.toml"], cwd=directory, env=environment, check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(directory, "results", "0", "found.json")) as file:
            return json.load(file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--elsewhere", metavar="PIDS")
    parser.add_argument("--streams", type=int, default=1)
    options = parser.parse_args()
    if options.elsewhere:
        return elsewhere(options.rounds, options.streams, options.elsewhere.split(","))
    if options.worker:
        return worker(options.rounds)
    found = on_one_machine(os.environ["NODECTL"], options.rounds)
    for name, blocks in [("plain TCP", TENSORS), ("plain TCP, one", 1)]:
        rates, cpu = tcp(options.rounds, blocks)
        found[name] = rates, [cpu]
    for name, (rates, cpu) in found.items():
        print("%-14s GB/s median %6.2f best %6.2f   CPU-s/GB %.3f" % (name, statistics.median(rates), max(rates), min(cpu)))
    copy = statistics.median(found["memcpy"][0])
    for name in ("push", "pull"):
        ratio = copy / statistics.median(found[name][0])
        print("%-14s %.2f memcpy, bar 1.5: %s" % (name, ratio, "holds" if ratio <= 1.5 else "MISSED"))
    for name, (best, cpu) in PS_LITE.items():
        ratio, share = max(found[name][0]) / best, min(found[name][1]) / cpu
        holds = ratio >= 2 and share <= 0.5
        print("%-14s %.2f of ps-lite's best, bar 2; %.2f of its CPU-seconds, bar 0.5: %s"
              % (name, ratio, share, "holds" if holds else "MISSED"))


if __name__ == "__main__":
    main()
