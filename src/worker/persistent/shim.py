"""The worker process on a node: makes one instance of the user's class and calls it, as `wire/frames.rs` says.

Embedded in the binary and started as `PYTHON -u shim.py`; needs nothing but the standard library of Python 3.9. It owns one
stream to its node and knows nothing of jobs, retries or other workers. When the stream ends it ends at once.

The main thread reads, runs and answers. A second one, the watcher, sleeps until the stream ends, or until answers that
wait behind a long task are to be sent.
"""

import atexit
import faulthandler
import importlib
import importlib.util
import inspect
import io
import json
import math
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import types

INIT, UPDATE, RUN, EXIT = 1, 2, 3, 4
RELEASE = 37
HELLO, READY, INIT_FAILED, DONE, FAILED, UPDATE_FAILED = 16, 17, 18, 19, 20, 21
MORE = 1
HEADER = struct.Struct("<BBxxIQ")
MAX_CHUNK_BYTES = 1 << 20

# Answers of short tasks share a system call, but none waits for long.
BATCH_BYTES = 64 << 10
BATCH_SECONDS = 1e-3
# How often the watcher looks for answers that wait behind a long task, and how often in vain until it sleeps.
TICK_MS = 10
IDLE_TICKS = 50
# Larger buffers (arrays) travel beside the pickle and are not copied into it.
OUT_OF_BAND_BYTES = 64 << 10
# The first byte of a payload that has buffers after the pickle; a pickle begins with 0x80.
BUFFERS = 1
# The first byte of a payload that is not pickled: `bytes` as they are, the value or the only argument.
RAW = 2
LENGTH = struct.Struct("<Q")
# How the process ends whose stream ended without EXIT, or that has had all the tasks that one worker gets: its task ran too long, or
# its node is gone. Unlike 0 it says that a worker is still wanted (EX_TEMPFAIL of sysexits.h).
CUT_OFF = 75
# Not empty in a forked child.
IN_CHILD = []
# The module that pickles name what is ours by.
OWN = "nodectl._main"
OWN_NAME = OWN.encode()


def main():
    path = os.environ.pop("NODECTL_WORKER_SOCKET")
    token = os.environ.pop("NODECTL_WORKER_TOKEN")
    prepare_process()
    sys.modules[OWN].blobs = path, os.environ.pop("NODECTL_BLOBS_TOKEN", "")
    stream = Stream(path)
    stream.send(HELLO, 0, token.encode())
    messages = stream.messages()
    kind, _, payload = next(messages)
    if kind != INIT:
        sys.exit("the node's first frame is of kind %d, not INIT" % kind)
    try:
        line, _, rest = bytes(payload).partition(b"\n")
        init = json.loads(line)
        worker = PoolWorker(init, rest) if init["mode"] == "pool" else CallsWorker(init)
    except BaseException as error:
        stream.send(INIT_FAILED, 0, describe(error))
        stream.flush()
        leave(1)
    del payload, rest
    ready = {"pid": os.getpid(), "python": "%d.%d.%d" % sys.version_info[:3]}
    stream.send(READY, 0, json.dumps(ready).encode())
    status = serve(stream, messages, worker, init.get("max_tasks"))
    stream.flush()
    leave(status)


def prepare_process():
    """What user code may rely on: a standard input that ends, a `__main__` of its own, Ctrl-C for others only."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, lambda *_: None)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    own = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.modules["__main__"].__nodectl_shim__ = own
    sys.argv = [""]
    # The directory of this file is no place for modules; the inputs' is.
    sys.path[0] = os.getcwd()
    sys.meta_path.append(Stubs())
    shared = sys.modules[OWN] = types.ModuleType(OWN)
    shared.main_globals, shared.renewed, shared.loads, shared.same = main_globals, renewed, loads, same
    shared.local = local


def leave(status):
    """Ends the process; threads of the user's do not keep it."""
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        pass
    os._exit(status)


def serve(stream, messages, worker, max_tasks):
    """Obeys until EXIT, or until it has answered so many tasks; what the process ends with."""
    left = max_tasks or -1
    clock, send, run = time.perf_counter, stream.send, worker.run
    began = clock()
    for kind, id, payload in messages:
        if kind == RUN:
            try:
                answer, value = DONE, run(payload)
            except BaseException as error:
                answer, value = FAILED, worker.describe(error)
        elif kind == UPDATE:
            try:
                worker.update(payload)
                answer = None
            except BaseException as error:
                answer, value = UPDATE_FAILED, worker.describe(error)
        elif kind == RELEASE:
            worker.release(bytes(payload))
            answer = None
        elif kind == EXIT:
            return 0
        else:
            raise ValueError("a frame of kind %d" % kind)
        if IN_CHILD:
            os._exit(0)
        payload = None
        if answer is not None:
            send(answer, id, value)
            value = None
            left -= kind == RUN
            if left == 0:
                return CUT_OFF
        # A task that took long: the next one may as well.
        now = clock()
        if now - began > BATCH_SECONDS:
            stream.flush()
            began = clock()


class Stream:
    """Frames to and from the node."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.socket.connect(path)
        self.lock = threading.Lock()
        self.waiting = []
        self.waiting_bytes = 0
        self.ticking = False
        self.wake_read, self.wake_write = os.pipe()
        os.register_at_fork(after_in_child=self.forked)
        threading.Thread(target=self.watch, name="nodectl-watcher", daemon=True).start()

    def forked(self):
        """A child is not the worker, whatever function it returns from."""
        IN_CHILD.append(True)
        self.socket.close()

    def messages(self):
        """Yields (kind, id, payload). A payload is valid until the next one is asked for."""
        buffer = bytearray(MAX_CHUNK_BYTES + (64 << 10))
        view = memoryview(buffer)
        start = end = 0
        partial = {}
        unpack, size = HEADER.unpack_from, HEADER.size
        while True:
            while end - start >= size:
                kind, flags, length, id = unpack(buffer, start)
                stop = start + size + length
                if stop > end:
                    if length > MAX_CHUNK_BYTES:
                        raise ValueError("a frame of %d bytes" % length)
                    break
                payload = view[start + size : stop]
                start = stop
                if flags & MORE:
                    partial.setdefault((kind, id), bytearray()).extend(payload)
                    continue
                if partial and (kind, id) in partial:
                    whole = partial.pop((kind, id))
                    whole += payload
                    payload = whole
                    del whole
                yield kind, id, payload
                payload = None
            if start > 0:
                view[: end - start] = view[start:end]
                start, end = 0, end - start
            self.flush()
            try:
                count = self.socket.recv_into(view[end:])
            except OSError:
                count = 0
            if count == 0:
                os._exit(CUT_OFF)
            end += count

    def send(self, kind, id, payload):
        """Queues a message; bytes, or a list of parts that make up the payload. Large ones are sent at once."""
        if type(payload) is not list:
            length = len(payload)
            if length < BATCH_BYTES:
                self.waiting.append(HEADER.pack(kind, 0, length, id) + payload)
                self.waiting_bytes += length
                if self.waiting_bytes >= BATCH_BYTES:
                    self.flush()
                elif not self.ticking:
                    self.ticking = True
                    os.write(self.wake_write, b"x")
                return
            payload = [payload]
        chunks = chunks_of(payload)
        self.flush()
        with self.lock:
            try:
                for chunk in chunks:
                    flags = MORE if chunk is not chunks[-1] else 0
                    self.send_parts([HEADER.pack(kind, flags, sum(map(len, chunk)), id), *chunk])
            except OSError:
                os._exit(CUT_OFF)

    def send_parts(self, parts):
        sent = self.socket.sendmsg(parts)
        for part in parts:
            if sent < len(part):
                self.socket.sendall(memoryview(part)[sent:])
            sent = max(0, sent - len(part))

    def flush(self):
        """Sends what waits. The watcher calls it too."""
        if not self.waiting:
            return
        with self.lock:
            count = len(self.waiting)
            data = b"".join(self.waiting[:count])
            del self.waiting[:count]
            self.waiting_bytes = 0
            try:
                self.socket.sendall(data)
            except OSError:
                os._exit(CUT_OFF)

    def watch(self):
        """Ends the process when the stream ends; sends what waits behind a long task."""
        poller = select.poll()
        # Nothing but its end: whoever closes one direction may still want answers.
        poller.register(self.socket, 0)
        poller.register(self.wake_read, select.POLLIN)
        idle = IDLE_TICKS
        seen = None
        while True:
            for fd, _ in poller.poll(TICK_MS if idle < IDLE_TICKS else None):
                if fd != self.wake_read:
                    os._exit(CUT_OFF)
                os.read(fd, 64)
                idle = 0
            # Only what waited at the last tick too: the main thread sends whatever it comes to.
            first = self.waiting[0] if self.waiting else None
            if first is None:
                idle += 1
                if idle >= IDLE_TICKS:
                    self.ticking = False
                    idle = 0 if self.waiting else idle
            else:
                idle = 0
                if first is seen:
                    self.flush()
            seen = first


class PoolWorker:
    """The instance of a pool's class. Payloads are pickles that only the pool's client and this read."""

    def __init__(self, init, rest):
        ours = list(sys.version_info[:2])
        if init["python"] != ours:
            theirs = "%d.%d" % tuple(init["python"])
            raise RuntimeError(
                "the pool's program runs Python %s, this worker %d.%d; code cannot be passed between them\n"
                "hint: Pool(..., python='python%s') names the interpreter, which has to be on the nodes"
                % (theirs, *ours, theirs)
            )
        for directory in reversed(init.get("path", [])):
            sys.path.insert(0, os.path.abspath(directory))
        archive, pickled = rest[: init["archive"]], rest[init["archive"] :]
        self.cloudpickle = load_cloudpickle(init["cloudpickle"], archive)
        self.as_json = init.get("results") == "json"
        worker_class, args, kwargs = loads(pickled)
        worker = worker_class(*args, **kwargs)
        self.call = bound_run(worker)
        self.handle_update = getattr(worker, "handle_update", None) or missing("handle_update", worker)
        #: What it is told that the client needs no more. Only classes of ours keep anything.
        self.release = getattr(worker, "handle_release", None) or (lambda _: None)

    def run(self, payload):
        if payload[0] == RAW:
            value = self.call(loads(payload))
        else:
            args, kwargs = loads(payload)
            value = self.call(*args, **kwargs)
        if type(value) is bytes and (self.as_json or len(value) >= OUT_OF_BAND_BYTES):
            return [RAW_BYTES, value]
        if self.as_json:
            return to_json(value)
        return pickle.dumps(value, 5) if type(value) in ATOMS else self.dumps(value)

    def update(self, payload):
        args, kwargs = loads(payload)
        self.handle_update(*args, **kwargs)

    def dumps(self, value):
        """A pickle, or parts if there are large buffers."""
        buffers = []
        keep = in_band(buffers)
        try:
            data = pickle.dumps(value, 5, buffer_callback=keep)
        except Exception:
            del buffers[:]
            data = self.cloudpickle.dumps(value, 5, buffer_callback=keep)
        return with_buffers(data, buffers) if buffers else data

    def describe(self, error):
        """The error's line and, if it survives pickling, the exception."""
        line = describe(error)
        try:
            error.__traceback__ = None
            pickled = self.cloudpickle.dumps(error, 5)
            pickle.loads(pickled)
        except BaseException:
            return line
        return line + pickled


class CallsWorker:
    """The instance of a job's class, `path/module.py:Class`. Payloads are JSON."""

    def __init__(self, init):
        self.home = os.getcwd()
        path, _, name = init["class"].rpartition(":")
        module = load_module(path)
        worker_class = getattr(module, name, None)
        if worker_class is None:
            known = [key for key, value in vars(module).items() if inspect.isclass(value)]
            raise AttributeError("%s has no class %s; it has: %s" % (path, name, ", ".join(known) or "none"))
        arguments = init.get("init") or {}
        worker = worker_class(*arguments.get("args", ()), **arguments.get("kwargs", {}))
        self.call = bound_run(worker)
        self.streams = os.dup(1), os.dup(2)

    def run(self, payload):
        task = json.loads(bytes(payload))
        self.enter(task["dir"], task.get("env") or {})
        try:
            value = self.call(**task["kwargs"])
            return to_json(value)
        except BaseException as error:
            # For whoever reads the task's log.
            if not IN_CHILD:
                os.write(2, format_error(error).encode(errors="replace"))
            raise
        finally:
            if not IN_CHILD:
                self.exit()

    describe = staticmethod(lambda error: describe(error))

    def enter(self, directory, env):
        os.environ.update(env)
        os.chdir(directory)
        for fd, name in ((1, ".nodectl.stdout"), (2, ".nodectl.stderr")):
            log = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, fd)
            os.close(log)

    def exit(self):
        for file in (sys.stdout, sys.stderr):
            try:
                file.flush()
            except (OSError, ValueError, AttributeError):
                pass
        os.dup2(self.streams[0], 1)
        os.dup2(self.streams[1], 2)
        os.chdir(self.home)


def bound_run(worker):
    """`worker.run`; also one that was written without `self`, when the class names it elsewhere."""
    run = getattr(worker, "run", None)
    if run is None:
        return missing("run", worker)
    function, init = getattr(run, "__func__", None), getattr(type(worker).__init__, "__code__", None)
    if isinstance(function, types.FunctionType) and getattr(run, "__self__", None) is worker and init is not None:
        first = function.__code__.co_varnames[: function.__code__.co_argcount][:1]
        if first != ("self",) and init.co_varnames[:1] == ("self",):
            return function
    return run


def missing(method, worker):
    def fail(*_, **__):
        raise AttributeError("%s has no method %s" % (type(worker).__name__, method))

    return fail


def load_module(path):
    """Imports a file of the inputs, as a member of its packages if it is in some."""
    full = os.path.abspath(path)
    if not os.path.isfile(full):
        raise FileNotFoundError("no file %s among the job's inputs" % path)
    top, name = os.path.dirname(full), os.path.splitext(os.path.basename(full))[0]
    while os.path.isfile(os.path.join(top, "__init__.py")):
        top, package = os.path.split(top)
        name = package + "." + name
    if top not in sys.path:
        sys.path.insert(0, top)
    if "." in name:
        return importlib.import_module(name)
    # Not by its name: it may be that of a module of the standard library.
    spec = importlib.util.spec_from_file_location(name, full)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_cloudpickle(version, archive):
    """The client's cloudpickle: the one installed here if it is the same, else the one that came along (a zip)."""
    try:
        import cloudpickle

        if cloudpickle.__version__ == version:
            return cloudpickle
        for name in [name for name in sys.modules if name.partition(".")[0] == "cloudpickle"]:
            del sys.modules[name]
    except ImportError:
        pass
    path = os.path.abspath(".nodectl-cloudpickle.zip")
    with open(path, "wb") as file:
        file.write(archive)
    sys.path.insert(0, path)
    try:
        import cloudpickle
    finally:
        sys.path.remove(path)
    return cloudpickle


class WorkerInterface:
    """The interface of workers, for sources that derive from it."""

    def run(self, *args, **kwargs):
        raise NotImplementedError("the worker class has no method run")

    def handle_update(self, *args, **kwargs):
        raise NotImplementedError("the worker class has no method handle_update")


# Where the real one is, too.
WorkerInterface.__module__ = "nodectl"


class Stubs:
    """Modules of the client's side, where they are not installed: users' sources import them together with their workers."""

    PACKAGES = {"nodectl", "distributed_computing", "ludwigcluster"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.PACKAGES:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.WorkerInterface = WorkerInterface
        module.DEFAULT_PORT = 8899
        module.remote = remote
        module.__getattr__ = unavailable


def same(value):
    """What a pickle has in the place of something that is of use to the client only. Pickles refer to this."""
    return value


def local(function):
    """A function whose calls run on nodes: that is here. Pickles refer to this."""
    try:
        function.remote = no_calls
    except (AttributeError, TypeError):
        pass  # A builtin one has no room for that.
    return function


#: For whoever looks for the cluster in a worker. `packaging/python/nodectl/_node.py` says the same.
HINT = "hint: call the function itself, f(x), which then runs here; or return what comes next, and start that in the program"


def no_calls(*_, **__):
    raise RuntimeError("a worker cannot make calls: only its program can\n" + HINT)


def remote(function=None, **_):
    """Functions of users' modules whose calls run on nodes."""
    return local if function is None else local(function)


def unavailable(name):
    if name.startswith("__"):
        raise AttributeError(name)

    class Unavailable:
        def __init__(self, *_, **__):
            raise RuntimeError("nodectl.%s is not there in a worker: only its program has it\n%s" % (name, HINT))

    return Unavailable


ATOMS = frozenset((type(None), bool, int, float, str))
RAW_BYTES = bytes([RAW])


def in_band(buffers):
    """A `buffer_callback` that sets large buffers aside."""

    def keep(buffer):
        view = memoryview(buffer)
        if view.nbytes < OUT_OF_BAND_BYTES or not view.contiguous:
            return True
        buffers.append(buffer.raw())
        return False

    return keep


def with_buffers(data, buffers):
    """The parts of a payload: lengths, pickle, buffers."""
    parts = [data, *buffers]
    lengths = b"".join(LENGTH.pack(memoryview(part).nbytes) for part in parts)
    return [bytes([BUFFERS]) + LENGTH.pack(len(parts)) + lengths, *parts]


def chunks_of(parts):
    """The parts of a payload, cut and put together again to chunks: lists of views."""
    chunks, room = [[]], MAX_CHUNK_BYTES
    for part in parts:
        view = memoryview(part).cast("B")
        while len(view):
            if room == 0:
                chunks.append([])
                room = MAX_CHUNK_BYTES
            chunks[-1].append(view[:room])
            taken = len(chunks[-1][-1])
            view, room = view[taken:], room - taken
    return chunks


def main_globals():
    """The variables of the program's main module. Pickles refer to this."""
    return vars(sys.modules["__main__"])


# Of those variables the program's values, as they came last.
PROGRAMS = {}


def renewed(variables):
    """Those of the program's variables that replace the ones here: all but those that code of the worker has set. Pickles of
    functions refer to this."""
    here = main_globals()
    new = {
        name: value
        for name, value in variables.items()
        if name not in here or (name in PROGRAMS and here[name] is PROGRAMS[name])
    }
    PROGRAMS.update(new)
    return new


class ClassKeeper(pickle.Unpickler):
    """Classes that travel by value come with each task that names them; they are made of the first, and keep their state then.

    What is ours is found without an import, which would run the client's package where that is installed: more than all the rest
    of a worker's start."""

    def __init__(self, file, buffers):
        super().__init__(file, buffers=buffers)
        # By their ids. Held: a class that is collected meanwhile would be made anew, and lack its state.
        self.known = {}

    def find_class(self, module, name):
        if module == OWN:
            return getattr(sys.modules[OWN], name)
        found = super().find_class(module, name)
        if name in ("_make_skeleton_class", "_make_skeleton_enum"):
            return lambda *args: self.skeleton(found, args)
        if name == "_class_setstate":
            return lambda made, state: made if id(made) in self.known else found(made, state)
        return found

    def skeleton(self, make, args):
        # The tracker's id is the argument before the last.
        known = sys.modules[make.__module__]._DYNAMIC_CLASS_TRACKER_BY_ID.get(args[-2])
        if known is not None:
            self.known[id(known)] = known
        return make(*args)


def unpickle(data, buffers=()):
    # Only classes that travel by value, and what is ours, need more care, which costs time.
    whole = bytes(data) if type(data) is memoryview else data
    if b"_make_skeleton_" in whole or OWN_NAME in whole:
        return ClassKeeper(io.BytesIO(data), buffers).load()
    return pickle.loads(data, buffers=buffers)


def loads(payload):
    """The object of a payload. Buffers stay where they arrived."""
    if payload[0] == RAW:
        return bytes(memoryview(payload)[1:])
    if payload[0] != BUFFERS:
        return unpickle(payload)
    return from_buffers(memoryview(payload if isinstance(payload, bytearray) else bytearray(payload)))


def from_buffers(view):
    """The same of a payload with buffers, in memory that stays as it is."""
    (count,) = LENGTH.unpack_from(view, 1)
    at = 1 + LENGTH.size * (count + 1)
    parts = []
    for index in range(count):
        (length,) = LENGTH.unpack_from(view, 1 + LENGTH.size * (index + 1))
        parts.append(view[at : at + length])
        at += length
    return unpickle(parts[0], parts[1:])


def to_json(value):
    try:
        text = json.dumps(value, allow_nan=False, default=plain)
    except ValueError:
        # JSON has no numbers beside the finite ones.
        text = json.dumps(finite(json.loads(json.dumps(value, default=plain))))
    return text.encode()


def plain(value):
    """Numbers and arrays of other libraries, paths and sets as JSON has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(
        "run returned an object of type %s, which JSON has no form for\n"
        "hint: return numbers, texts, lists and dictionaries; write the rest to a file and name it in `outputs`"
        % type(value).__name__
    )


def finite(value):
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return value


def format_error(error):
    """The traceback without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def describe(error):
    """An error as a line of JSON."""
    try:
        message, text = str(error), format_error(error)
    except BaseException:
        message, text = "(an error that cannot be shown)", ""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "." + kind.__qualname__
    return json.dumps({"type": name, "message": message, "traceback": text}).encode() + b"\n"


if __name__ == "__main__":
    main()
