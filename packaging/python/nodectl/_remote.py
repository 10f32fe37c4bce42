"""The worker of `nodectl.remote`: calls functions, and keeps large results on its node. The module travels by value: workers need no
package of ours.

Its node is asked as `src/worker/persistent/keep.rs` says.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import socket
import struct
import sys
from typing import Any, Dict, List, Optional, Tuple

#: Answers: the result; where it is kept; the arguments that are lost, and why.
HERE, KEPT, LOST = "here", "kept", "lost"
#: A result of no more bytes comes with its answer.
INLINE_BYTES = 64 << 10
# How a pickle names the program's main module, which other workers may not have, and what sets its variables.
_MAIN, _RENEWED = b"\x8c\x08__main__", b"renewed"
# The header of a frame (`_frames.HEADER`).
_HEADER = "<BBxxIQ"
_HELLO = 16
_LINE_BYTES = 64 << 10


class RemoteCaller:
    """Functions come as pickles: within a call, or before it as an update, to be kept."""

    def __init__(self) -> None:
        own: Any = sys.modules["nodectl._main"]
        own.given = self._given
        self._shim: Any = sys.modules["__main__"].__nodectl_shim__
        self._blobs = Blobs(*own.blobs)
        # By digest: pickles, and functions that were made of them.
        self._pickled: Dict[bytes, bytes] = {}
        self._made: Dict[bytes, Any] = {}
        # The last one that brought variables of the program's main module with it. They are those of the last one only.
        self._last: Optional[Tuple[bytes, Any]] = None
        # Of one call, by name: results that it is given, as they are stored, and as they are.
        self._stored: Dict[str, Any] = {}
        self._values: Dict[str, Any] = {}

    def handle_update(self, digest: bytes, pickled: bytes) -> None:
        self._pickled[digest] = pickled

    def handle_release(self, what: bytes) -> None:
        """The program needs these results no more: its words are for the node."""
        self._blobs.tell(what)

    def run(self, digest: bytes, pickled: Optional[bytes], arguments: Any, places: List[Any]) -> Tuple[Any, ...]:
        try:
            lost = self._open(places)
            if lost:
                return (LOST, *lost)
            function = self._function(digest, pickled)
            args, kwargs = self._shim.unpickle(arguments)
            return self._answer(function(*args, **kwargs))
        finally:
            self._stored.clear()
            self._values.clear()

    def _function(self, digest: bytes, pickled: Optional[bytes]) -> Any:
        if digest in self._made:
            return self._made[digest]
        if self._last is not None and self._last[0] == digest:
            return self._last[1]
        if pickled is None:
            pickled = self._pickled[digest]
        function = self._shim.unpickle(pickled)
        if _RENEWED in pickled:
            self._last = digest, function
        elif digest in self._pickled:
            self._made[digest] = function
        return function

    def _open(self, places: List[Any]) -> Optional[Tuple[List[str], str]]:
        """Has the results here that the call is given, if they are to be had."""
        lost: List[str] = []
        why = ""
        for name, content, hash, holders in places:
            try:
                self._stored[name] = memoryview(content) if content is not None else self._blobs.open(hash, holders)
            except LookupError as error:
                lost.append(name)
                why = str(error)
        return (lost, why) if lost else None

    def _given(self, name: str) -> Any:
        if name not in self._values:
            view = self._stored[name]
            has_buffers = view[0] == self._shim.BUFFERS
            self._values[name] = self._shim.from_buffers(view) if has_buffers else self._shim.loads(view)
        return self._values[name]

    def _answer(self, value: Any) -> Tuple[Any, ...]:
        parts = self._parts(value)
        size = sum(memoryview(part).nbytes for part in parts)
        if size <= INLINE_BYTES:
            return HERE, b"".join(parts)
        return (KEPT, size, *self._blobs.keep(parts, size))

    def _parts(self, value: Any) -> List[Any]:
        """A payload, as results of pools are."""
        buffers: List[Any] = []
        keep = self._shim.in_band(buffers)
        try:
            data = pickle.dumps(value, 5, buffer_callback=keep)
            is_for_all = _MAIN not in data
        except Exception:
            is_for_all = False
        if not is_for_all:
            import cloudpickle

            del buffers[:]
            data = cloudpickle.dumps(value, 5, buffer_callback=keep)
        parts: List[Any] = self._shim.with_buffers(data, buffers) if buffers else [data]
        return parts


class Blobs:
    """The way to the blobs of this worker's node."""

    def __init__(self, path: str, token: str) -> None:
        self._path, self._token = path, token
        self._socket: Optional[socket.socket] = None

    def keep(self, parts: List[Any], size: int) -> Tuple[str, str]:
        """The hash of a new blob, and the node that has it."""
        answer, _ = self._ask({"keep": {"bytes": size}}, parts)
        if "error" in answer:
            raise OSError("a result cannot be kept on its node: %s" % answer["error"])
        return answer["hash"], answer["node"]

    def open(self, hash: str, holders: List[str]) -> memoryview:
        """What a blob has; what is written there changes nothing elsewhere. Fails with LookupError if it is not to be had."""
        answer, descriptors = self._ask({"open": {"hash": hash, "from": holders}}, [])
        try:
            if "error" in answer:
                raise LookupError(answer["error"])
            return memoryview(mmap.mmap(descriptors[0], answer["bytes"], access=mmap.ACCESS_COPY))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def tell(self, request: bytes) -> None:
        """What needs no answer."""
        self._connected().sendall(request + b"\n")

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(self._path)
            token = self._token.encode()
            self._socket.sendall(struct.pack(_HEADER, _HELLO, 0, len(token), 0) + token)
        return self._socket

    def _ask(self, request: Dict[str, Any], parts: List[Any]) -> Tuple[Dict[str, Any], List[int]]:
        node = self._connected()
        node.sendall(json.dumps(request).encode() + b"\n")
        for part in parts:
            node.sendall(part)
        line, descriptors = b"", []
        while not line.endswith(b"\n"):
            more, with_it, _, _ = socket.recv_fds(node, _LINE_BYTES, 1)
            if not more:
                raise OSError("the node gives no blobs to this worker any more")
            line += more
            descriptors += with_it
        return json.loads(line), descriptors
