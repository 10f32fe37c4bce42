"""Futures of calls on nodes: programs of the kinds that users of Ray and dask write, and what becomes of results that are lost."""

import concurrent.futures
import glob
import json
import operator
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time

import nodectl
import pytest
from nodectl import _jobs, futures


@nodectl.remote(cpus=0.5)
def square(x):
    return x * x


@nodectl.remote(cpus=0.5)
def add(*values):
    return sum(values)


@nodectl.remote(cpus=0.5)
def total(values):
    return sum(values)


@nodectl.remote(cpus=0.5)
def sleep(seconds):
    time.sleep(seconds)
    return seconds


@nodectl.remote(cpus=0.5)
def fail(text):
    raise ValueError(text)


@nodectl.remote(cpus=0.5)
def count(path, value):
    with open(path, "a") as file:
        file.write("x")
    return value


@nodectl.remote(cpus=0.5)
def block(path, number):
    """Too long to come with its answer: it stays on the node."""
    with open(path, "a") as file:
        file.write("x")
    return bytes([number]) * 100_000


@nodectl.remote(cpus=0.5)
def in_hexadecimal(content):
    return content.hex()


@nodectl.remote(cpus=0.5)
def lengths(*blocks):
    return sum(map(len, blocks))


class Refused(Exception):
    """An exception of the program's own."""

    def __init__(self, reason, code):
        super().__init__(reason, code)
        self.code = code


@nodectl.remote(cpus=0.5)
def refuse(code):
    raise Refused("not today", code)


def test_calls_at_the_same_time():
    assert futures.gather([square.remote(x) for x in range(4)]) == [0, 1, 4, 9]


def test_the_function_can_still_be_called_here():
    assert square(3) == 9 and square.__name__ == "square"


def test_futures_as_arguments_also_of_calls_that_have_not_begun():
    assert add.remote(square.remote(2), add.remote(square.remote(3), 1)).result() == 14


def test_futures_of_calls_that_are_done_and_futures_within_lists():
    done = square.remote(5)
    assert done.result() == 25
    assert total.remote([done, square.remote(2), 1]).result() == 30


def test_a_tree_is_summed_on_the_nodes():
    level = [square.remote(x) for x in range(8)]
    while len(level) > 1:
        level = [add.remote(*level[at : at + 2]) for at in range(0, len(level), 2)]
    assert level[0].result() == 140


def test_a_value_is_scattered_once():
    value = futures.scatter(list(range(1000)))
    assert value.done() and value.result() == list(range(1000))
    assert futures.gather({"sum": total.remote(value), "again": total.remote(value), "plain": 1}) == {"sum": 499500, "again": 499500, "plain": 1}


def test_what_is_done_first_comes_first():
    slow, fast = sleep.remote(20), sleep.remote(0)
    done, rest = futures.wait([slow, fast], return_when=concurrent.futures.FIRST_COMPLETED)
    assert (done, rest) == ({fast}, {slow})
    assert next(futures.as_completed([slow, fast])) is fast
    with pytest.raises(concurrent.futures.TimeoutError):
        slow.result(timeout=0.01)


def test_a_failure_is_that_of_all_that_need_it():
    failed = fail.remote("no such luck")
    after = add.remote(failed, 1)
    for future in (failed, after, add.remote(after, 1)):
        with pytest.raises(ValueError, match="no such luck") as raised:
            future.result()
        assert "in fail" in str(raised.value.__cause__)
    assert futures.submit(operator.add, 1, 2).result() == 3


def test_an_exception_of_the_programs_own_comes_as_itself():
    with pytest.raises(Refused, match="not today") as raised:
        refuse.remote(7).result()
    assert raised.value.code == 7


def test_the_failure_of_the_first_of_many_is_that_of_the_last():
    future = fail.remote("no such luck")
    for _ in range(3000):
        future = add.remote(future, 1)
    with pytest.raises(ValueError, match="no such luck"):
        future.result()


def begun(future):
    while not future.running():
        concurrent.futures.wait([future], 0.01)
    return future


def test_what_no_worker_has_can_be_cancelled():
    first = begun(sleep.remote(1))
    second = add.remote(first, 1)
    third = add.remote(second, 1)
    assert second.cancel() and second.cancel()
    done, _ = concurrent.futures.wait([second, third], timeout=30)
    assert done == {second, third}
    for future in (second, third):
        with pytest.raises(concurrent.futures.CancelledError):
            future.result()
    assert first.result() == 1 and not first.cancel()


def test_a_call_that_runs_ends_when_it_is_cancelled():
    first = begun(sleep.remote(3600))
    after = add.remote(first, 1)
    assert first.cancel() and first.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        after.result(30)
    # All workers are there again: with those that sleep on this would not end.
    many = [sleep.remote(3600) for _ in range(8)]
    for future in many:
        begun(future).cancel()
    assert futures.gather([square.remote(x) for x in range(16)]) == [x * x for x in range(16)]


def test_workers_stay():
    # At most eight of them on four cores.
    where = nodectl.remote(os.getpid, cpus=0.5)
    assert len({where.remote().result() for _ in range(40)}) <= 8


def end_by_itself():
    os._exit(0)


def be_killed():
    os.kill(os.getpid(), 9)


def crash():
    import ctypes

    ctypes.string_at(0)


@pytest.mark.parametrize(
    "how, retries, told", [(be_killed, 0, "SIGKILL"), (be_killed, 1, "SIGKILL"), (end_by_itself, 0, "exit status 0"), (crash, 0, "SIGSEGV")]
)
def test_a_worker_that_ends_in_a_call_costs_that_call_a_try_and_no_other(tmp_path, how, retries, told):
    path = str(tmp_path / "times")

    def end(path):
        with open(path, "a") as file:
            file.write("x")
        how()

    ends = nodectl.remote(end, cpus=0.5, retries=retries)
    others = [square.remote(x) for x in range(200)]
    failed = ends.remote(path)
    others += [square.remote(x) for x in range(200)]
    with pytest.raises(nodectl.WorkerLost, match=told):
        failed.result()
    assert futures.gather(others) == [x * x for x in range(200)] * 2
    assert (tmp_path / "times").read_text() == "x" * (1 + retries)


def test_a_call_that_takes_more_memory_than_it_has_is_tried_once(tmp_path):
    path = str(tmp_path / "times")

    def take(path):
        with open(path, "a") as file:
            file.write("x")
        taken = bytearray(400 << 20)
        # Until the node has looked.
        time.sleep(30)
        return len(taken)

    with pytest.raises(nodectl.WorkerLost, match="memory"):
        nodectl.remote(take, cpus=0.5, memory="150 MiB").remote(path).result()
    assert (tmp_path / "times").read_text() == "x"


@pytest.fixture
def alone():
    """Workers of tests before have no room any more: it takes ten seconds until they make some for others."""
    futures._finish()
    futures._of_process = None


def test_a_task_of_a_pool_that_ends_its_worker_is_tried_as_often_as_it_was_said(alone, tmp_path):
    path = str(tmp_path / "times")

    def end(path):
        with open(path, "a") as file:
            file.write("x")
        os._exit(0)

    with nodectl.Executor(max_workers=1, cpus=0.5, retries=2) as executor:
        with pytest.raises(nodectl.WorkerLost, match="exit status 0"):
            executor.submit(end, path).result()
        assert executor.submit(pow, 2, 3).result() == 8
    assert (tmp_path / "times").read_text() == "xxx"


def a_call(x):
    return square.remote(x)


def a_submission(x):
    return futures.submit(pow, x, 2)


def a_value(x):
    return futures.scatter(x)


def a_pool(x):
    with nodectl.Pool() as pool:
        return pool.map(abs, [x])


def an_executor(x):
    with nodectl.Executor() as executor:
        return executor.submit(abs, x).result()


def a_graph(x):
    graph = nodectl.Graph()
    return graph.run(graph.call(abs, x))


def a_job(x):
    return nodectl.submit(["true"])


def a_log(x):
    return nodectl.Log("nested").append(x)


@pytest.mark.parametrize("nested", [a_call, a_submission, a_value, a_pool, an_executor, a_graph, a_job, a_log])
def test_a_worker_that_looks_for_the_cluster_is_told_at_once_that_it_cannot(nested):
    with nodectl.Executor(max_workers=1, cpus=0.5) as executor:
        for ran in (nodectl.remote(nested, cpus=0.5).remote(2), executor.submit(nested, 2)):
            with pytest.raises(RuntimeError, match="a worker cannot .*: only its program can\nhint: call the function itself"):
                ran.result(60)


def test_a_call_that_raises_is_tried_again(tmp_path):
    path = str(tmp_path / "times")

    def third_time(path):
        with open(path, "a+") as file:
            file.write("x")
            file.seek(0)
            if len(file.read()) < 3:
                raise ValueError("too early")
        return "at last"

    with pytest.raises(ValueError, match="too early"):
        nodectl.remote(third_time, cpus=0.5, retries=1).remote(path).result()
    assert nodectl.remote(third_time, cpus=0.5, retries=1).remote(path).result() == "at last"


def test_a_call_that_takes_too_long_ends():
    with pytest.raises(nodectl.WorkerLost, match="longer than `timeout`"):
        nodectl.remote(sleep, cpus=0.5, timeout=0.2).remote(60).result()


def test_results_that_cannot_be_pickled_are_failures():
    with pytest.raises(TypeError):
        nodectl.remote(threading.Lock, cpus=0.5).remote().result()


def test_files_and_modules_of_the_program_are_with_its_calls(tmp_path):
    (tmp_path / "table.txt").write_text("41")
    (tmp_path / "helping_futures.py").write_text("""
import nodectl

@nodectl.remote(cpus=0.5)
def one_more(number):
    return helper(number)

def helper(number):
    return number + 1
""")

    def read():
        import helping_futures

        with open("table.txt") as file:
            return helping_futures.one_more(int(file.read()))

    sources = [str(tmp_path / "table.txt"), str(tmp_path / "helping_futures.py")]
    assert nodectl.remote(read, cpus=0.5, sources=sources).remote().result() == 42


def test_arrays_are_on_all_workers_as_they_were_and_may_be_changed_there(alone):
    numpy = pytest.importorskip("numpy")

    def changed(values):
        before = values.sum()
        values[:] = 0
        return before, values

    change = nodectl.remote(changed, cpus=0.5)
    values = futures.scatter(numpy.ones(50_000))
    for future in [change.remote(values) for _ in range(4)]:
        before, after = future.result()
        assert before == 50_000 and not after.any()
    # Arguments that are no futures, and results of results.
    before, after = change.remote(numpy.full(50_000, 2.0)).result()
    assert before == 100_000 and after.shape == (50_000,)


PROGRAM = """
import nodectl

FACTOR = 1

class Point:
    def __init__(self, x):
        self.x = x

@nodectl.remote(cpus=0.5)
def scaled(x):
    return FACTOR * x

@nodectl.remote(cpus=0.5)
def point(x):
    return Point(x)

@nodectl.remote(cpus=0.5)
def read(point):
    return point.x

if __name__ == "__main__":
    for FACTOR in (1, 2, 1, 1):
        assert scaled.remote(3).result() == 3 * FACTOR, FACTOR
    points = [point.remote(x) for x in range(20)]
    # Another pool: workers that have never met the class.
    apart = nodectl.remote(read, cpus=0.25)
    assert [future.result() for future in map(apart.remote, points)] == list(range(20))
    assert all(type(future.result()) is Point for future in points)
    with nodectl.Executor(max_workers=1) as executor:
        for FACTOR in (1, 2, 1, 1):
            assert list(executor.map(scaled._function, [3])) == [3 * FACTOR], FACTOR
    print("as it should be")
"""


def test_variables_and_classes_of_a_script_are_there_as_they_are(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True)
    assert done.stdout == "as it should be\n", done.stderr


def test_who_is_told_of_a_failure_may_make_a_call():
    later = queue.Queue()
    failed = fail.remote("no such luck")
    after = add.remote(failed, 1)
    after.add_done_callback(lambda _: later.put(square.remote(7)))
    with pytest.raises(ValueError):
        after.result()
    assert later.get(timeout=60).result() == 49


def test_a_future_is_for_calls_only():
    import pickle

    with pytest.raises(TypeError, match="argument of a remote call"):
        pickle.dumps(futures.scatter(1))


def test_a_job_of_which_nothing_is_known_is_submitted_again_with_its_key(tmp_path):
    path, keys = str(tmp_path / "api.sock"), []

    def serve(listener):
        for status, answer in (("504 Gateway Timeout", {"error": "nothing is known of it yet"}), ("201 Created", {"job": "a1"})):
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as reader:
                headers = iter(reader.readline, b"\r\n")
                length = next(int(line.split(b":")[1]) for line in list(headers) if line.lower().startswith(b"content-length:"))
                keys.append(json.loads(reader.read(length))["key"])
                body = json.dumps(answer).encode()
                connection.sendall(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        assert _jobs.submit(path, {"name": "any", "command": ["true"]}) == "a1"
    assert len(keys) == 2 and len(set(keys)) == 1


def lose(future):
    """Takes a result off the disk of the only node."""
    name = concurrent.futures.Future.result(future).hash
    found = [path for path in glob.glob(os.environ["NODECTL_NODE__DATA_DIR"] + "/**", recursive=True) if name in path.replace(os.sep, "")]
    assert found, name
    for path in found:
        os.chmod(os.path.dirname(path), 0o755)
        os.remove(path)


def test_a_lost_result_is_computed_again(tmp_path):
    path = str(tmp_path / "times")
    first = block.remote(path, 4)
    second = in_hexadecimal.remote(first)
    assert second.result() == "04" * 100_000
    lose(second)
    assert second.result() == "04" * 100_000
    assert (tmp_path / "times").read_text() == "x"
    # With what it is made of.
    lose(second)
    lose(first)
    assert second.result() == "04" * 100_000
    assert (tmp_path / "times").read_text() == "xx"
    lose(first)
    assert first.result() == bytes([4]) * 100_000


def test_a_short_result_is_not_lost(tmp_path):
    path = str(tmp_path / "times")
    first = count.remote(path, 4)
    assert add.remote(first, 1).result() == 5
    assert first.result() == 4
    assert (tmp_path / "times").read_text() == "x"


def kept():
    """Names of results that the only node has for calls."""
    return {os.path.basename(path) for path in glob.glob(os.environ["NODECTL_NODE__DATA_DIR"] + "/kept/blobs/*/*")}


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        concurrent.futures.wait([begun_once], 0.02)


#: Never done: `wait` waits for it.
begun_once = concurrent.futures.Future()


def test_results_go_with_their_futures_and_what_is_needed_stays(tmp_path):
    path = str(tmp_path / "times")
    before = kept()
    first = block.remote(path, 8)
    second = in_hexadecimal.remote(first)
    third = in_hexadecimal.remote(block.remote(path, 8))
    assert second.result() == third.result() == "08" * 100_000
    names = [concurrent.futures.Future.result(future).hash for future in (first, second)]
    assert kept() - before >= set(names)
    # Equal to another's, which is needed.
    del third
    del first
    wait_until(lambda: names[0] not in kept())
    assert second.result() == "08" * 100_000
    # What it was made of is made again, with a future of nobody's.
    lose(second)
    assert second.result() == "08" * 100_000
    assert (tmp_path / "times").read_text() == "xxx"
    del second
    wait_until(lambda: not kept() - before)


def test_a_long_chain_of_which_all_is_gone_is_made_again():
    before = kept()
    grow = nodectl.remote(lambda content: content + b"x", cpus=0.5)
    last = grow.remote(bytes(70_000))
    for _ in range(60):
        last = grow.remote(last)
    assert len(last.result()) == 70_061
    wait_until(lambda: len(kept() - before) == 1)
    lose(last)
    assert len(last.result()) == 70_061


def test_a_result_that_is_lost_before_a_call_is_given_it_is_computed_again(tmp_path):
    path = str(tmp_path / "times")
    first = block.remote(path, 6)
    concurrent.futures.wait([first])
    lose(first)
    assert lengths.remote(first).result() == 100_000
    assert (tmp_path / "times").read_text() == "xx"


def test_a_value_that_was_scattered_is_on_nodes_while_its_future_is_there_and_calls_are_given_it(alone):
    before = kept()
    value = futures.scatter(bytes(100_000))
    short = futures.scatter(bytes(10))
    assert not kept() - before, "no call is given it yet"
    apart = nodectl.remote(lengths, cpus=0.25)
    assert futures.gather([call.remote(value, short) for call in (lengths, apart) for _ in range(4)]) == [100_010] * 8
    assert len(kept() - before) == 1
    del value
    wait_until(lambda: not kept() - before)


def test_a_value_that_was_scattered_is_what_it_was_then():
    numpy = pytest.importorskip("numpy")
    values = numpy.ones(50_000)
    value = futures.scatter(values)
    values[:] = 0
    assert total.remote(value).result() == value.result().sum() == 50_000


def test_a_value_that_was_scattered_and_is_lost_is_put_there_again():
    before = kept()
    value = futures.scatter(b"x" * 100_000)
    assert lengths.remote(value).result() == 100_000
    lose(value)
    assert value.result() == b"x" * 100_000
    # All of them miss it at once.
    assert futures.gather([lengths.remote(value) for _ in range(16)]) == [100_000] * 16
    del value
    wait_until(lambda: not kept() - before)


NODE_DIES = """
import os, signal
import nodectl
from nodectl import _node, futures

@nodectl.remote(cpus=0.5)
def length(value):
    return len(value)

value = futures.scatter(bytes(100_000))
assert length.remote(value).result() == 100_000
for _ in range(2):
    os.kill(_node.request(_node.socket_path(), "GET", "/v1/node")["pid"], signal.SIGKILL)
    _node._own.wait()
    assert futures.gather([length.remote(value) for _ in range(4)]) == [100_000] * 4
assert len(value.result()) == 100_000
print("as it should be")
"""


def test_a_value_that_was_scattered_outlives_the_programs_own_node(tmp_path):
    (tmp_path / "program.py").write_text(NODE_DIES)
    environment = {**os.environ, "NODECTL_NODE__DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, env=environment)
    assert done.stdout == "as it should be\n", done.stderr


def test_a_value_for_which_there_is_no_room_is_told(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    with pytest.raises(nodectl.NodeError, match="(?s)cannot be scattered.*TMPDIR"):
        futures.scatter(bytes(100_000))
