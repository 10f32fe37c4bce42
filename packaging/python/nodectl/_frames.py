"""Frames of a pool's stream, as `src/wire/frames.rs` describes them, and what payloads of pools look like.

Bytes in and out of a socket that never blocks; it knows nothing of tasks.
"""

from __future__ import annotations

import io
import json
import pickle
import socket
import struct
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Sequence, Tuple, Union

INIT, UPDATE, RUN = 1, 2, 3
DONE, FAILED, UPDATE_FAILED = 19, 20, 21
OPEN, SNAPSHOT, CANCEL, CLOSE, NEAR, RELEASE = 32, 33, 34, 35, 36, 37
OPENED, STATUS, SEND, LOST, ERROR = 48, 49, 50, 51, 52
STARTED = 81
MORE, PULL, AGAIN, TELL, STOP = 1, 2, 4, 8, 16

HEADER = struct.Struct("<BBxxIQ")
LENGTH = struct.Struct("<Q")
# In a NEAR: the id of a node, and how many bytes it has.
_HOLDER = struct.Struct("<32sQ")
MAX_CHUNK_BYTES = 1 << 20

#: First bytes of a payload that is no plain pickle (which begins with 0x80): a pickle and buffers; `bytes` as they are, the value
#: or the only argument.
BUFFERS, RAW = 1, 2
# In pickles of cloudpickle's that bring a class.
_CLASS_BY_VALUE = b"_make_skeleton_"
# No shorter pickle brings one.
_LEAST_CLASS_BYTES = 3 * len(_CLASS_BY_VALUE)
#: Larger buffers (arrays) travel beside the pickle and are not copied into it.
OUT_OF_BAND_BYTES = 64 << 10
# The most that one system call is given.
_SEND_BYTES = 512 << 10
_SEND_PARTS = 256

#: A payload: bytes, or parts of it in order.
Payload = Union[bytes, List[Any]]


class Stream:
    """Frames over a connected socket. Not thread-safe: whoever drives it holds the pool's lock."""

    def __init__(self, connected: socket.socket, early: bytes = b"") -> None:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connected.setsockopt(socket.SOL_SOCKET, option, 4 << 20)
        connected.setblocking(False)
        self.socket = connected
        self.out: Deque[Any] = deque()
        self._buffer = bytearray(MAX_CHUNK_BYTES + (256 << 10))
        self._view = memoryview(self._buffer)
        self._view[: len(early)] = early
        self._end = len(early)
        self._partial: Dict[Tuple[int, int], bytearray] = {}

    def put(self, kind: int, id: int, payload: Payload, flags: int = 0) -> None:
        """Queues a message. Large payloads are not copied."""
        self.out.extend(_parts(kind, id, payload, flags))

    def put_first(self, kind: int, id: int, payload: Payload) -> None:
        """The same before all else that waits, but for the frame that was begun."""
        # What a frame or a batch of them begins with is bytes; what is left of one, and chunks, are views.
        at = next((index for index, part in enumerate(self.out) if isinstance(part, bytes)), len(self.out))
        self.out.rotate(-at)
        self.out.extendleft(reversed(_parts(kind, id, payload)))
        self.out.rotate(at)

    def flush(self) -> bool:
        """Sends what the socket takes; whether it took some. Fails with OSError if the other side is gone."""
        out, sent_some = self.out, False
        while out:
            parts, total = [], 0
            for part in out:
                parts.append(part)
                total += len(part)
                if total >= _SEND_BYTES or len(parts) >= _SEND_PARTS:
                    break
            try:
                sent = self.socket.sendmsg(parts)
            except BlockingIOError:
                return sent_some
            sent_some = True
            short = sent < total
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
                out.popleft()
            if sent:
                out[0] = memoryview(out[0])[sent:]
            if short:
                return True
        return sent_some

    def receive(self) -> Iterator[Tuple[int, int, Any]]:
        """Yields the messages (kind, id, payload) that are here; a payload is valid until the next one. Fails with
        EOFError or OSError if the other side is gone."""
        buffer, view, partial = self._buffer, self._view, self._partial
        unpack, size = HEADER.unpack_from, HEADER.size
        while True:
            start, end = 0, self._end
            try:
                while end - start >= size:
                    kind, flags, length, id = unpack(buffer, start)
                    stop = start + size + length
                    if stop > end:
                        if length > MAX_CHUNK_BYTES:
                            raise EOFError("a frame of %d bytes" % length)
                        break
                    payload: Any = view[start + size : stop]
                    start = stop
                    if flags & AGAIN or kind == LOST:
                        # What came of it before was of a worker that died.
                        partial.pop((DONE, id), None)
                        partial.pop((FAILED, id), None)
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
            finally:
                # Also when the caller stops in the middle: what it has seen is not seen again.
                if start:
                    view[: end - start] = view[start:end]
                    self._end = end - start
            try:
                count = self.socket.recv_into(view[self._end :])
            except BlockingIOError:
                return
            if count == 0:
                raise EOFError("the node closed the stream")
            self._end += count


def _parts(kind: int, id: int, payload: Payload, flags: int = 0) -> List[Any]:
    """A message as parts to send: frames, or headers (bytes) and chunks (views) in turn."""
    if isinstance(payload, bytes) and len(payload) <= MAX_CHUNK_BYTES:
        return [HEADER.pack(kind, flags, len(payload), id) + payload]
    parts: List[Any] = []
    chunk: List[memoryview] = []
    left, room = size_of(payload), MAX_CHUNK_BYTES
    for view in map(_as_bytes, payload if isinstance(payload, list) else [payload]):
        while len(view):
            chunk.append(view[:room])
            view, room = view[room:], room - len(chunk[-1])
            length = MAX_CHUNK_BYTES - room
            if room == 0 or length == left:
                left -= length
                parts += [HEADER.pack(kind, flags | (MORE if left else 0), length, id), *chunk]
                chunk, room = [], MAX_CHUNK_BYTES
    return parts


def near(task: int, holders: Dict[str, int]) -> bytes:
    """A frame that says which nodes have how many bytes of what a task is given. Its RUN follows."""
    payload = b"".join(_HOLDER.pack(bytes.fromhex(node), count) for node, count in holders.items())
    return HEADER.pack(NEAR, 0, len(payload), task) + payload


def _as_bytes(part: Any) -> memoryview:
    return memoryview(part).cast("B")


def size_of(payload: Payload) -> int:
    """Bytes of a payload."""
    return len(payload) if isinstance(payload, bytes) else sum(len(_as_bytes(part)) for part in payload)


def in_band(buffers: List[Any]) -> Callable[[pickle.PickleBuffer], bool]:
    """A `buffer_callback` that sets large buffers aside."""

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = memoryview(buffer)
        if view.nbytes < OUT_OF_BAND_BYTES or not view.contiguous:
            return True
        buffers.append(buffer.raw())
        return False

    return keep


def with_buffers(data: bytes, buffers: Sequence[Any]) -> Payload:
    """A payload of a pickle and the buffers beside it."""
    if not buffers:
        return data
    parts = [data, *buffers]
    lengths = b"".join(LENGTH.pack(len(_as_bytes(part))) for part in parts)
    return [bytes([BUFFERS]) + LENGTH.pack(len(parts)) + lengths, *parts]


def loads_json(payload: Any) -> Any:
    """The object of a payload of which nothing is run: `bytes` or JSON."""
    if payload[0] == RAW:
        return bytes(memoryview(payload)[1:])
    return json.loads(bytes(payload))


def _unpickle(data: Any, buffers: Any = ()) -> Any:
    # Only classes that travel by value need more care, which costs time.
    if _CLASS_BY_VALUE in (bytes(data) if type(data) is memoryview else data):
        return _ClassKeeper(io.BytesIO(data), buffers=buffers).load()
    return pickle.loads(data, buffers=buffers)


class _ClassKeeper(pickle.Unpickler):
    """Unpickles instances of a script's own classes, which travel by value, as instances of the classes that are here:
    cloudpickle alone would overwrite the program's class with what the worker made of it."""

    def __init__(self, file: Any, *, buffers: Any) -> None:
        super().__init__(file, buffers=buffers)
        # Those that were here before, by their ids. Held: a class that is collected meanwhile would be made anew, and lack its state.
        self._own: Dict[int, type] = {}

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if name in ("_make_skeleton_class", "_make_skeleton_enum"):
            return lambda *args: self._skeleton(found, args)
        if name == "_class_setstate":
            return lambda made, state: made if id(made) in self._own else found(made, state)
        return found

    def _skeleton(self, make: Any, args: Tuple[Any, ...]) -> Any:
        from cloudpickle.cloudpickle import _DYNAMIC_CLASS_TRACKER_BY_ID

        # The tracker's id is the argument before the last.
        own = _DYNAMIC_CLASS_TRACKER_BY_ID.get(args[-2])
        if own is not None:
            self._own[id(own)] = own
        return make(*args)


def loads(payload: Any) -> Any:
    """The object of a payload. Buffers stay in the memory where they arrived, if that is a bytearray."""
    first = payload[0]
    if first == RAW:
        return bytes(memoryview(payload)[1:])
    if first != BUFFERS:
        return pickle.loads(payload) if len(payload) < _LEAST_CLASS_BYTES else _unpickle(payload)
    view = memoryview(payload if isinstance(payload, bytearray) else bytearray(payload))
    (count,) = LENGTH.unpack_from(view, 1)
    at = 1 + LENGTH.size * (count + 1)
    parts = []
    for index in range(count):
        (length,) = LENGTH.unpack_from(view, 1 + LENGTH.size * (index + 1))
        parts.append(view[at : at + length])
        at += length
    return _unpickle(parts[0], parts[1:])
