"""The worker of `nodectl.joblib`: calls batches, and keeps arrays that several of them use. The module travels by value: workers
need no package of ours, but joblib.

An array comes to a node once. The worker that gets it writes it into memory that nobody can change any more, and hands that to other
workers of the same pool on the node, over a socket without a file, which is gone with the worker that made it. An array that is not to
be had this way is asked for in the answer.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import pickle
import socket
import struct
import sys
import threading
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Optional, Tuple

#: What of arrays one worker keeps for later batches.
KEPT_BYTES = 512 << 20
# How long another worker may take to hand over what it has.
_HAND_SECONDS = 5.0
# The process, user and group at the other end of a socket (`struct ucred`).
_PEER = "3i"
# Of the dtype, the shape and the order, which come with the memory.
_DESCRIPTION_BYTES = 64 << 10


class Batches:
    """Answers (True, what the batch returned), or (False, the arrays that are missing)."""

    def __init__(self, pool: str, initializer: Optional[Callable[..., Any]], initargs: Tuple[Any, ...]) -> None:
        self.pool = pool
        self.arrays: "OrderedDict[str, Shared]" = OrderedDict()
        own: Any = sys.modules["nodectl._main"]
        own.shared = lambda key: self.arrays[key].view()
        _register_nested()
        if initializer is not None:
            initializer(*initargs)

    def run(self, batch: Optional[bytes], wanted: List[str], brought: Dict[str, Any]) -> Tuple[bool, Any]:
        for key, (mode, values) in brought.items():
            if key not in self.arrays:
                self.arrays[key] = Shared.made(self._name(key), mode, values)
        brought.clear()
        missing = [key for key in wanted if not self._has(key)]
        if missing:
            return False, missing
        self._make_room(wanted)
        return True, None if batch is None else pickle.loads(batch)()

    def _has(self, key: str) -> bool:
        if key not in self.arrays:
            found = Shared.handed(self._name(key))
            if found is None:
                return False
            self.arrays[key] = found
        self.arrays.move_to_end(key)
        return True

    def _make_room(self, wanted: List[str]) -> None:
        held = sum(one.size for one in self.arrays.values())
        for key in [key for key in self.arrays if key not in wanted]:
            if held <= KEPT_BYTES:
                break
            held -= self.arrays[key].size
            self.arrays.pop(key).drop()

    def _name(self, key: str) -> bytes:
        return ("\0nodectl-joblib-%s-%s" % (self.pool, key)).encode()


class Shared:
    """An array in memory that no process can change."""

    def __init__(self, memory: int, description: bytes) -> None:
        self.memory = memory
        self.description = description
        self.size = os.fstat(memory).st_size
        self.listener: Optional[socket.socket] = None

    @classmethod
    def made(cls, name: bytes, mode: str, values: Any) -> "Shared":
        """A new one, which others may have under that name."""
        order = "C" if values.flags.c_contiguous else "F"
        memory = os.memfd_create("nodectl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(memory, values.nbytes)
        with mmap.mmap(memory, values.nbytes) as mapped:
            mapped[:] = values.reshape(-1, order="A").view("u1").data
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
        one = cls(memory, pickle.dumps((mode, values.dtype, values.shape, order)))
        one._hand_out(name)
        return one

    @classmethod
    def handed(cls, name: bytes) -> "Optional[Shared]":
        """The one that another worker of this node has."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
                other.settimeout(_HAND_SECONDS)
                other.connect(name)
                if not _is_ours(other):
                    return None
                description, ancillary, _, _ = other.recvmsg(_DESCRIPTION_BYTES, socket.CMSG_SPACE(4))
                ((_, _, data),) = ancillary
                return cls(array.array("i", data)[0], description)
        except (OSError, ValueError):
            return None

    def view(self) -> Any:
        """The array, mapped."""
        import numpy

        mode, dtype, shape, order = pickle.loads(self.description)
        with open(os.dup(self.memory), "rb") as file:
            return numpy.memmap(file, dtype=dtype, mode=mode, shape=shape, order=order)

    def drop(self) -> None:
        """Not needed here any more; what is mapped stays."""
        os.close(self.memory)
        if self.listener is not None:
            self.listener.shutdown(socket.SHUT_RDWR)

    def _hand_out(self, name: bytes) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(name)
        except OSError:
            # Another worker was faster.
            listener.close()
            return
        listener.listen(128)
        self.listener = listener
        threading.Thread(target=self._serve, args=(listener,), name="nodectl-arrays", daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        memory = array.array("i", [os.dup(self.memory)])
        with listener:
            while True:
                try:
                    other, _ = listener.accept()
                except OSError:
                    break
                with other:
                    try:
                        if _is_ours(other):
                            other.sendmsg([self.description], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, memory)])
                    except OSError:
                        pass  # It has ended.
        os.close(memory[0])


def _is_ours(other: socket.socket) -> bool:
    """Whether the process at the other end belongs to the same user."""
    _, user, _ = struct.unpack(_PEER, other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_PEER)))
    return bool(user == os.geteuid())


def _register_nested() -> None:
    """Batches that use this backend by its name do so with threads of their worker."""
    from joblib import parallel

    class Nested(parallel.ThreadingBackend):  # type: ignore[misc]
        supports_retrieve_callback = True

        def __init__(self, nesting_level: Any = None, **_: Any) -> None:
            super().__init__(nesting_level=nesting_level)

    parallel.BACKENDS.setdefault("nodectl", Nested)
