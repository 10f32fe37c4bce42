"""Futures of calls on nodes: programs of the kinds that users of Ray and dask write, and what becomes of results that are lost."""

import concurrent.futures
import glob
import json
import operator
import os
import queue
import socket
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
        with pytest.raises(nodectl.RemoteError, match="no such luck"):
            future.result()
    assert futures.submit(operator.add, 1, 2).result() == 3


def test_what_no_node_was_given_can_be_cancelled():
    first = sleep.remote(3)
    while not first.running():
        time.sleep(0.01)
    # Of another priority: it cannot go along in the job of the first, and waits for that here.
    second = nodectl.remote(add, cpus=0.5, priority=1).remote(first, 1)
    third = add.remote(second, 1)
    assert second.cancel() and not first.cancel()
    for future in (second, third):
        with pytest.raises(concurrent.futures.CancelledError):
            future.result()
    assert first.result() == 3


def test_who_is_told_of_a_failure_may_make_a_call():
    later = queue.Queue()
    failed = fail.remote("no such luck")
    after = add.remote(failed, 1)
    after.add_done_callback(lambda _: later.put(square.remote(7)))
    with pytest.raises(nodectl.RemoteError):
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
    found = [path for path in glob.glob(os.environ["NODECTL_NODE__DATA_DIR"] + "/blobs/**", recursive=True) if name in path.replace(os.sep, "")]
    assert found, name
    for path in found:
        os.chmod(os.path.dirname(path), 0o755)
        os.remove(path)


def test_a_lost_result_is_computed_again(tmp_path):
    path = str(tmp_path / "times")
    first = count.remote(path, 4)
    second = add.remote(first, 1)
    assert second.result() == 5
    lose(second)
    assert second.result() == 5
    lose(first)
    assert first.result() == 4
    assert (tmp_path / "times").read_text() == "xx"


def test_a_lost_value_that_was_scattered_is_told():
    value = futures.scatter("something that nothing makes again")
    lose(value)
    with pytest.raises(nodectl.NodeError):
        value.result()


def test_a_result_that_is_lost_before_a_call_is_given_it_is_computed_again(tmp_path):
    path = str(tmp_path / "times")
    first = count.remote(path, 6)
    concurrent.futures.wait([first])
    lose(first)
    assert add.remote(first, 1).result() == 7
    assert (tmp_path / "times").read_text() == "xx"
