"""Files for workers: uploaded to the node as blobs, and listed in a manifest (`src/types/manifest.rs`, in postcard)."""

from __future__ import annotations

import fnmatch
import os
from typing import Any, Iterator, List, Mapping, NamedTuple, Tuple

from . import _node

# What no worker needs.
_LEFT_OUT = (".git", "__pycache__", "*.pyc", ".ipynb_checkpoints", ".venv", ".DS_Store")


class Stored(NamedTuple):
    """A file that some node has."""

    hash: str
    bytes: int


def upload(
    node: str,
    paths: List[str],
    made: Mapping[str, bytes] = {},
    named: Mapping[str, str] = {},
    stored: Mapping[str, Stored] = {},
) -> str:
    """The hash of the manifest of files and directories, each under its own name, of files made from bytes, of files that go
    by other names, and of files that nodes have. Fails with OSError for what cannot be read, with NodeError if the node refuses."""
    entries = {}
    for name, path in [*named.items(), *files(paths)]:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            answer = _node.request(node, "PUT", "/v1/blobs", file, size)
        entries[name] = _entry(name, _stored(answer), os.access(path, os.X_OK))
    for name, content in made.items():
        entries[name] = _entry(name, _stored(_node.request(node, "PUT", "/v1/blobs", content)), False)
    for name, file_there in stored.items():
        entries[name] = _entry(name, file_there, False)
    manifest = _varint(len(entries)) + b"".join(entries[name] for name in sorted(entries))
    return str(_node.request(node, "PUT", "/v1/blobs", manifest)["hash"])


def files(paths: List[str]) -> Iterator[Tuple[str, str]]:
    """(name for the worker, path here) of each file."""
    for path in paths:
        path = os.path.abspath(path)
        base = os.path.dirname(path)
        if not os.path.isdir(path):
            yield os.path.basename(path), path
            continue
        for directory, below, names in os.walk(path):
            below[:] = [name for name in below if not _is_left_out(name)]
            for name in names:
                full = os.path.join(directory, name)
                if not _is_left_out(name) and os.path.isfile(full):
                    yield os.path.relpath(full, base), full


def _stored(answer: Any) -> Stored:
    return Stored(answer["hash"], answer["bytes"])


def _entry(name: str, stored: Stored, executable: bool) -> bytes:
    return _text(name) + _varint(stored.bytes) + bytes.fromhex(stored.hash) + bytes([executable])


def _is_left_out(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in _LEFT_OUT)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _varint(len(encoded)) + encoded
