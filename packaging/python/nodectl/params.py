"""Parameters that workers share: pull, compute, push.

    import numpy as np
    from nodectl.params import ParameterServer

    server = ParameterServer.connect(optimizer="momentum", rate=0.1)
    weights = server.register({"w": np.zeros((10, 3), "f4")})
    for step in range(100):
        gradient = ...                       # of this worker's share of the data, at weights["w"]
        server.push_pull({"w": gradient})    # weights["w"] is what all workers came to

Started by a job of `kind = "train"`, its workers share the parameters through the nodes that they run on. Started by hand, the same
script trains alone. Arrays are f32; those that `register` returns lie in memory shared with the node, so nothing is copied but by
`push` of an array that lies elsewhere.

With `[checkpoint]` in the job file the nodes keep what was trained: `register` then gives the newest checkpoint's values and `step` its
number, whatever died. `init_from` begins with values of a file, `resume_from` with a checkpoint of another job. Worker 0 leaves
`model.safetensors` in its directory when all have finished.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import sys
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Union

from ._errors import NodeError, needed

try:
    import numpy as np
except ImportError as _error:
    raise needed("nodectl.params", "numpy", _error) from None

from . import _safetensors

__all__ = ["ParameterServer"]

_HEADER = struct.Struct("<BBxxIQ")
# What SHARE and MOVED bring: a number, which worker this is, of how many, and its part.
_PART = struct.Struct("<Q5I")
_HELLO, _READY, _CLOSE, _STATUS, _ERROR = 16, 17, 35, 49, 52
_REGISTER, _PUSH, _CLOCK, _PULL, _BARRIER, _SHARE, _FINISH = 64, 65, 66, 67, 68, 69, 71
_REGISTERED, _STARTED, _RELEASED, _MOVED, _PULLED, _PASSED, _FINISHED, _KEPT = 80, 81, 82, 83, 84, 85, 87, 89
_MORE, _CHUNK = 1, 1 << 20
_ALIGNMENT = 16
# What was asked for before is void.
_ANEW = (_MOVED, _FINISHED)
#: What worker 0 leaves in its directory.
_MODEL = "model.safetensors"

Arrays = Dict[str, "np.ndarray[Any, Any]"]
Names = Union[None, str, Iterable[str]]


class ParameterServer:
    """The parameters that this worker shares with the others of its job. Made by `connect`."""

    #: This worker's number, from 0, and how many there are.
    worker: int
    workers: int
    #: Gradients of dense layers are to go as sufficient factors, where that is less: `connect` or `psd-run` asked for it, in "bsp".
    use_sfb: bool

    @property
    def step(self) -> int:
        """How many clocks were ended: 0 at first, more where a worker joins others that train already."""
        raise NotImplementedError

    @staticmethod
    def connect(
        optimizer: str = "sgd",
        rate: float = 0.01,
        *,
        momentum: float = 0.9,
        betas: "tuple[float, float]" = (0.9, 0.999),
        epsilon: Optional[float] = None,
        weight_decay: float = 0.0,
        clip_norm: Optional[float] = None,
        warmup: int = 0,
        decay: str = "constant",
        decay_steps: int = 1,
        factor: float = 0.1,
        floor: float = 0.0,
        consistency: str = "bsp",
        staleness: int = 0,
        local_steps: int = 1,
        quorum: Optional[int] = None,
        grace: float = 0.0,
        shares: str = "equal",
        compression: str = "none",
        fraction: float = 0.01,
        top_values: str = "bf16",
        block_bytes: int = 4 << 20,
        replicas: int = 2,
        num_push_threads: int = 2,
        num_pull_threads: int = 2,
        use_sfb: bool = False,
    ) -> "ParameterServer":
        """The optimizer's rule and rate, and what workers may see of each other.

        optimizer: "sgd", "momentum", "nesterov", "adam", "adamw", "adagrad"; the formulas are PyTorch's.
        decay: "constant"; "step": times `factor` each `decay_steps`; "cosine" or "linear": to `floor` at clock `decay_steps`.
        consistency: "bsp"; "ssp": others may be `staleness` clocks behind; "async"; "local": `local_steps` steps by oneself, then
            an outer step with the average of what they came to.
        quorum: in "local", workers whose updates an outer step needs; `grace` seconds later it is taken without the others, whose
            updates count in the next. All workers' if None. Each update weighs as much as its samples.
        shares: of a step's samples, by `share`: "equal", or "pace": the faster a worker is measured to compute, the more, so that all
            end a step at about the same time. In "bsp", and in "local" without a quorum.
        compression: of what goes between nodes with each clock: "none", "f16", "bf16", "int8", "int4", "int2", "topk": of each 4,096
            numbers of a gradient the largest, this `fraction` of them, each with its place; the rest goes with the next ones.
        top_values: how "topk" writes them: "bf16", or "int2": a sign and one of two sizes, and sums and values as in "int2", too.
        num_push_threads, num_pull_threads: streams between two nodes for gradients, and for values, each sealed by a thread of its own.
        use_sfb: `nodectl.torch.DistributedOptimizer` sends gradients of dense layers as sufficient factors; see `push_factors`.
        """
        from_job = json.loads(os.environ.get("NODECTL_PSERVER", "{}"))
        settings = {
            "workers": from_job.get("workers", 1),
            "servers": from_job.get("servers"),
            "checkpoints": from_job.get("checkpoints"),
            "training": {
                "optimizer": _optimizer(optimizer, momentum, betas, epsilon),
                "rate": rate,
                "schedule": {"warmup_steps": warmup, "decay": _decay(decay, decay_steps, factor, floor)},
                "weight_decay": weight_decay,
                "clip_norm": clip_norm,
            },
            "consistency": _consistency(consistency, staleness, local_steps, quorum, grace),
            "shares": _shares(shares, consistency, quorum),
            "block_bytes": from_job.get("block_bytes", block_bytes),
            "replicas": replicas,
            "num_push_threads": from_job.get("num_push_threads", num_push_threads),
            "num_pull_threads": from_job.get("num_pull_threads", num_pull_threads),
            "compression": _compression(compression, fraction, top_values),
        }
        path = os.environ.get("NODECTL_PSERVER_SOCKET")
        if path and from_job:
            server: ParameterServer = _Shared(path, settings, from_job)
        else:
            from ._alone import Alone

            server = Alone(settings)
        server.use_sfb = from_job.get("use_sfb", use_sfb) and consistency == "bsp"
        return server

    def register(self, arrays: Mapping[str, Any], factored: Iterable[str] = ()) -> Arrays:
        """Names and initial values of the parameters, in the order in which the model uses them: the same on every worker. Where
        training goes on already, the values are those of the others. Returns the arrays in which `pull` puts values. The matrices
        named by `factored` get their gradients by `push_factors`; they are kept by every node, and need "bsp"."""
        raise NotImplementedError

    @property
    def values(self) -> Arrays:
        """The arrays in which `pull` puts values."""
        raise NotImplementedError

    @property
    def gradients(self) -> Arrays:
        """Arrays from which `push` takes gradients without copying them: free between `clock` (which waits until the last ones
        count) and `push`."""
        raise NotImplementedError

    def push(self, gradients: Union[Names, Mapping[str, Any]] = None) -> None:
        """Gradients by name; or names of those that were written into `gradients`, all if there are none. Each once a clock."""
        raise NotImplementedError

    def push_factors(self, name: str, rows: Any, columns: Any) -> None:
        """The gradient of an M × N matrix as sufficient factors: the sum over k of the outer products of `rows[k]` and `columns[k]`,
        from K × M and K × N arrays. A dense layer's are what came back to its outputs and what went into it, for each sample. Sent in
        place of the gradient, to every node: K(M + N) numbers, for which there has to be room in its place, 16 numbers less.
        Source: Xie et al., arXiv 1511.08486."""
        raise NotImplementedError

    def share(self, count: int) -> range:
        """Which of the `count` samples of a step are this worker's, by their places. With `shares="pace"` another part from step to
        step; each sample is some worker's, but where one dies or comes: then its last step may count without its part."""
        raise NotImplementedError

    def clock(self, samples: int = 1) -> int:
        """Ends a step over so many samples, in proportion to which its gradients count. Returns the number of the next."""
        raise NotImplementedError

    def pull(self, names: Names = None) -> Arrays:
        """Waits for values as new as consistency asks for, and returns the arrays."""
        raise NotImplementedError

    def push_pull(self, gradients: Union[Names, Mapping[str, Any]] = None, samples: int = 1) -> Arrays:
        """`push`, `clock` and `pull`."""
        self.push(gradients)
        self.clock(samples)
        return self.pull()

    def barrier(self) -> None:
        """Waits for all workers. Not for use before the first step: one that is started again would wait for others that have passed."""
        raise NotImplementedError

    def save(self, path: str) -> None:
        """Writes the newest values to a safetensors file, by their names."""
        values = self.pull()
        _safetensors.write(path, values, {"step": str(self.step)})

    def close(self) -> None:
        """This worker has finished: the others do not wait for it. Returns when all have."""
        raise NotImplementedError

    def __enter__(self) -> "ParameterServer":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        # A worker that failed is not one that has finished: its task is tried again.
        if kind is None:
            self.close()


class _Shared(ParameterServer):
    """Parameters on nodes, reached through the node on this machine."""

    def __init__(self, path: str, settings: Dict[str, Any], from_job: Mapping[str, Any]) -> None:
        self._from_job = from_job
        self.worker = int(os.environ["NODECTL_TASK_ID"])
        self.workers = settings["workers"]
        self._settings = settings
        self._consistency = settings["consistency"]["mode"]
        # From where to where this worker's part of samples reaches, if all of them are so long.
        self._part = (self.worker, self.worker + 1, self.workers)
        # When this clock's computing began, and how long this worker has waited since then.
        self._began, self._waited = time.perf_counter(), 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            raise NodeError("the node's parameter servers do not answer at %s: %s" % (path, error)) from None
        self._input = bytearray()
        self._names: Dict[str, int] = {}
        self._clock = 0
        self._released = True
        self._pulls = 0
        self._pulled: set[int] = set()
        self._pushed: set[int] = set()

    @property
    def step(self) -> int:
        return self._clock + (not self._released)

    def register(self, arrays: Mapping[str, Any], factored: Iterable[str] = ()) -> Arrays:
        if self._names:
            raise ValueError("parameters were registered already")
        self._factored = check_factored(arrays, factored)
        initial = {name: np.asarray(array, dtype=np.float32) for name, array in arrays.items()}
        begin = self._from_job.get("init_from")
        if begin:
            initial = _safetensors.begin_from(begin, initial)
        tensors = [{"name": name, "shape": list(array.shape)} for name, array in initial.items()]
        register: Dict[str, Any] = {"job": os.environ["NODECTL_JOB_ID"], "worker": self.worker}
        settings = dict(self._settings, factored=[index for index, name in enumerate(initial) if name in self._factored])
        register.update(tensors=tensors, settings=settings)
        register["memory_bytes"] = self._from_job.get("memory_bytes")
        resume = self._from_job.get("resume_from")
        if resume:
            register["resume_from"] = os.path.realpath(resume)
        self._send(_REGISTER, 0, json.dumps(register).encode())
        registered = self._registered()
        self._values: Arrays = {}
        self._gradients: Arrays = {}
        for index, (name, array) in enumerate(initial.items()):
            start = registered["tensors"][index]
            self._names[name] = index
            self._values[name] = self._memory[start : start + array.size].reshape(array.shape)
            start += registered["gradients"]
            self._gradients[name] = self._memory[start : start + array.size].reshape(array.shape)
            self._values[name][...] = array
        self._send(_READY, 0, b"")
        self._wait(lambda kind: kind == _STARTED)
        return self.pull()

    @property
    def values(self) -> Arrays:
        return self._values

    @property
    def gradients(self) -> Arrays:
        return self._gradients

    def push(self, gradients: Union[Names, Mapping[str, Any]] = None) -> None:
        self._free()
        names = list(gradients) if isinstance(gradients, Mapping) else self._listed(gradients)
        for name in names:
            self._is_new(name)
            if name in self._factored:
                raise ValueError("`%s` was registered as factored: use `push_factors`" % name)
        if isinstance(gradients, Mapping):
            for name, gradient in gradients.items():
                mine = self._gradients[name]
                if gradient is not mine:
                    if np.shape(gradient) != mine.shape:
                        raise ValueError("the gradient of `%s` has shape %s, not %s" % (name, np.shape(gradient), mine.shape))
                    np.copyto(mine, gradient, casting="same_kind")
        indices = [self._index(name) for name in names]
        self._pushed.update(indices)
        if indices:
            self._send(_PUSH, self._clock, np.asarray(indices, "<u4").tobytes())

    def push_factors(self, name: str, rows: Any, columns: Any) -> None:
        self._free()
        self._is_new(name)
        rows, columns = check_factors(name, self._values, self._factored, rows, columns)
        # As src/pserver/factors.rs has it.
        place, middle = self._gradients[name].reshape(-1), _ALIGNMENT + rows.size
        place[:1].view("<u4")[0] = len(rows)
        place[_ALIGNMENT:middle] = rows.reshape(-1)
        place[middle : middle + columns.size] = columns.reshape(-1)
        self._pushed.add(self._index(name))
        self._send(_PUSH, self._clock, np.asarray([self._index(name)], "<u4").tobytes())

    def share(self, count: int) -> range:
        # The node tells of another part before the last gradients count.
        self._free()
        begin, end, total = self._part
        return range(count * begin // total, count * end // total)

    def clock(self, samples: int = 1) -> int:
        self._free()
        self._released = False
        self._pushed.clear()
        computed = time.perf_counter() - self._began - self._waited
        self._send(_CLOCK, self._clock, struct.pack("<IQ", samples, max(0, round(computed * 1e6))))
        return self._clock + 1

    def pull(self, names: Names = None) -> Arrays:
        names = self._listed(names)
        wanted = [self._index(name) for name in names]
        while True:
            self._pulled -= set(wanted)
            if wanted:
                self._pulls += 1
                self._send(_PULL, self._pulls, np.asarray(wanted, "<u4").tobytes())
            if self._wait(lambda kind: self._pulled.issuperset(wanted) or kind in _ANEW) not in _ANEW:
                return {name: self._values[name] for name in names}

    def barrier(self) -> None:
        self._send(_BARRIER, 0, b"")
        self._wait(lambda kind: kind == _PASSED)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            try:
                if self._names:
                    self._free()
                    self._send(_FINISH, 0, b"")
                    self._wait(lambda kind: kind == _FINISHED)
                    if self.worker == 0:
                        self.save(_MODEL)
                self._send(_CLOSE, 0, b"")
            finally:
                self._socket.close()

    def _is_new(self, name: str) -> None:
        if self._index(name) in self._pushed:
            raise ValueError("`%s` was pushed in this clock already" % name)

    def _index(self, name: str) -> int:
        try:
            return self._names[name]
        except KeyError:
            raise KeyError("there is no parameter `%s`" % name) from None

    def _listed(self, names: Names) -> List[str]:
        if names is None:
            return list(self._names)
        return [names] if isinstance(names, str) else list(names)

    def _free(self) -> None:
        """Waits until the gradients of the last clock count."""
        if not self._released:
            self._wait(lambda _: self._released)

    def _send(self, kind: int, id: int, payload: bytes) -> None:
        view = memoryview(payload)
        out: List[Any] = []
        while True:
            chunk, view = view[:_CHUNK], view[_CHUNK:]
            out += [_HEADER.pack(kind, _MORE if len(view) else 0, len(chunk), id), chunk]
            if not len(view):
                break
        try:
            self._socket.sendall(b"".join(out))
        except OSError:
            # What the node said last tells why.
            self._wait(lambda _: False)

    def _wait(self, enough: Any) -> int:
        """Takes messages until one is enough. Returns its kind."""
        kind = 0
        while not enough(kind):
            begun = time.perf_counter()
            kind, id, payload = self._receive()
            now = time.perf_counter()
            self._waited += now - begun
            if kind in (_MOVED, _SHARE):
                number, _, _, begin, end, total = _PART.unpack(payload)
                if self._settings["shares"] == "pace":
                    self._part = (begin, end, total)
                # Until the node knows that this one has heard of a move, what it pushes is void.
                self._send(_SHARE, number, b"")
            if kind in (_STARTED, _RELEASED, _MOVED):
                self._clock, self._released = id, True
                self._began, self._waited = now, 0.0
                if kind == _MOVED:
                    self._pushed.clear()
                    self._pulled.clear()
                    print("nodectl: this worker was cut off from the others, and goes on at clock %d" % id, file=sys.stderr)
            elif kind == _FINISHED:
                self._pulled.clear()
            elif kind == _PULLED and id == self._pulls:
                # Answers to what was asked for before a move may still come.
                self._pulled.update(np.frombuffer(payload, "<u4").tolist())
            elif kind == _STATUS or (kind == _KEPT and payload):
                print("nodectl: %s" % payload.decode(), file=sys.stderr)
            elif kind == _ERROR:
                raise NodeError(payload.decode())
        return kind

    def _receive(self) -> Any:
        payload = bytearray()
        while True:
            header = self._bytes(_HEADER.size)
            kind, flags, length, id = _HEADER.unpack(header)
            payload += self._bytes(length)
            if not flags & _MORE:
                return kind, id, bytes(payload)

    def _bytes(self, count: int) -> bytes:
        while len(self._input) < count:
            more = self._socket.recv(1 << 16)
            if not more:
                raise NodeError("the node has closed the connection to the parameter servers")
            self._input += more
        taken = bytes(self._input[:count])
        del self._input[:count]
        return taken

    def _registered(self) -> Dict[str, Any]:
        """The answer to the registration, with the shared memory."""
        data, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 16, 1)
        self._input += data
        kind, _, payload = self._receive()
        if kind == _ERROR:
            raise NodeError(payload.decode())
        if kind != _REGISTERED or not descriptors:
            raise NodeError("the node did not answer with shared memory\nhint: is it of another version?")
        registered: Dict[str, Any] = json.loads(payload)
        memory = mmap.mmap(descriptors[0], registered["bytes"])
        os.close(descriptors[0])
        self._memory = np.frombuffer(memory, "<f4")
        return registered


def check_factored(arrays: Mapping[str, Any], factored: Iterable[str]) -> "frozenset[str]":
    """The names of matrices."""
    names = frozenset(factored)
    for name in names:
        if name not in arrays or np.ndim(arrays[name]) != 2:
            raise ValueError("`%s` cannot be factored: it is no matrix that is registered" % name)
    return names


def check_factors(name: str, values: Arrays, factored: "frozenset[str]", rows: Any, columns: Any) -> Any:
    """Factors as f32 arrays that belong to a parameter."""
    if name not in factored:
        raise ValueError("`%s` was not registered as factored" % name)
    rows, columns = np.asarray(rows, dtype=np.float32), np.asarray(columns, dtype=np.float32)
    m, n = values[name].shape
    if rows.ndim != 2 or columns.ndim != 2 or (rows.shape[1], columns.shape[1]) != (m, n) or len(rows) != len(columns):
        raise ValueError("factors of `%s` have shapes %s and %s, not (K, %d) and (K, %d)" % (name, rows.shape, columns.shape, m, n))
    if _ALIGNMENT + rows.size + columns.size > m * n:
        raise ValueError("factors of %d samples take more room than the gradient of `%s`, %d x %d" % (len(rows), name, m, n))
    return rows, columns


def _optimizer(name: str, momentum: float, betas: Any, epsilon: Optional[float]) -> Any:
    rules: Dict[str, Any] = {
        "sgd": "sgd",
        "momentum": {"momentum": {"momentum": momentum}},
        "nesterov": {"nesterov": {"momentum": momentum}},
        "adam": {"adam": {"betas": list(betas), "epsilon": 1e-8 if epsilon is None else epsilon}},
        "adamw": {"adam_w": {"betas": list(betas), "epsilon": 1e-8 if epsilon is None else epsilon}},
        "adagrad": {"adagrad": {"epsilon": 1e-10 if epsilon is None else epsilon}},
    }
    return _choose("optimizer", name, rules)


def _decay(name: str, steps: int, factor: float, floor: float) -> Any:
    return _choose("decay", name, {
        "constant": "constant",
        "step": {"step": {"steps": steps, "factor": factor}},
        "cosine": {"cosine": {"steps": steps, "floor": floor}},
        "linear": {"linear": {"steps": steps, "floor": floor}},
    })


def _consistency(name: str, staleness: int, local_steps: int, quorum: Optional[int], grace: float) -> Any:
    if quorum is None and grace:
        raise ValueError("grace=%r needs a quorum" % grace)
    if quorum is not None and name != "local":
        raise ValueError("quorum=%r needs consistency=\"local\"" % quorum)
    merge = {} if quorum is None else {"merge": {"quorum": quorum, "grace_millis": round(grace * 1000)}}
    return _choose("consistency", name, {
        "bsp": {"mode": "bsp"},
        "ssp": {"mode": "ssp", "staleness": staleness},
        "async": {"mode": "async"},
        "local": {"mode": "local", "steps": local_steps, **merge},
    })


def _shares(name: str, consistency: str, quorum: Optional[int]) -> Any:
    if name == "pace" and (consistency in ("ssp", "async") or quorum is not None):
        raise ValueError('shares="pace" needs consistency="bsp", or "local" without a quorum')
    return _choose("shares", name, {"equal": "equal", "pace": "pace"})


def _compression(name: str, fraction: float, values: str) -> Any:
    return _choose("compression", name, {
        "none": {"to": "none"},
        "f16": {"to": "f16"},
        "bf16": {"to": "bf16"},
        "int8": {"to": "int8"},
        "int4": {"to": "int4"},
        "int2": {"to": "int2"},
        "topk": {"to": "top_k", "fraction": fraction, "values": _choose("top_values", values, {"bf16": "bf16", "int2": "int2"})},
    })


def _choose(what: str, name: str, known: Dict[str, Any]) -> Any:
    if name not in known:
        raise ValueError("%s=%r is none of %s" % (what, name, ", ".join(known)))
    return known[name]
