"""What joblib's own tests do not ask of the backend: how arrays travel, how many batches run at a time, what ends when."""

import os
import signal
import threading
import time

import joblib
import nodectl.joblib as backend
import numpy
import pytest
from joblib import Parallel, delayed

BIG = numpy.arange(300_000.0).reshape(1000, 300)
LIMIT_SECONDS = 120


@pytest.fixture(autouse=True)
def of_its_own():
    backend.register()
    with joblib.parallel_config("nodectl", n_jobs=4, cpus=0.5):
        yield
    for workers in list(backend._open):
        workers.enter()
        workers.leave(end=True)


@pytest.fixture
def sent(monkeypatch):
    """The sizes of arrays that were sent."""
    sizes, payload = [], backend._Arrays.payload

    def counted(self, arrays):
        sizes.extend(values.nbytes for values in arrays.values())
        return payload(self, arrays)

    monkeypatch.setattr(backend._Arrays, "payload", counted)
    return sizes


def look(values, number=0):
    return type(values).__name__, values.flags.writeable, float(values.sum()) + number


def test_an_array_that_many_batches_use_travels_once_or_twice_to_a_node(sent):
    found = Parallel(batch_size=1)(delayed(look)(BIG, number) for number in range(40))
    assert found == [("memmap", False, BIG.sum() + number) for number in range(40)]
    # Once with the first batch, and once for those that did not find it yet.
    assert 1 <= len(sent) <= 2
    again = Parallel(batch_size=1)(delayed(look)(BIG.copy(), 0) for _ in range(8))
    assert again == [("memmap", False, BIG.sum())] * 8


def test_arrays_that_one_batch_uses_travel_once(sent):
    arrays = (numpy.full(200_000, float(number)) for number in range(12))
    found = Parallel(batch_size=1)(delayed(look)(one) for one in arrays)
    assert found == [("memmap", False, 200_000.0 * number) for number in range(12)]
    assert len(sent) == 12


def test_small_arrays_are_part_of_the_batch(sent):
    assert Parallel()(delayed(look)(BIG[:10]) for _ in range(2)) == [("ndarray", True, BIG[:10].sum())] * 2
    assert Parallel(max_nbytes=None)(delayed(look)(BIG) for _ in range(2)) == [("ndarray", True, BIG.sum())] * 2
    assert sent == []


def same(values, other):
    return values.dtype == other.dtype and values.shape == other.shape and bool((values == other).all())


@pytest.mark.parametrize(
    "values",
    [BIG.T, BIG[::2], BIG.astype(">f4"), BIG.astype("M8[s]"), BIG.astype([("x", "f8")]), BIG > 7, BIG.reshape(10, 30, 1000)],
    ids=["Fortran's order", "strides", "byte order", "times", "records", "truth", "dimensions"],
)
def test_arrays_arrive_as_they_are(values):
    # One of them travels as a list does, in the batch.
    pieces = [values[number::4].copy() for number in range(4)]
    whole = Parallel(max_nbytes=1000)(delayed(numpy.asarray)(values) for _ in range(2))
    assert all(same(one, values) for one in whole)
    assert all(Parallel(max_nbytes=1000)(delayed(same)(one, one) for one in pieces))


def look_inside(inside):
    return look(inside["list"][1])


def test_arrays_inside_of_other_objects_are_shared_too():
    assert Parallel()(delayed(look_inside)({"list": [1, BIG]}) for _ in range(2)) == [("memmap", False, BIG.sum())] * 2


def overwrite(values):
    values[:] = 1
    return float(values.sum())


def test_arrays_are_read_only_unless_copied_on_write():
    with pytest.raises(ValueError):
        Parallel()(delayed(overwrite)(BIG) for _ in range(2))
    assert Parallel(mmap_mode="c")(delayed(overwrite)(BIG) for _ in range(4)) == [BIG.size] * 4
    assert BIG[0, 1] == 1.0 and BIG[0, 2] == 2.0
    with pytest.raises(ValueError, match="mmap_mode"):
        Parallel(mmap_mode="r+")(delayed(overwrite)(BIG) for _ in range(2))


def counted(directory, number):
    mine = os.path.join(directory, "at-work-%d" % number)
    open(mine, "w").close()
    count = len(os.listdir(directory))
    time.sleep(0.05)
    os.remove(mine)
    return count


def test_no_more_batches_run_at_a_time_than_asked_for(tmp_path):
    Parallel(n_jobs=4)(delayed(abs)(1) for _ in range(4))
    counts = Parallel(n_jobs=2, batch_size=1, pre_dispatch="all")(delayed(counted)(str(tmp_path), number) for number in range(20))
    assert max(counts) <= 2


def test_workers_stay_for_the_next_call():
    first = set(Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(20)))
    second = set(Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(20)))
    assert len(first | second) <= 2


def test_idle_workers_end():
    Parallel(n_jobs=2, idle_worker_timeout=0.1)(delayed(abs)(1) for _ in range(2))
    deadline = time.monotonic() + LIMIT_SECONDS
    while backend._open:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def die_once(path, number):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return float(BIG_HERE.sum()) + number
    os.kill(os.getpid(), signal.SIGKILL)


BIG_HERE = numpy.ones(10)


def test_a_worker_that_dies_costs_an_attempt(tmp_path):
    found = Parallel()(delayed(die_once)(str(tmp_path / "died"), number) for number in range(10))
    assert found == [10.0 + number for number in range(10)]


def die_with_arrays(path, values, number):
    die_once(path, 0)
    return look(values, number)


def test_arrays_outlive_the_worker_that_handed_them_out(tmp_path):
    found = Parallel(batch_size=1)(delayed(die_with_arrays)(str(tmp_path / "died"), BIG, number) for number in range(20))
    assert found == [("memmap", False, BIG.sum() + number) for number in range(20)]


def fail_or_sleep(number):
    if number == 1:
        raise ArithmeticError("the second one")
    time.sleep(2 * LIMIT_SECONDS)


def test_a_failure_ends_what_runs():
    began = time.monotonic()
    with pytest.raises(ArithmeticError, match="the second one"):
        Parallel(batch_size=1)(delayed(fail_or_sleep)(number) for number in range(4))
    assert time.monotonic() - began < LIMIT_SECONDS
    assert Parallel()(delayed(abs)(-number) for number in range(5)) == [0, 1, 2, 3, 4]


def test_what_cannot_be_pickled_is_said():
    with pytest.raises(TypeError, match="pickle"):
        Parallel()(delayed(look)(one) for one in [threading.Lock()] * 2)


def begin(value):
    os.environ["BEGUN"] = value


def test_initializers_are_called_in_each_worker():
    begun = Parallel(n_jobs=2, initializer=begin, initargs=("here",))(delayed(os.getenv)("BEGUN") for _ in range(10))
    assert begun == ["here"] * 10
