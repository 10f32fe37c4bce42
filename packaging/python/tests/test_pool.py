"""The client and the shim against each other, over a host that is reduced to the minimum."""

import concurrent.futures
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock
import warnings

import nodectl
from nodectl import _calls, _engine, _errors, _frames, _node, _sizes
from tests.fake_host import FakeHost


class Refusal(Exception):
    """Local to this module, so that it travels by value."""

    def __init__(self, code, reason):
        super().__init__(code, reason)
        self.code = code


class Unloadable(Exception):
    """Cannot be made from its `args`."""

    def __init__(self, one, two):
        super().__init__(one)


HARMED = []


def harm(how):
    HARMED.append(how)


class Harm:
    """Unpickled, it runs code."""

    def __reduce__(self):
        return harm, ("code was run",)


class Worker(nodectl.WorkerInterface):
    def __init__(self, start=0, *, directory=None):
        self.total = start
        self.directory = directory
        self.updates = []

    def run(self, what, value=None):
        return getattr(self, what)(value)

    def handle_update(self, value):
        if value == "bad":
            raise ValueError("a bad update")
        self.updates.append(value)

    def square(self, x):
        return x * x

    def echo(self, x):
        return x

    def nap(self, seconds):
        time.sleep(seconds)

    def pair(self, x):
        return x, x

    def pid(self, _):
        return os.getpid()

    def seen(self, _):
        return list(self.updates)

    def refuse(self, code):
        raise Refusal(code, "no")

    def unloadable(self, _):
        raise Unloadable(1, 2)

    def lock(self, _):
        return threading.Lock()

    def leave(self, code):
        sys.exit(code)

    def interrupt(self, _):
        raise KeyboardInterrupt

    def fork(self, value):
        if os.fork() == 0:
            print("the child")
            return "child"
        os.wait()
        return value

    def processes(self, count):
        import multiprocessing

        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(abs, range(-count, 0))

    def die_once(self, name):
        path = os.path.join(self.directory, name)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return "alive"
        os.kill(os.getpid(), signal.SIGKILL)

    def die(self, _):
        os.kill(os.getpid(), signal.SIGKILL)

    def wait_for(self, name):
        path = os.path.join(self.directory, name)
        deadline = time.monotonic() + 20
        while not os.path.exists(path) and time.monotonic() < deadline:
            time.sleep(0.005)
        return name

    def size(self, data):
        return len(data)

    def make(self, size):
        return bytes(size)

    def stdin(self, _):
        return sys.stdin.read()


def frames_of_a_pickle(data):
    return b"".join(_frames.with_buffers(data, [b"a buffer"]))


class Base(unittest.TestCase):
    workers = 2

    def setUp(self):
        self.host = FakeHost(self.workers)
        self.addCleanup(lambda: self.assertFalse(os.path.exists(self.host.directory)))
        self.addCleanup(self.host.close)
        self.addCleanup(os.environ.pop, "NODECTL_NODE__DATA_DIR", None)
        os.environ["NODECTL_NODE__DATA_DIR"] = self.host.directory

    def pool(self, worker=Worker, init=None, **options):
        pool = nodectl.Pool(worker, init, **options)
        self.addCleanup(pool.close)
        return pool

    def here(self, **arguments):
        return {"kwargs": {"directory": self.host.directory, **arguments}}


class Calls(Base):
    def test_map_takes_every_shape_of_item(self):
        pool = self.pool()
        calls = [{"args": ["square", 3]}, {"args": ["square"], "kwargs": {"value": 4}}]
        self.assertEqual(pool.map(calls), [9, 16])
        self.assertEqual(pool.starmap([("square", 5), ["echo", {"args": [1]}]]), [25, {"args": [1]}])

        class Plain:
            def run(self, x=None):
                return x

        plain = self.pool(Plain)
        self.assertEqual(plain.map([1, (2, 3), {}, {"x": 1}, None]), [1, (2, 3), {}, {"x": 1}, None])
        self.assertEqual(plain.map([]), [])

    def test_results_are_in_order_or_as_they_end(self):
        pool = self.pool(init=self.here())
        expected = [i * i for i in range(5000)]
        self.assertEqual(pool.starmap(("square", i) for i in range(5000)), expected)
        self.assertEqual(list(pool.imap({"args": ["square", i]} for i in range(3000))), expected[:3000])
        unordered = pool.imap_unordered({"args": ["square", i]} for i in range(3000))
        self.assertEqual(sorted(unordered), expected[:3000])
        pool.wait_for_workers(2)
        late = pool.imap_unordered([{"args": ["wait_for", "go"]}, *({"args": ["echo", i]} for i in range(200))])
        first = [next(late) for _ in range(20)]
        self.assertNotIn("go", first)
        open(os.path.join(self.host.directory, "go"), "w").close()
        self.assertIn("go", list(late))

    def test_an_answer_does_not_wait_behind_a_long_task(self):
        pool = self.pool(init=self.here(), max_workers=1)
        results = pool.imap([{"args": ["echo", 1]}, {"args": ["wait_for", "go"]}])
        self.assertEqual(next(results), 1)
        open(os.path.join(self.host.directory, "go"), "w").close()
        self.assertEqual(next(results), "go")

    def test_exceptions_are_raised_as_what_they_are(self):
        pool = self.pool()
        with self.assertRaises(Refusal) as caught:
            pool.map([{"args": ["refuse", 7]}])
        self.assertEqual(caught.exception.code, 7)
        self.assertIn("in refuse", str(caught.exception.__cause__))
        with self.assertRaisesRegex(nodectl.RemoteError, "Unloadable"):
            pool.map([{"args": ["unloadable"]}])
        with self.assertRaisesRegex(TypeError, "cannot pickle"):
            pool.map([{"args": ["lock"]}])
        with self.assertRaisesRegex(nodectl.RemoteError, "SystemExit: 3"):
            pool.map([{"args": ["leave", 3]}])
        with self.assertRaisesRegex(nodectl.RemoteError, "KeyboardInterrupt"):
            pool.map([{"args": ["interrupt"]}])
        self.assertEqual(pool.starmap([("square", 2)]), [4])

    def test_nothing_is_unpickled_where_results_are_json(self):
        pool = self.pool(results="json")
        values = [None, 7, 0.5, "text", [1, {"a": [True]}], b"some bytes", b"b" * 100_000]
        self.assertEqual(pool.starmap(("echo", value) for value in values), values)
        self.assertEqual(pool.starmap([("pair", 1)]), [[1, 1]])
        with self.assertRaisesRegex(nodectl.RemoteError, "Refusal") as caught:
            pool.starmap([("refuse", 7)])
        self.assertIn("in refuse", str(caught.exception.__cause__))
        with self.assertRaisesRegex(nodectl.RemoteError, "JSON"):
            pool.starmap([("lock", None)])
        with self.assertRaises(ValueError):
            self.pool(results="msgpack")

    def test_a_pickle_of_a_worker_that_was_taken_over_is_not_opened_where_results_are_json(self):
        told = b'{"type": "Harm", "message": "no", "traceback": ""}\n'
        for payload in (pickle.dumps(Harm()), frames_of_a_pickle(pickle.dumps(Harm()))):
            with self.assertRaises(ValueError):
                _frames.loads_json(bytearray(payload))
        self.assertIsInstance(_errors.from_payload(told + pickle.dumps(Harm()), unpickle=False), nodectl.RemoteError)
        self.assertEqual(HARMED, [])
        _errors.from_payload(told + pickle.dumps(Harm()))
        self.assertEqual(HARMED, ["code was run"], "which is what a pool does otherwise")

    def test_an_iteration_goes_on_after_a_failure(self):
        pool = self.pool()
        results = pool.imap({"args": [what, 2]} for what in ("square", "refuse", "square"))
        self.assertEqual(next(results), 4)
        with self.assertRaises(Refusal):
            next(results)
        self.assertEqual(list(results), [4])

    def test_arguments_that_do_not_pickle_fail_here(self):
        pool = self.pool()
        with self.assertRaises(TypeError):
            pool.map([{"args": ["echo", threading.Lock()]}])
        self.assertEqual(pool.starmap([("square", 2)]), [4])

    def test_a_failing_generator_ends_the_call(self):
        def items():
            yield {"args": ["square", 1]}
            raise LookupError("no more")

        pool = self.pool()
        with self.assertRaises(LookupError):
            pool.map(items())
        self.assertEqual(pool.starmap([("square", 2)]), [4])

    def test_harm_in_user_code_stays_there(self):
        pool = self.pool()
        self.assertEqual(pool.starmap([("fork", 5), ("stdin", None), ("square", 2)]), [5, "", 4])
        self.assertEqual(pool.starmap([("processes", 3)]), [[3, 2, 1]])

    def test_futures(self):
        pool = self.pool(init=self.here())
        futures = [pool.submit("square", value=i) for i in range(500)]
        self.assertEqual([future.result(20) for future in futures], [i * i for i in range(500)])
        chained = concurrent.futures.Future()
        again = lambda done: pool.submit("echo", done.result()).add_done_callback(lambda f: chained.set_result(f.result()))
        pool.submit("square", 3).add_done_callback(again)
        self.assertEqual(chained.result(20), 9)
        with self.assertRaises(Refusal):
            pool.submit("refuse", 1).result(20)
        waiting = pool.submit("wait_for", "never")
        self.assertTrue(waiting.cancel())
        open(os.path.join(self.host.directory, "never"), "w").close()

    def test_threads_share_a_pool_and_a_program_has_several(self):
        pools = [self.pool() for _ in range(2)]
        errors = []

        def work(pool, number):
            try:
                self.assertEqual(pool.starmap(("square", i) for i in range(300)), [i * i for i in range(300)])
                self.assertEqual(list(pool.imap({"args": ["echo", i]} for i in range(300))), list(range(300)))
                self.assertEqual(pool.submit("echo", number).result(20), number)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(pools[i % 2], i)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(errors, [])

    def test_a_slow_reader_bounds_what_is_taken(self):
        taken = 0

        def endless():
            nonlocal taken
            while True:
                taken += 1
                yield {"args": ["echo", taken]}

        results = self.pool().imap(endless())
        for expected in range(1, 3001):
            self.assertEqual(next(results), expected)
            self.assertLessEqual(taken - expected, _calls.WINDOW_ITEMS + 1)
        results.close()
        taken = 0
        large = self.pool().imap_unordered({"args": ["make", 4 << 20]} for _ in iter(int, 1))
        for _ in range(20):
            self.assertEqual(len(next(large)), 4 << 20)
        self.assertLessEqual(large.taken - large.read, _calls.WINDOW_BYTES // (4 << 20) + 3)
        large.close()

    def test_large_payloads_both_ways(self):
        pool = self.pool()
        data = os.urandom(3 << 20)
        self.assertEqual(pool.starmap([("echo", data), ("size", bytearray(data))]), [data, len(data)])
        self.assertEqual(len(pool.starmap([("make", 100 << 20)])[0]), 100 << 20)

    def test_arrays_travel_beside_the_pickle(self):
        try:
            import numpy
        except ImportError:
            print("SKIPPED: no numpy")
            return
        array = numpy.arange(1 << 20)
        (back,) = self.pool().starmap([("echo", array)])
        self.assertTrue((back == array).all())
        back[0] = 1

    def test_a_closed_pool_says_so(self):
        pool = self.pool()
        waiting = pool.submit("wait_for", "never")
        pool.close()
        pool.close()
        with self.assertRaisesRegex(nodectl.PoolError, "closed"):
            waiting.result(20)
        with self.assertRaisesRegex(nodectl.PoolError, "closed"):
            pool.map([1])

    def test_an_interrupted_map_leaves_the_pool_as_it_was(self):
        def interrupt(*_):
            raise KeyboardInterrupt

        pool = self.pool(init=self.here())
        pool.wait_for_workers(2, 20)
        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with self.assertRaises(KeyboardInterrupt):
            pool.map([{"args": ["wait_for", "go"]}] * 3)
        open(os.path.join(self.host.directory, "go"), "w").close()
        self.assertEqual(pool.starmap(("square", i) for i in range(100)), [i * i for i in range(100)])

    def test_futures_end_beside_one_who_waits_for_workers(self):
        pool = self.pool()
        pool.wait_for_workers(2, 20)
        waited = []

        def wait_for_more(seconds):
            waited.append(pool.wait_for_workers(10**6, seconds))

        def waiting(seconds):
            thread = threading.Thread(target=wait_for_more, args=(seconds,))
            thread.start()
            # From now on it reads what comes for everybody.
            until = time.monotonic() + 20
            while pool._engine._driver != _engine._CALLER and time.monotonic() < until:
                time.sleep(0.001)
            return thread

        thread = waiting(3.0)
        self.assertEqual(pool.submit("square", 3).result(20), 9)
        self.assertEqual(waited, [])
        thread.join()
        # One that gives up before the answer is here, and nobody else reads then.
        thread = waiting(0.05)
        future = pool.submit("nap", 0.3)
        thread.join()
        future.result(20)
        self.assertEqual(waited, [False, False])

    def test_close_in_another_thread_ends_a_map(self):
        pool = self.pool(init=self.here())
        raised = []

        def work():
            try:
                pool.map([{"args": ["wait_for", "never"]}])
            except nodectl.PoolError as error:
                raised.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        pool.wait_for_workers(1, 20)
        pool.close()
        thread.join(20)
        self.assertEqual(len(raised), 1)

    def test_the_children_of_a_fork_have_no_pools(self):
        pool = self.pool()
        self.assertEqual(pool.starmap([("square", 2)]), [4])
        child = os.fork()
        if child == 0:
            try:
                pool.map([1])
            except nodectl.PoolError:
                os._exit(7)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        self.assertEqual(pool.starmap([("square", 3)]), [9])


class Updates(Base):
    def test_every_worker_gets_each_update_once_and_in_order(self):
        pool = self.pool(init=self.here())
        pool.wait_for_workers(2, 20)
        for number in range(100):
            pool.update_workers({"args": [number]})
        for seen in pool.starmap([("seen", None)] * 20):
            self.assertEqual(seen, list(range(100)))
        # Its worker is replaced by one that gets all of them.
        pool.starmap([("die_once", "a")])
        for seen in pool.starmap([("seen", None)] * 20):
            self.assertEqual(seen, list(range(100)))

    def test_a_snapshot_stands_for_the_updates_before_it(self):
        pool = self.pool(init=self.here())
        pool.wait_for_workers(2, 20)
        pool.update_workers(1)
        pool.update_workers(2)
        pool.snapshot("1+2")
        pool.update_workers(3)
        self.assertEqual(pool.starmap([("seen", None)]), [[1, 2, 3]])
        self.host.kill()
        self.host.restart()
        self.assertEqual(pool.starmap([("seen", None)]), [["1+2", 3]])

    def test_updates_between_results(self):
        pool = self.pool()
        results = []
        for result in pool.imap_unordered({"args": ["square", i]} for i in range(200)):
            results.append(result)
            pool.update_workers(result)
        self.assertEqual(sorted(results), [i * i for i in range(200)])
        self.assertEqual(pool.starmap([("seen", None)]), [results])

    def test_a_failed_update_is_a_warning(self):
        pool = self.pool()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pool.wait_for_workers(2, 20)
            pool.update_workers("bad")
            self.assertEqual(pool.starmap([("seen", None)] * 8), [[]] * 8)
            pool._engine.wait(lambda: bool(caught) or pool._engine._warnings, 20)
        self.assertIs(caught[0].category, nodectl.UpdateFailed)
        self.assertIn("a bad update", str(caught[0].message))


class Deaths(Base):
    def test_a_task_whose_worker_dies_is_tried_again(self):
        pool = self.pool(init=self.here())
        calls = [("die_once", "x%d" % i) if i % 40 == 7 else ("square", i) for i in range(200)]
        expected = ["alive" if what == "die_once" else value * value for what, value in calls]
        self.assertEqual(pool.starmap(calls), expected)

    def test_a_task_that_ends_every_worker_is_given_up(self):
        pool = self.pool()
        results = pool.imap({"args": [what, 3]} for what in ("square", "die", "square"))
        self.assertEqual(next(results), 9)
        with self.assertRaises(nodectl.WorkerLost):
            next(results)
        self.assertEqual(next(results), 9)

    def test_a_class_that_fails_everywhere_ends_the_pool(self):
        class Broken:
            def __init__(self):
                raise OSError("no data set")

        pool = self.pool(Broken)
        future = pool.submit()
        with self.assertRaisesRegex(nodectl.PoolError, "no data set"):
            pool.map([1])
        with self.assertRaisesRegex(nodectl.PoolError, "no data set"):
            future.result(20)

    def test_the_node_dies_and_comes_back(self):
        pool = self.pool(init=self.here(start=1))
        old = pool.job
        pool.update_workers("u")
        results = pool.imap({"args": ["wait_for", "go"]} if i == 30 else {"args": ["square", i]} for i in range(100))
        seen = [next(results) for _ in range(20)]
        future = pool.submit("wait_for", "go")
        large = pool.submit("size", bytes(3 << 20))
        self.host.kill()
        self.host.restart()
        open(os.path.join(self.host.directory, "go"), "w").close()
        seen += results
        self.assertEqual(seen, ["go" if i == 30 else i * i for i in range(100)])
        self.assertEqual((future.result(20), large.result(20)), ("go", 3 << 20))
        self.assertEqual(self.host.requests[-1]["replaces"], old)
        self.assertEqual(pool.starmap([("seen", None)]), [["u"]])


class Sizes(unittest.TestCase):
    def test_memory_is_bytes_or_a_text_as_in_job_files(self):
        sizes = [_sizes.size(given) for given in (5, 0, "7", "2 GiB", "500MB", "1.5 kB")]
        self.assertEqual(sizes, [5, 0, 7, 2 << 30, 500_000_000, 1500])
        for bad in ("x", "", "2 XB", "GiB", "-1", -1, 1.5, True):
            with self.assertRaises(ValueError):
                nodectl.Pool(Worker, memory=bad)


class Functions(Base):
    def test_an_executor_is_a_drop_in(self):
        offset = 10
        with nodectl.Executor() as executor:
            self.assertEqual(list(executor.map(lambda x, y: x + y + offset, range(300), range(300))), [2 * i + 10 for i in range(300)])
            self.assertEqual(executor.submit(pow, 2, 5).result(20), 32)
            self.assertEqual(executor.submit(sorted, [2, 1], reverse=True).result(20), [2, 1])
            futures = [executor.submit(lambda x: x * offset, i) for i in range(20)]
            done = concurrent.futures.as_completed(futures, 20)
            self.assertEqual(sorted(future.result() for future in done), [i * 10 for i in range(20)])
            with self.assertRaises(ZeroDivisionError):
                list(executor.map(lambda x: 1 // x, [1, 0]))
        with self.assertRaises(RuntimeError):
            executor.submit(pow, 2, 5)

    def test_an_executor_initializes_its_workers(self):
        with nodectl.Executor(initializer=lambda value: setattr(sys, "marked", value), initargs=(5,)) as executor:
            self.assertEqual(executor.submit(lambda: sys.marked).result(20), 5)

    def test_a_timeout_of_map(self):
        with nodectl.Executor() as executor:
            with self.assertRaises(concurrent.futures.TimeoutError):
                next(executor.map(lambda x: time.sleep(x), [30], timeout=0.2))
            executor.shutdown(wait=False)


class Nodes(unittest.TestCase):
    def test_no_node_and_no_program_is_an_error_with_a_hint(self):
        program = "import nodectl\nnodectl.Pool(object)"
        env = {**os.environ, "NODECTL": "/nonexistent/nodectl", "NODECTL_NODE__DATA_DIR": "/nonexistent"}
        ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
        self.assertIn("NodeError: NODECTL names /nonexistent/nodectl, which is not there\nhint:", ended.stderr)

    def test_the_data_directory_is_the_command_lines(self):
        with unittest.mock.patch.dict(os.environ, {"HOME": "/h"}, clear=True):
            self.assertEqual(_node.data_dir(), "/h/.local/share/nodectl")
            os.environ["XDG_DATA_HOME"] = "/d"
            self.assertEqual(_node.data_dir(), "/d/nodectl")
            os.environ["STATE_DIRECTORY"] = "/s:/t"
            self.assertEqual(_node.data_dir(), "/s")
            os.environ["NODECTL_NODE__DATA_DIR"] = "/n"
            self.assertEqual(_node.data_dir(), "/n")


if __name__ == "__main__":
    unittest.main()
