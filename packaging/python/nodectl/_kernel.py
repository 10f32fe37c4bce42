"""Compute shaders on numpy arrays, over the cluster: each call writes a kernel job into a directory of its own and has the
`nodectl` program run it, which checks the shader, cuts the space and finds the GPUs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from ._errors import KernelError
from ._node import binary

_ENDINGS = (".wgsl", ".spv", ".comp", ".glsl")
_DTYPES = {
    "bool": "?",
    "u8": "u1",
    "i8": "i1",
    "u16": "<u2",
    "i16": "<i2",
    "f16": "<f2",
    "u32": "<u4",
    "i32": "<i4",
    "f32": "<f4",
    "u64": "<u8",
    "i64": "<i8",
    "f64": "<f8",
}
# What a job file calls a generated input.
_GENERATED = ("file", "zeros", "fill", "range", "linspace", "random")
# How long a cancelled run may take to say so to the cluster.
_CANCEL_SECONDS = 10.0


def kernel(
    source: Union[str, bytes, "os.PathLike[str]"],
    *inputs: Any,
    shape: Union[int, Sequence[int], None] = None,
    space: Union[int, Sequence[int], None] = None,
    outputs: Union[str, Iterable[str], Mapping[str, Mapping[str, Any]], None] = None,
    uniforms: Optional[Mapping[str, Any]] = None,
    constants: Optional[Mapping[str, Any]] = None,
    iterate: Optional[Mapping[str, Any]] = None,
    params: Optional[Mapping[str, Any]] = None,
    cut: Iterable[str] = (),
    **job: Any,
) -> Any:
    """Runs a compute shader over an index space on the GPUs of the cluster; returns what it writes as numpy arrays.

    :param source: The shader: WGSL as text, SPIR-V as bytes, or a path that ends with .wgsl or .spv.
    :param inputs: Arrays for the shader's storage bindings, in the order of their numbers; those that are outputs only are
        left out. Or mappings from a binding's name to its array, or to what a job file says of an input that is generated:
        `{"seeds": {"random": {"seed": 1}, "shape": [640]}}`. Numbers become the shader's type if that loses no more than
        digits.
    :param shape: The shape of the space in numpy's order, one invocation for each cell: that of the result, but for what
        each cell has several of. Default: the first input's.
    :param space: The same as extents along x, y and z.
    :param outputs: A name, names, or a mapping from names to what a job file says of an output: `shape` with `combine`
        ("sum", "min", "max", or the text of a shader as `{"shader": …}`), `per_cell`, `type` or `dtype`. Default: what the shader writes
        into and has no input for.
    :param uniforms: Values for uniforms, by the names of their members.
    :param constants: Values for constants declared with `override`.
    :param iterate: `{"steps": 1000, "swap": [["now", "next"]]}`.
    :param params: Lists of values, whose combinations each make a run of the kernel; "{name}" stands for the value. The result
        is a list then, with the first name's values changing slowest.
    :param cut: Names of the inputs of which a tile needs its own cells alone, for shaders that declare `tile`.
    :param job: Other keys of a job file: `entry`, `tile`, `halo`, `timeout`, `retries`, `where`, `resources` and so on.
    :returns: An array; with several outputs a dict of them by name; with `params` a list of those.
    :raises KernelError: The shader or what it is given is wrong, or a task failed. `line` and `column` are places in the shader.
    :raises NodeError: There is no program `nodectl`.
    """
    with tempfile.TemporaryDirectory(prefix="nodectl-kernel-") as directory:
        call = _Call(directory, source, job)
        call.interface()
        arrays = call.bind(inputs, _names(outputs), iterate)
        call.outputs(outputs, iterate, arrays)
        call.space(shape, space, arrays)
        call.inputs(arrays, set([cut] if isinstance(cut, str) else cut))
        for key, table in (("uniforms", uniforms), ("constants", constants), ("iterate", iterate), ("params", params)):
            if table is not None:
                call.keys[key] = table
        results = call.run()
    return results if params is not None else results[0]


class _Call:
    """One call: the job file's keys, and the directory in which it and its arrays are."""

    def __init__(self, directory: str, source: Any, job: Mapping[str, Any]) -> None:
        self.directory = directory
        # What its path in messages stands for.
        self.shown = {}  # type: Dict[str, str]
        self.keys = {"kind": "kernel", "name": "kernel", "shader": self._shader("kernel", source), **job}
        self.wanted = []  # type: List[str]
        self.bindings = {}  # type: Dict[str, Dict[str, Any]]

    def _shader(self, name: str, source: Any) -> str:
        """Puts a shader beside the job file; returns its name."""
        is_path = isinstance(source, os.PathLike) or isinstance(source, str) and "\n" not in source and source.endswith(_ENDINGS)
        if is_path:
            path = os.fspath(source)
            with open(path, "rb") as file:
                content = file.read()
            name += os.path.splitext(path)[1]
            self.shown[os.path.join(self.directory, name)] = str(path)
        elif isinstance(source, str):
            content = source.encode()
            name += ".comp" if source.lstrip().startswith("#version") else ".wgsl"
        elif isinstance(source, (bytes, bytearray, memoryview)):
            content, name = bytes(source), name + ".spv"
        else:
            raise TypeError("a shader is text, bytes or a path, not %s" % type(source).__name__)
        self.shown.setdefault(os.path.join(self.directory, name), name)
        with open(os.path.join(self.directory, name), "wb") as file:
            file.write(content)
        return name

    def interface(self) -> None:
        """Asks what the shader binds."""
        asked: Dict[str, Any] = {key: self.keys[key] for key in ("kind", "shader", "entry") if key in self.keys}
        told = json.loads(self._nodectl("kernel-interface", self._write(asked)))
        self.bindings = {array["name"]: array for array in told["arrays"]}

    def bind(self, inputs: Tuple[Any, ...], named_outputs: List[str], iterate: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
        """The inputs by the names of their bindings."""
        arrays = {}  # type: Dict[str, Any]
        for mapping in inputs:
            if isinstance(mapping, Mapping):
                arrays.update(mapping)
        for name in arrays:
            if name not in self.bindings:
                raise KernelError("the shader has no array `%s`; there are %s" % (name, ", ".join(self.bindings) or "none"))
        taken = {*arrays, *named_outputs, *(pair[1] for pair in (iterate or {}).get("swap", ()))}
        free = [name for name in self.bindings if name not in taken]
        positional = [array for array in inputs if not isinstance(array, Mapping)]
        if len(positional) > len(free):
            told = "%d arrays for %d bindings: %s" % (len(positional), len(free), ", ".join(free) or "none")
            if named_outputs:
                told += '; an output that is read, too, is given by its name, as in {"%s": array}' % named_outputs[0]
            raise KernelError(told)
        arrays.update(zip(free, positional))
        return {name: arrays[name] for name in self.bindings if name in arrays}

    def outputs(self, outputs: Any, iterate: Optional[Mapping[str, Any]], arrays: Mapping[str, Any]) -> None:
        """What becomes of what the shader writes."""
        told = outputs if isinstance(outputs, Mapping) else {}
        names = _names(outputs)
        if not names:
            written = [name for name, binding in self.bindings.items() if binding["written"]]
            swapped = [pair[1] for pair in (iterate or {}).get("swap", ())]
            names = swapped or [name for name in written if name not in arrays] or written
        self.wanted = names
        self.keys["outputs"] = {name: self._output(name, dict(told.get(name) or {})) for name in names}

    def _output(self, name: str, told: Dict[str, Any]) -> Dict[str, Any]:
        dtype = told.pop("dtype", None)
        if dtype is not None:
            told["type"] = _type_of(dtype)
        combine = told.get("combine")
        if isinstance(combine, Mapping) and "shader" in combine:
            told["combine"] = {**combine, "shader": self._shader("combine-%s" % name, combine["shader"])}
        if "shape" in told:
            told["shape"] = _extents(told["shape"])
        if "per_cell" in told:
            told["per_cell"] = _extents(told["per_cell"])
        return {"file": name + ".npy", **told}

    def space(self, shape: Any, space: Any, arrays: Mapping[str, Any]) -> None:
        """How many cells there are."""
        if space is not None:
            self.keys["space"] = _extents(space)
            return
        if shape is None:
            shape = self._shape_of_first(arrays)
        extents = _extents(shape)[::-1]
        if not 1 <= len(extents) <= 3:
            raise KernelError("a space has 1 to 3 dimensions, not %d\nhint: say `shape` or `space`" % len(extents))
        self.keys["space"] = extents

    def _shape_of_first(self, arrays: Mapping[str, Any]) -> Tuple[int, ...]:
        import numpy

        for name, array in arrays.items():
            if not _is_generated(array):
                shape = numpy.shape(array)
                return tuple(shape[:-1] if self.bindings[name]["components"] > 1 else shape)
        raise KernelError("there is no input whose shape the space could have\nhint: say `shape`")

    def inputs(self, arrays: Mapping[str, Any], cut: "set[str]") -> None:
        """Writes the arrays beside the job file."""
        unknown = cut - set(arrays)
        if unknown:
            raise KernelError("`%s` is cut, but is no input" % sorted(unknown)[0])
        tables = {}
        for name, array in arrays.items():
            if _is_generated(array):
                tables[name] = dict(array)
            else:
                tables[name] = {"file": self._store(name, array)}
            if name in cut:
                tables[name]["cut"] = "tile"
        if tables:
            self.keys["inputs"] = tables

    def _store(self, name: str, array: Any) -> str:
        import numpy

        binding = self.bindings[name]
        array = numpy.asarray(array)
        wanted = numpy.dtype(_DTYPES[binding["type"]])
        with numpy.errstate(invalid="ignore"):
            converted = array.astype(wanted, order="C", copy=False) if array.dtype.kind in "biuf" else None
        # Numbers may lose digits, as f64 to f32 does, but not become others.
        may_lose_digits = wanted.kind == "f" and numpy.can_cast(array.dtype, wanted, "same_kind")
        if converted is None or not (may_lose_digits or numpy.array_equal(converted, array)):
            raise KernelError("`%s` is %s in the shader, and the array of %s does not fit" % (name, binding["type"], array.dtype))
        numpy.save(os.path.join(self.directory, name + ".npy"), converted, allow_pickle=False)
        return name + ".npy"

    def run(self) -> List[Any]:
        """Runs the job; the results of each parameter set."""
        into = os.path.join(self.directory, "results")
        output = self._nodectl("run", self._write(self.keys), "--json", "--cancel-on-interrupt", "--into", into)
        # Of a space that is cut there are several jobs; the last puts the results together.
        into = json.loads(output)[-1]["directory"]
        tasks = sorted(int(name) for name in os.listdir(into) if name.isdigit())
        return [self._read(os.path.join(into, str(task))) for task in tasks]

    def _read(self, directory: str) -> Any:
        import numpy

        arrays = {name: numpy.load(os.path.join(directory, name + ".npy")) for name in self.wanted}
        return arrays if len(self.wanted) > 1 else arrays[self.wanted[0]]

    def _write(self, keys: Mapping[str, Any]) -> str:
        path = os.path.join(self.directory, "kernel.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines("%s = %s\n" % (_string(key), _toml(value)) for key, value in keys.items())
        return path

    def _nodectl(self, *arguments: str) -> str:
        """Runs the program; what it prints. Fails with KernelError."""
        process = subprocess.Popen(
            [binary(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # In a session of its own: Ctrl-C is for this program to pass on.
            start_new_session=True,
        )
        try:
            output, errors = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=_CANCEL_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            raise
        if process.returncode != 0:
            raise self._error(_failure(output) or errors)
        return output

    def _error(self, text: str) -> KernelError:
        found = None
        for path, shown in self.shown.items():
            found = found or re.search(r"--> %s:(\d+):(\d+)" % re.escape(path), text)
            text = text.replace(path, shown)
        line, column = (int(found.group(1)), int(found.group(2))) if found else (None, None)
        text = text.replace(self.directory + os.sep, "").strip()
        return KernelError(text[len("error: ") :] if text.startswith("error: ") else text, line, column)


def _failure(output: str) -> Optional[str]:
    """Why a task failed, of jobs that have ended."""
    try:
        reasons = [failure["reason"] for job in json.loads(output) for failure in job["failures"]]
    except (ValueError, KeyError, TypeError):
        return None
    return str(reasons[0]) if reasons else None


def _names(outputs: Any) -> List[str]:
    return [outputs] if isinstance(outputs, str) else list(outputs or ())


def _is_generated(array: Any) -> bool:
    return isinstance(array, Mapping) and any(key in array for key in _GENERATED)


def _extents(shape: Any) -> List[Any]:
    is_one = isinstance(shape, (int, str)) or getattr(shape, "ndim", None) == 0
    return [shape] if is_one else list(shape)


def _type_of(dtype: Any) -> str:
    import numpy

    if isinstance(dtype, str) and dtype in _DTYPES:
        return dtype
    given = numpy.dtype(dtype)
    for name, known in _DTYPES.items():
        if given == numpy.dtype(known):
            return name
    raise KernelError("results cannot be of %s\nhint: there are %s" % (given, ", ".join(_DTYPES)))


def _toml(value: Any) -> str:
    """The value in a job file."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ %s }" % ", ".join("%s = %s" % (_string(str(key)), _toml(item)) for key, item in value.items())
    if isinstance(value, Iterable):
        return "[%s]" % ", ".join(_toml(item) for item in value)
    raise TypeError("a job file cannot hold %r" % (value,))


def _string(text: str) -> str:
    # JSON's strings are TOML's, but for this one.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
