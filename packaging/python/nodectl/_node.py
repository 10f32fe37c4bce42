"""The node on this machine: where it answers, talking HTTP to it, starting one that ends with this process."""

from __future__ import annotations

import atexit
import functools
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ._errors import NodeError

#: Of this package, and of the program that it starts.
VERSION = "0.1.0"
DEFAULT_PORT = 8899
UPGRADE = "nodectl-pool/1"
_LOCAL = (None, "", "localhost", "127.0.0.1", "::1")
# How long a node that was lost may take to come back by itself.
_RETURN_SECONDS = 5.0
# How long a node that another program is starting may take.
_RIVAL_SECONDS = 5.0
# How long a node of ours may take to find the cluster.
_MEET_SECONDS = 5.0
# How long a node may take to leave.
_STOP_SECONDS = 10.0
_READ_BYTES = 1 << 16
# What to do about refusals, by their beginnings: the node's own hints are for whoever writes a job file.
_HINTS: Dict[str, Optional[str]] = {
    "the job can never run": "ask for less (`nodectl nodes` shows what nodes have), or add a machine that has as much",
    "the job is not valid": None,
}
# Through one of these a program speaks to a GPU: any one, NVIDIA's, that of Windows below WSL.
_GPU_DEVICES = ("/dev/dri", "/dev/nvidiactl", "/dev/dxg")


def binary() -> str:
    """The `nodectl` program, as `_find_binary`. Fails if it is of another version than the package."""
    found = _find_binary()
    _check_version(found)
    return found


def _find_binary() -> str:
    """The program that NODECTL names, or that came with this package, or in PATH, or in ~/.local/bin."""
    named = os.environ.get("NODECTL")
    found = named or _own_binary() or shutil.which("nodectl") or shutil.which("nodectl", path=os.path.expanduser("~/.local/bin"))
    if not found or not os.path.exists(found):
        where = "NODECTL names %s, which is not there" % named if named else "there is no nodectl in PATH"
        raise NodeError("%s\nhint: install it, or set the variable NODECTL to the program's path" % where)
    return found


def _own_binary() -> Optional[str]:
    """The program that a wheel put beside this package: where its scripts went, by one of pip's schemes or with `--target`."""
    modules = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for scheme in (None, "posix_prefix", "posix_local", "posix_user"):
        try:
            paths = sysconfig.get_paths(scheme) if scheme else sysconfig.get_paths()
        except KeyError:
            continue
        if modules in (os.path.abspath(paths["purelib"]), os.path.abspath(paths["platlib"])):
            found = shutil.which("nodectl", path=paths["scripts"])
            if found:
                return found
    return shutil.which("nodectl", path=os.path.join(modules, "bin"))


@functools.lru_cache(maxsize=None)
def _check_version(program: str) -> None:
    try:
        said = subprocess.run([program, "--version"], stdout=subprocess.PIPE, check=False).stdout.decode(errors="replace").split()
    except OSError as error:
        raise NodeError("%s does not start: %s\nhint: set the variable NODECTL to the path of a program that does" % (program, error)) from None
    version = said[-1] if said[:1] == ["nodectl"] else None
    if version != VERSION:
        text = (
            "%s is %s, and this Python package (%s) is nodectl %s\n"
            "hint: pip install nodectl-%s-*.whl, or NODECTL names a program of version %s"
        )
        is_of = "nodectl %s" % version if version else "no nodectl"
        raise NodeError(text % (program, is_of, os.path.dirname(__file__), VERSION, version or VERSION, VERSION))


def data_dir() -> str:
    """The directory of this machine's node, as the command line finds it: settings files, variables, defaults."""
    given = os.environ.get("NODECTL_NODE__DATA_DIR")
    if given:
        return given
    config = _xdg("XDG_CONFIG_HOME", ".config")
    files = ["/etc/nodectl/nodectl.toml", config and os.path.join(config, "nodectl/nodectl.toml"), "nodectl.toml"]
    if any(path and os.path.exists(path) for path in files):
        shown = subprocess.run([binary(), "config", "show", "--json"], stdout=subprocess.PIPE, check=False)
        try:
            for line in json.loads(shown.stdout):
                if line["key"] == "node.data_dir":
                    return str(json.loads(line["value"]))
        except (ValueError, KeyError, TypeError):
            raise NodeError("`nodectl config show --json` does not say where the node is\nhint: run it yourself") from None
    service = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    data = _xdg("XDG_DATA_HOME", ".local/share")
    return service or (os.path.join(data, "nodectl") if data else "/var/lib/nodectl")


def _xdg(variable: str, below_home: str) -> Optional[str]:
    given, home = os.environ.get(variable, ""), os.environ.get("HOME", "")
    if given.startswith("/"):
        return given
    return os.path.join(home, below_home) if home.startswith("/") else None


def socket_path() -> str:
    """Where the node of this machine answers, if one runs."""
    return os.path.join(data_dir(), "api.sock")


def connect(path: str) -> socket.socket:
    """A connection to the node at this socket. Fails with OSError if none answers, with NodeError in a worker."""
    _refuse_in_workers()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_in_workers() -> None:
    """Tasks are kept from their node, and one that a worker started would take the cores of others' tasks."""
    if hasattr(sys.modules.get("__main__"), "__nodectl_shim__"):
        raise NodeError(
            "a worker cannot open pools, submit jobs or make calls: only its program can\n"
            "hint: call the function itself, f(x), which then runs here; or return what comes next, and start that in the program"
        )


def is_running() -> bool:
    """Whether a node answers on this machine."""
    try:
        connect(socket_path()).close()
    except OSError:
        return False
    return True


def request(
    path: str,
    method: str,
    target: str,
    body: Any = b"",
    length: Optional[int] = None,
    kind: str = "application/octet-stream",
    asked_before: int = 0,
) -> Any:
    """The JSON answer of the node's API. `body` is bytes of that kind, or a binary file of `length` bytes. `asked_before`: how often a
    submission was asked for before, with its key. Fails with NodeError if the node refuses, with OSError if it is not there."""
    connection = connect(path)
    with connection:
        size = len(body) if length is None else length
        headers = "Connection: close\r\nContent-Type: %s\r\nContent-Length: %d" % (kind, size)
        if asked_before:
            headers += "\r\nNodectl-Asked-Before: %d" % asked_before
        connection.sendall(_head(method, target, headers))
        if length is None:
            # Not if it is empty: the node may have answered already, and closed the connection.
            if body:
                connection.sendall(body)
        elif length:
            connection.sendfile(body, count=length)
        with connection.makefile("rb") as reader:
            status, said = _read_head(reader)
            answer = b"".join(_body(reader, said))
    return _answer(status, answer)


def pieces(path: str, target: str) -> Iterator[bytes]:
    """The bytes that the node answers with, as they come. Fails as `request`."""
    connection = connect(path)
    with connection:
        connection.sendall(_head("GET", target, "Connection: close"))
        with connection.makefile("rb") as reader:
            status, headers = _read_head(reader)
            if not 200 <= status < 300:
                _answer(status, b"".join(_body(reader, headers)))
            yield from _body(reader, headers)


def upgrade(path: str) -> Tuple[socket.socket, bytes]:
    """A stream for a pool, and what of it came along with the answer. Fails as `request`."""
    connection = connect(path)
    try:
        connection.sendall(_head("POST", "/v1/pools", "Connection: Upgrade\r\nUpgrade: %s\r\nContent-Length: 0" % UPGRADE))
        answer = b""
        while b"\r\n\r\n" not in answer:
            more = connection.recv(4096)
            if not more:
                raise ConnectionResetError("the node closed the connection")
            answer += more
        head, _, early = answer.partition(b"\r\n\r\n")
        if head.split(None, 2)[1] == b"101":
            return connection, early
        status, headers = _read_head(io.BytesIO(answer))
        while len(early) < int(headers.get("content-length", 0)):
            more = connection.recv(4096)
            if not more:
                break
            early += more
        _answer(status, early)
        raise NodeError("the node does not serve pools (it answered %d)\nhint: is it of an older version?" % status)
    except BaseException:
        connection.close()
        raise


def _head(method: str, target: str, headers: str) -> bytes:
    return ("%s %s HTTP/1.1\r\nHost: nodectl\r\n%s\r\n\r\n" % (method, target, headers)).encode()


def _read_head(reader: Any) -> Tuple[int, Dict[str, str]]:
    first = reader.readline().split(None, 2)
    if len(first) < 2 or not first[1].isdigit():
        raise ConnectionResetError("the node closed the connection")
    headers: Dict[str, str] = {}
    while True:
        line = reader.readline().decode("latin-1").strip()
        if not line:
            return int(first[1]), headers
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip().lower()


def _body(reader: Any, headers: Dict[str, str]) -> Iterator[bytes]:
    is_chunked = headers.get("transfer-encoding") == "chunked"
    while True:
        if is_chunked:
            size = int(reader.readline().split(b";")[0] or b"0", 16)
            piece = reader.read(size)
            reader.readline()
        else:
            piece = reader.read1(_READ_BYTES)
        if not piece:
            return
        yield piece


def _answer(status: int, body: bytes) -> Any:
    if 200 <= status < 300:
        return json.loads(body) if body else None
    try:
        problem = json.loads(body)
        hint = _HINTS.get(problem["error"].partition(":")[0], problem.get("hint"))
        text = problem["error"] + ("\nhint: " + hint if hint else "")
    except (ValueError, KeyError, TypeError):
        text = "the node answered %d: %s" % (status, body[:400].decode(errors="replace"))
    if status in (503, 504):
        # It leaves, or only begins; or nobody who knows has answered yet.
        raise ConnectionAbortedError(text)
    raise NodeError(text)


class NodeProcess:
    """A node that this process started; it ends when this process does, however that is. Nothing waits for it before `greeting` is
    asked for."""

    def __init__(self, arguments: List[str], secret: Optional[str], settings: Dict[str, str]) -> None:
        environment = {**os.environ, **settings}
        if secret is not None:
            environment["NODECTL_SECRET"] = secret
            # Programs brought their own passwords before there was nodectl: these are warned about, and used.
            environment["NODECTL_CLUSTER__WEAK_SECRET"] = "true"
        self.log = tempfile.TemporaryFile()
        self._program = _find_binary()
        try:
            # In a session of its own: Ctrl-C is for this program to handle.
            self.process = subprocess.Popen(
                [self._program, "--expect-version", VERSION, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                env=environment,
                start_new_session=True,
            )
        except OSError:
            _check_version(self._program)
            raise
        # A forked child must not keep the node when this process is gone.
        stdin = self.process.stdin
        assert stdin is not None
        os.register_at_fork(after_in_child=stdin.close)
        self._looking = threading.Lock()
        self._knows_gpus = arguments[0] != "solo"

    @functools.cached_property
    def greeting(self) -> bytes:
        """The first line of its output, which says that it answers; empty if it ended instead."""
        return self._read_line()

    def wait_for_gpus(self) -> None:
        """Returns when the node knows its GPUs, which takes as long as their drivers take; members of clusters may learn of more at any
        time."""
        with self._looking:
            if not self._knows_gpus and self.greeting:
                # The node says so in its second line.
                self._read_line()
                self._knows_gpus = True

    def _read_line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def failure(self) -> str:
        """Why it does not answer. Fails if it is no program of this package's version."""
        self.stop()
        _check_version(self._program)
        self.log.seek(0)
        return self.log.read()[-2000:].decode(errors="replace").strip()

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def stop(self) -> None:
        """Makes the node leave; returns when it has."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait(self) -> None:
        """Returns when the node has ended."""
        self.process.wait()


class LocalNode:
    """The node that pools of this process use, and what to do when there is none."""

    def __init__(self, password: Optional[str], address: Optional[str], port: Optional[int]) -> None:
        self.password = None if password is None else str(password)
        self.peer = None if address in _LOCAL else "%s:%d" % (_bracketed(str(address)), port or DEFAULT_PORT)
        self.path = socket_path()
        self._was_alone = False
        self._coming: Optional[NodeProcess] = None

    def begin(self) -> None:
        """Has a node start if none runs, and does not wait for it: `open` does."""
        global _own
        with _starting:
            if not is_running() and (_own is None or _own.has_ended()):
                self._coming = _own = self._spawn(again=False)

    def open(self, again: bool) -> Tuple[socket.socket, bytes, bool]:
        """A stream for a pool from the node that runs or that is started now, what came along, and whether the node works
        alone. `again` for a pool whose node was lost. Fails with NodeError or OSError."""
        try:
            if self._coming is not None:
                self._make_run(again=False, returns=False)
            stream, early = upgrade(self.path)
        except OSError:
            # One that worked alone, and was another program's, has ended with that.
            self._make_run(again, returns=not self._was_alone)
            stream, early = upgrade(self.path)
        try:
            self._was_alone = bool(request(self.path, "GET", "/v1/node").get("solo"))
            if self._was_alone and self.peer:
                raise NodeError(
                    "the node of this machine works alone, for another program: there is no way to the cluster at %s\n"
                    "hint: end that program first, or make this machine a node of the cluster: `nodectl join`" % self.peer
                )
        except BaseException:
            stream.close()
            raise
        return stream, early, self._was_alone

    def make_run(self) -> None:
        """Returns when a node answers: one is started if there is none. Fails with NodeError if none can be."""
        if not is_running():
            self._make_run(again=False, returns=False)

    def make_run_again(self) -> None:
        """The same of a node that answered before."""
        if not is_running():
            self._make_run(again=True, returns=True)

    def _make_run(self, again: bool, returns: bool) -> None:
        """Returns when a node answers. `returns`: one that was lost may come back by itself."""
        if again and returns and _own is None:
            # Somebody else's node: whoever keeps it may start it again.
            _wait_for_return()
        with _starting:
            problem = None if self._coming is None and is_running() else self._start(again)
        # Another program may have been faster: its node answers soon.
        deadline = time.monotonic() + _RIVAL_SECONDS
        while problem and not is_running():
            if time.monotonic() > deadline:
                raise NodeError("no node answers at %s, and none could be started: %s" % (self.path, problem))
            time.sleep(0.02)

    def _start(self, again: bool) -> Optional[str]:
        """Returns when a node has started, the one that was to begin or another. Why that failed, if it did."""
        global _own
        node, self._coming = self._coming or self._spawn(again), None
        if not node.greeting or not os.path.exists(self.path):
            if _own is node:
                _own = None
            return node.failure()
        if _own is not None and _own is not node:
            _own.stop()
        _own = node
        if self.peer and not again:
            self._meet(self.peer)
        return None

    def _spawn(self, again: bool) -> NodeProcess:
        is_member = again and os.path.exists(os.path.join(os.path.dirname(self.path), "secret"))
        arguments, settings = ["solo"], {}  # type: List[str], Dict[str, str]
        if self.password is not None or self.peer is not None or is_member:
            arguments = ["join", "--allow-root", "--while-stdin"]
            if self.peer:
                # This machine is only where the results go to; those that work are there.
                arguments += ["--peer", self.peer]
                settings["NODECTL_NODE__TAKES_WORK"] = "false"
        return NodeProcess(arguments, self.password, settings)

    def _meet(self, peer: str) -> None:
        """Returns when our node, which does no work itself, has found the cluster. Fails with NodeError if it does not."""
        if meets_others(self.path):
            return
        _stop_own()
        raise NodeError(
            "no node of the cluster was found at %s within %d s\n"
            "hint: a node has to run there, be reachable from here, and have the same password" % (peer, _MEET_SECONDS)
        )


def meets_others(path: str) -> bool:
    """Whether the node at this socket finds another one soon."""
    deadline = time.monotonic() + _MEET_SECONDS
    while time.monotonic() < deadline:
        try:
            members = request(path, "GET", "/v1/nodes")
        except OSError:
            members = []  # It has only just begun.
        if sum(line["alive"] for line in members) > 1:
            return True
        time.sleep(0.05)
    return False


def _wait_for_return() -> None:
    deadline = time.monotonic() + _RETURN_SECONDS
    while time.monotonic() < deadline and not is_running():
        time.sleep(0.05)


def wait_for_gpus() -> None:
    """Before anything is asked of a node of this process that needs a GPU: one that has only just begun would say that it has none."""
    if _own is not None:
        _own.wait_for_gpus()


def may_have_gpus() -> bool:
    """Whether this machine may have one, as far as can be told at once."""
    return any(map(os.path.exists, _GPU_DEVICES)) or any(name.startswith("VK_") for name in os.environ)


_own: Optional[NodeProcess] = None
_starting = threading.Lock()


def _stop_own() -> None:
    if _own is not None:
        _own.stop()


atexit.register(_stop_own)


def _after_fork() -> None:
    global _own, _starting
    _own, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _bracketed(address: str) -> str:
    return "[%s]" % address if ":" in address and not address.startswith("[") else address


def default_python(works_alone: bool) -> str:
    """The interpreter on the nodes: this one if there is only this machine's; elsewhere one of the same version, for code cannot
    be passed between versions."""
    named = os.environ.get("NODECTL_PYTHON")
    if named:
        return named
    return sys.executable if works_alone and sys.executable else "python%d.%d" % sys.version_info[:2]
