"""What `ProcessPoolExecutor` and `multiprocessing.Pool` promise, kept by `Executor` and `Pool`."""

import collections
import concurrent.futures
import gc
import importlib
import itertools
import linecache
import multiprocessing
import os
import sys
import tempfile
import textwrap
import threading
import time
import traceback
import typing
from concurrent.futures.process import BrokenProcessPool

import cloudpickle

import nodectl
from nodectl import _frames

from .test_pool import Base

STATEFUL = """
import functools, threading

LOCK = threading.Lock()
VALUE = None
CALLS = []

def set_value(value):
    global VALUE
    VALUE = value

def read(_):
    with LOCK:
        return VALUE

@functools.lru_cache
def cached(x):
    CALLS.append(x)
    return len(CALLS)

class Item:
    made = 0

    def __init__(self, x):
        Item.made += 1
        self.x = x

def item(x):
    return Item(x)
"""


class Failing:
    """An iterable that ends by an error."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        yield from range(self.count)
        raise OSError("no more")


class Worker:
    def run(self, x):
        if x == "stop":
            raise StopIteration(x)
        return x * 2


class Counted:
    made = 0

    def __init__(self, x):
        type(self).made += 1
        self.x = x

    def method(self):
        return self.x


class Promises(Base):
    def executor(self, **options):
        executor = nodectl.Executor(**options)
        self.addCleanup(executor.shutdown)
        return executor

    def test_map_runs_what_it_was_given_whether_it_is_read_or_not(self):
        directory = self.host.directory

        def note(x):
            open(os.path.join(directory, "ran-%d" % x), "w").close()

        with nodectl.Executor() as executor:
            executor.map(note, range(100))
        self.assertEqual(sum(name.startswith("ran-") for name in os.listdir(directory)), 100)

    def test_map_with_a_buffer_takes_no_more_than_is_read(self):
        taken = []

        def endless():
            while True:
                taken.append(1)
                yield len(taken)

        executor = self.executor()
        results = executor.map(lambda x: x, endless(), buffersize=4)
        self.assertEqual([next(results) for _ in range(5)], [1, 2, 3, 4, 5])
        self.assertLessEqual(len(taken), 4 + 5)

    def test_a_cancelled_future_is_done(self):
        executor = self.executor(max_workers=2)
        wait, go = self.gate()
        futures = [executor.submit(wait) for _ in range(20)]
        self.assertTrue(futures[-1].cancel())
        done, _ = concurrent.futures.wait([futures[-1]], timeout=30)
        self.assertEqual(done, {futures[-1]})
        self.assertEqual(list(concurrent.futures.as_completed([futures[-1]])), [futures[-1]])
        self.assertTrue(futures[-1].cancel(), "again")
        go()
        executor.shutdown(cancel_futures=True)
        self.assertTrue(all(future.done() for future in futures))

    def gate(self):
        """A function for workers that returns once another is called here."""
        path = os.path.join(self.host.directory, "go")

        def wait(*_):
            while not os.path.exists(path):
                threading.Event().wait(0.01)

        return wait, lambda: open(path, "w").close()

    def until(self, holds, seconds=30):
        deadline = time.monotonic() + seconds
        while not holds():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_a_future_is_running_once_a_worker_has_its_task(self):
        executor = self.executor()
        wait, go = self.gate()
        small, large = executor.submit(wait), executor.submit(wait, bytes(3 << 20))
        self.until(lambda: small.running() and large.running())
        self.assertFalse(small.cancel())
        futures = [executor.submit(wait) for _ in range(50)]
        self.assertFalse(futures[-1].running())
        threading.Timer(0.2, go).start()
        executor.shutdown(cancel_futures=True)
        self.assertTrue(futures[-1].cancelled())
        self.assertEqual((small.result(0), large.result(0)), (None, None))

    def test_a_cancelled_map_is_told_to_its_reader(self):
        executor = self.executor()
        wait, go = self.gate()
        results = executor.map(wait, range(50))
        executor.shutdown(wait=False, cancel_futures=True)
        with self.assertRaises(concurrent.futures.CancelledError):
            list(results)
        go()

    def test_workers_are_replaced_after_so_many_tasks(self):
        with nodectl.Executor(2, max_tasks_per_child=3) as executor:
            pids = list(executor.map(lambda _: os.getpid(), range(20)))
        self.assertEqual(max(pids.count(pid) for pid in pids), 3)

    def test_tracebacks_have_the_lines_of_files_that_workers_lack(self):
        source = "def fail():\n    raise LookupError('no')  # in a cell\n"
        cell = "/nowhere/cell-1.py"
        linecache.cache[cell] = (len(source), None, source.splitlines(True), cell)
        names = {"__name__": "__main__"}
        exec(compile(source, cell, "exec"), names)
        error = self.executor().submit(names["fail"]).exception(30)
        self.assertIn("raise LookupError('no')  # in a cell", "".join(traceback.format_exception(None, error, None)))

    def test_an_initializer_that_fails_breaks_the_executor(self):
        def fail():
            raise ValueError("error in initializer")

        executor = self.executor(max_workers=1, initializer=fail)
        with self.assertRaisesRegex(BrokenProcessPool, "error in initializer"):
            executor.submit(pow, 2, 3).result(60)
        with self.assertRaises(BrokenProcessPool):
            executor.submit(pow, 2, 3)

    def functions(self, *args, **options):
        pool = nodectl.Pool(*args, **options)
        self.assertIsInstance(pool, nodectl.FunctionPool)
        self.addCleanup(pool.terminate)
        return pool

    def test_a_pool_without_a_class_is_that_of_multiprocessing(self):
        pool = self.functions(2)
        offset = 10
        self.assertEqual(pool.map(lambda x: x + offset, range(20)), list(range(10, 30)))
        self.assertEqual(pool.starmap(pow, [(2, 3), (3, 2)]), [8, 9])
        self.assertEqual(list(pool.imap(abs, [-1, -2])), [1, 2])
        self.assertEqual(sorted(pool.imap_unordered(abs, range(-9, 0), chunksize=3)), list(range(1, 10)))
        self.assertEqual(list(itertools.islice(pool.imap(abs, itertools.count()), 5)), [0, 1, 2, 3, 4])
        self.assertEqual(pool.apply(sorted, ([2, 1],), {"reverse": True}), [2, 1])
        self.assertEqual(pool.map_async(abs, []).get(30), [])
        self.assertEqual(pool.submit(pow, 2, 5).result(30), 32)

    def test_asynchronous_results_are_told(self):
        pool, told = self.functions(), []
        wait, go = self.gate()
        result = pool.apply_async(wait)
        self.assertFalse(result.ready())
        with self.assertRaises(multiprocessing.TimeoutError):
            result.get(0.05)
        with self.assertRaises(ValueError):
            result.successful()
        go()
        result.wait(30)
        self.assertTrue(result.ready() and result.successful())
        pool.map_async(int, ["1", "2"], callback=told.append).wait(30)
        bad = pool.map_async(int, ["1", "x", threading.Lock()], error_callback=told.append)
        bad.wait(30)
        self.assertFalse(bad.successful())
        self.assertEqual(told[0], [1, 2])
        self.assertIsInstance(told[1], (ValueError, TypeError))

    def test_what_a_closed_pool_was_given_runs(self):
        pool = self.functions(initializer=os.putenv, initargs=("NOTHING", "1"), maxtasksperchild=200)
        results = pool.imap(lambda x: x * x, range(3000))
        later = pool.map_async(abs, range(50))
        with self.assertRaises(ValueError):
            pool.join()
        pool.close()
        with self.assertRaises(ValueError):
            pool.map(abs, [1])
        pool.join()
        self.assertEqual(list(results), [x * x for x in range(3000)])
        self.assertEqual(later.get(0), list(range(50)))

    def test_a_class_is_still_a_pool_of_its(self):
        self.assertNotIsInstance(self.pool(Worker), nodectl.FunctionPool)

    def test_what_was_submitted_runs_after_shutdown_without_waiting(self):
        executor = self.executor()
        futures = [executor.submit(pow, x, 2) for x in range(50)]
        executor.shutdown(wait=False)
        self.assertEqual([future.result(60) for future in futures], [x * x for x in range(50)])
        with self.assertRaises(RuntimeError):
            executor.submit(pow, 1, 2)

    def test_an_iterable_that_fails_loses_nothing(self):
        pool = self.pool(Worker)
        results = pool.imap(Failing(40))
        self.assertEqual([next(results) for _ in range(40)], [2 * x for x in range(40)])
        with self.assertRaisesRegex(OSError, "no more"):
            next(results)
        with self.assertRaises(StopIteration):
            next(results)
        unordered, got = pool.imap_unordered(Failing(40)), []
        with self.assertRaisesRegex(OSError, "no more"):
            for value in unordered:
                got.append(value)
        got.extend(unordered)
        self.assertEqual(sorted(got), [2 * x for x in range(40)])
        with self.assertRaisesRegex(OSError, "no more"):
            pool.map(Failing(3))

    def test_an_item_that_cannot_be_pickled_fails_alone(self):
        pool = self.pool(Worker)
        results = pool.imap([1, threading.Lock(), 3])
        self.assertEqual(next(results), 2)
        with self.assertRaises(TypeError):
            next(results)
        self.assertEqual(list(results), [6])
        with self.assertRaises(TypeError):
            pool.map([threading.Lock()])
        future = self.executor().submit(len, threading.Lock())
        self.assertIsInstance(future.exception(30), TypeError)

    def test_a_task_that_raises_stop_iteration_ends_nothing_silently(self):
        with self.assertRaisesRegex(RuntimeError, "StopIteration"):
            list(self.pool(Worker).imap([1, "stop", 3]))

        def stop(x):
            raise StopIteration(x)

        with self.assertRaisesRegex(RuntimeError, "StopIteration"):
            list(self.executor().map(stop, range(5)))

    def test_errors_are_those_that_programs_expect(self):
        self.assertTrue(issubclass(nodectl.PoolError, RuntimeError))
        self.assertTrue(issubclass(nodectl.WorkerLost, concurrent.futures.BrokenExecutor))
        for options in ({"max_workers": 0}, {"retries": -1}, {"timeout": -5}):
            with self.assertRaises(ValueError, msg=str(options)):
                nodectl.Pool(Worker, **options)
        with self.assertRaisesRegex(FileNotFoundError, "/nonexistent"):
            nodectl.Pool(Worker, sources=["/nonexistent"])
        self.assertTrue(issubclass(nodectl.WorkerLost, BrokenProcessPool))
        for options in ({"max_tasks_per_child": 0}, {"max_workers": -1}):
            with self.assertRaises(ValueError, msg=str(options)):
                nodectl.Executor(**options)
        for options in ({"processes": 0}, {"maxtasksperchild": 0.5}, {"maxtasksperchild": "12"}):
            with self.assertRaises(ValueError, msg=str(options)):
                nodectl.Pool(**options)
        with self.assertRaises(ValueError):
            self.executor().map(pow, [1], [2], chunksize=-1)

    def test_a_result_that_ends_programs_when_it_is_read_is_an_error(self):
        class Exits:
            def __reduce__(self):
                return sys.exit, (3,)

        future = self.executor().submit(lambda: Exits())
        self.assertIsInstance(future.exception(30), nodectl.RemoteError)
        self.assertEqual(self.executor().submit(pow, 2, 3).result(30), 8)

    def test_workers_are_counted_once_there_is_one(self):
        self.assertGreater(self.pool(Worker).get_workers_count(), 0)

    def module(self, text):
        """A module beside the script, imported."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        name = "beside_%d" % threading.get_native_id()
        with open(os.path.join(directory.name, name + ".py"), "w") as file:
            file.write(textwrap.dedent(text))
        sys.path.insert(0, directory.name)
        self.addCleanup(sys.path.remove, directory.name)
        self.addCleanup(sys.modules.pop, name, None)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    def test_modules_beside_the_script_are_modules_on_workers(self):
        beside = self.module(STATEFUL)
        with nodectl.Executor(1, initializer=beside.set_value, initargs=(7,)) as executor:
            self.assertEqual(list(executor.map(beside.read, range(3))), [7, 7, 7])
            self.assertEqual(executor.submit(beside.cached, 1).result(30), 1)
        item = None
        with nodectl.Executor(1) as executor:
            item = executor.submit(beside.item, 5).result(30)
        self.assertIs(type(item), beside.Item)
        self.assertEqual((item.x, beside.Item.made), (5, 0))

    def test_empty_files_travel(self):
        empty = self.module("")
        with nodectl.Executor(1) as executor:
            self.assertEqual(executor.submit(lambda: empty.__name__).result(30), empty.__name__)

    def test_results_do_not_change_the_classes_of_the_program(self):
        class Local(Counted):
            def method(self):
                return -self.x

        method = Local.method
        results = list(self.executor().map(lambda x: Local(x), range(3)))
        self.assertTrue(all(type(result) is Local for result in results))
        self.assertEqual([result.method() for result in results], [0, -1, -2])
        self.assertIs(Local.method, method)
        self.assertNotIn("made", vars(Local))

    def test_classes_keep_their_slots(self):
        class Slotted:
            __slots__ = ("x", "__hidden")

            def __init__(self, x):
                self.x, self.__hidden = x, -x

            def both(self):
                return self.x, self.__hidden, hasattr(self, "__dict__")

        class Wider(Slotted):
            __slots__ = "y"

        def widened(given):
            wider = Wider(given.x)
            wider.y = 3
            return wider

        executor = self.executor(max_workers=1)
        self.assertEqual(executor.submit(Slotted.both, Slotted(2)).result(30), (2, -2, False))
        found = executor.submit(widened, Slotted(2)).result(30)
        self.assertIs(type(found), Wider)
        self.assertEqual((found.both(), found.y), ((2, -2, False), 3))

    def test_classes_whose_last_copy_is_collected_meanwhile_are_whole(self):
        def collect_first():
            """Garbage goes right before a class is made."""
            import cloudpickle.cloudpickle as module

            make = module._make_skeleton_class

            def collecting(*args):
                gc.collect()
                return make(*args)

            collecting.__module__ = make.__module__
            gc.disable()
            module._make_skeleton_class = collecting
            return make

        def instance():
            class Local:
                def method(self):
                    return 7

            return Local()

        executor = self.executor(max_workers=1)
        executor.submit(lambda: collect_first() and None).result(30)
        local = instance()
        for function in [lambda given: given.method(), lambda given: given.method() + 0]:
            self.assertEqual(executor.submit(function, local).result(30), 7)
        payload = cloudpickle.dumps(local)
        make = collect_first()
        try:
            del local
            self.assertEqual(_frames.loads(payload).method(), 7)
        finally:
            gc.enable()
            cloudpickle.cloudpickle._make_skeleton_class = make

    def test_named_tuples_are_what_they_were(self):
        class Point(typing.NamedTuple):
            x: int
            y: int = 2

        Pair = collections.namedtuple("Pair", "x y")
        kinds = [Pair]
        try:
            cloudpickle.loads(cloudpickle.dumps(Point))
            kinds.append(Point)
        except KeyError:
            print("SKIPPED: this cloudpickle does not know typing.NamedTuple: %s" % cloudpickle.__version__)
        executor = self.executor(max_workers=1)
        for kind in kinds:
            found = executor.submit(lambda given: given._replace(x=5), kind(1, 2)).result(30)
            self.assertIs(type(found), kind)
            self.assertEqual(found, (5, 2))
