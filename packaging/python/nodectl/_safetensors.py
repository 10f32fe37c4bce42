"""safetensors files of f32 arrays, in numpy alone: <https://github.com/huggingface/safetensors#format>."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Mapping

import numpy as np

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"}
_MAX_HEADER_BYTES = 256 << 20


def write(path: str, arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """The file appears whole or not at all."""
    header: Dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.size * 4
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    part = path + ".part"
    with open(part, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array, "<f4").data)
    os.replace(part, path)


class File:
    """A file to read arrays from, one at a time. Raises ValueError for what is no such file."""

    def __init__(self, path: str) -> None:
        self._path = path
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(size, _MAX_HEADER_BYTES):
                raise ValueError("%s is no safetensors file, or cut off" % path)
            try:
                self._arrays: Dict[str, Any] = json.loads(file.read(length))
            except ValueError as error:
                raise ValueError("%s: its header: %s" % (path, error)) from None
        self.metadata: Dict[str, str] = self._arrays.pop("__metadata__", {})
        self._begin = 8 + length

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def names(self) -> "list[str]":
        return list(self._arrays)

    def read(self, name: str) -> Any:
        info = self._arrays[name]
        start, end = info["data_offsets"]
        with open(self._path, "rb") as file:
            file.seek(self._begin + start)
            data = file.read(end - start)
        if len(data) != end - start:
            raise ValueError("%s is cut off" % self._path)
        if info["dtype"] == "BF16":
            # The upper half of an f32.
            numbers = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
        elif info["dtype"] in _TYPES:
            numbers = np.frombuffer(data, _TYPES[info["dtype"]])
        else:
            raise ValueError("%s: `%s` has numbers of type %s, which are not read" % (self._path, name, info["dtype"]))
        return numbers.reshape(info["shape"])


def begin_from(path: str, initial: Mapping[str, Any]) -> Dict[str, Any]:
    """Values for these arrays from a file, which must have them all."""
    file = File(path)
    values = {}
    for name, array in initial.items():
        if name not in file:
            raise ValueError("%s has no array `%s`; there are %s" % (path, name, ", ".join(file.names()[:12])))
        values[name] = file.read(name).astype(np.float32)
        if values[name].shape != array.shape:
            raise ValueError("%s: `%s` has the shape %s, the model's %s" % (path, name, values[name].shape, array.shape))
    return values
