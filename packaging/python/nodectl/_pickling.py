"""What goes to workers: calls as pickles, classes with the code they need.

Code that nodes cannot import is sent along. Local modules are those outside of the standard library, of installed packages and
of what is shipped as `sources`: those that are imported when a pool is opened travel as files, and workers import them, so that
their state is as at home. `__main__` (scripts, notebooks), and modules that are imported later, travel by value. A variable of `__main__`
has the program's value on a worker, as it was with the last call, until code on that worker sets it.
"""

from __future__ import annotations

import copyreg
import functools
import io
import os
import pickle
import site
import sys
import sysconfig
import threading
import types
import zipfile
from collections import ChainMap
from typing import Any, Dict, List, Optional, Set, Tuple

from . import _main
from ._errors import needed

try:
    import cloudpickle
    from cloudpickle.cloudpickle import _make_skeleton_class
except ImportError as error:
    raise needed("nodectl.Pool", "cloudpickle", error) from None

from ._frames import OUT_OF_BAND_BYTES, RAW, Payload, in_band, with_buffers
from ._upload import files

_RAW = bytes([RAW])
# cloudpickle's register of modules is the process's: one at a time.
_registering = threading.Lock()
# Values that never refer to code.
_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))
# Workers have stand-ins for our own modules, and this cloudpickle.
_OWN = {"nodectl", "distributed_computing", "ludwigcluster", "cloudpickle"}
# But these run there.
_BY_VALUE_ALWAYS = {"nodectl._caller", "nodectl._batches", "nodectl._hydra", "nodectl._remote", "nodectl._trials"}
# Larger files of a package are no code: `sources` ships them.
_LARGEST_FILE = 10 << 20


class Pickler:
    """Pickles calls for one pool. Thread-safe."""

    def __init__(self, sources: List[str]) -> None:
        prefixes = [os.path.realpath(path) for path in [*_installed(), *sources]]
        self._not_local = tuple(path if os.path.isfile(path) else path + os.sep for path in prefixes)
        self._modules_seen = 0
        self._local: List[str] = []
        self._marks: List[bytes] = []
        #: Files that workers get, by their names there.
        self.files = self._take_along()

    def _take_along(self) -> Dict[str, str]:
        """The files of local modules that are imported now. From here on they are importable on workers."""
        files: Dict[str, str] = {}
        for name in {name.partition(".")[0] for name in self._local_modules()} - _BY_VALUE_ALWAYS - {"nodectl"}:
            found = _module_files(name)
            files.update(found)
            self._not_local += tuple(os.path.realpath(path) for path in found.values())
        self._modules_seen = 0
        return files

    def call(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Payload:
        """The payload for arguments. Fails with what the arguments' pickling fails with."""
        value = (args, kwargs)
        if not kwargs:
            if len(args) == 1 and type(args[0]) is bytes and len(args[0]) >= OUT_OF_BAND_BYTES:
                return [_RAW, args[0]]
            if _ATOMS.issuperset(map(type, args)):
                return pickle.dumps(value, 5)
        buffers: List[Any] = []
        keep = in_band(buffers)
        try:
            data = pickle.dumps(value, 5, buffer_callback=keep)
            if not self._refers_to_local_code(data):
                return with_buffers(data, buffers)
        except Exception:
            pass
        del buffers[:]
        return with_buffers(self.by_value(value, keep), buffers)

    def dumps(self, value: Any, reducers: Dict[type, Any]) -> bytes:
        """A pickle, with local code in it if it refers to some. `reducers` are those of `by_value`."""
        try:
            file = io.BytesIO()
            pickler = pickle.Pickler(file, 5)
            pickler.dispatch_table = {**copyreg.dispatch_table, **reducers}
            pickler.dump(value)
            if not self._refers_to_local_code(file.getvalue()):
                return file.getvalue()
        except Exception:
            pass
        return self.by_value(value, reducers=reducers)

    def by_value(self, value: Any, buffer_callback: Any = None, reducers: Optional[Dict[type, Any]] = None) -> bytes:
        """A pickle with all local code in it. `reducers` say how objects of some classes are pickled, as in `copyreg`."""
        with _registering:
            registered = []
            try:
                for name in self._local_modules():
                    module = sys.modules.get(name)
                    if module is not None and name not in cloudpickle.list_registry_pickle_by_value():
                        cloudpickle.register_pickle_by_value(module)
                        registered.append(module)
                file = io.BytesIO()
                _CodePickler(file, reducers, protocol=5, buffer_callback=buffer_callback).dump(value)
                return file.getvalue()
            finally:
                for module in registered:
                    cloudpickle.unregister_pickle_by_value(module)

    def _refers_to_local_code(self, data: bytes) -> bool:
        if len(sys.modules) != self._modules_seen:
            self._local_modules()
        return any(mark in data for mark in self._marks)

    def _local_modules(self) -> List[str]:
        if len(sys.modules) != self._modules_seen:
            self._modules_seen = len(sys.modules)
            self._local = [name for name, module in list(sys.modules.items()) if self._is_local(name, module)]
            # How a pickle of protocol 4 and later names a module (SHORT_BINUNICODE).
            names = [name.encode() for name in ["__main__", *self._local]]
            self._marks = [b"\x8c" + bytes([len(name)]) + name for name in names if len(name) < 256]
        return self._local

    def _is_local(self, name: str, module: Any) -> bool:
        if name in _BY_VALUE_ALWAYS:
            return True
        file = getattr(module, "__file__", None)
        if name in ("__main__", "__mp_main__") or not isinstance(file, str) or name.partition(".")[0] in _OWN:
            return False
        # By the name that modules go by on workers too, not by that of a program's file.
        return not _real_path(file).startswith(self._not_local)


def _real_path(file: str) -> str:
    """As `os.path.realpath`, which looks at all directories above each file: a program has thousands of modules in hundreds."""
    directory, name = os.path.split(file)
    if not os.path.isabs(directory):
        return os.path.realpath(file)
    path = os.path.join(_real_directory(directory), name)
    return os.path.realpath(path) if os.path.islink(path) else path


@functools.lru_cache(maxsize=None)
def _real_directory(path: str) -> str:
    return os.path.realpath(path)


def _code_reduce(code: types.CodeType) -> Any:
    """With the name of the file, which newer versions of cloudpickle leave out and tracebacks show."""
    make, args = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return make, tuple(code.co_filename if type(arg) is str and arg == "<dynamic-code>" else arg for arg in args)


class _CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles the main module's functions so that those of a worker share their variables, as in a module: what one of them sets
    there, an initializer for instance, the others see."""

    dispatch_table = ChainMap({types.CodeType: _code_reduce}, cloudpickle.Pickler.dispatch_table)

    def __init__(self, file: Any, reducers: Optional[Dict[type, Any]], **options: Any) -> None:
        if reducers:
            # What it begins with is what counts.
            self.dispatch_table = ChainMap(reducers, *self.dispatch_table.maps)
        super().__init__(file, **options)
        self._main = vars(sys.modules["__main__"])
        self.globals_ref[id(self._main)] = _MainGlobals(__name__="__main__")

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)
        # Without a name in them, as named tuples have them, they come late enough.
        has_slots = isinstance(value, type) and bool(vars(value).get("__slots__"))
        if has_slots and type(reduced) is tuple and reduced[0] is _make_skeleton_class:
            return _with_slots(reduced)
        return reduced

    def _dynamic_function_reduce(self, function: Any) -> Any:
        reduced = super()._dynamic_function_reduce(function)
        if function.__globals__ is self._main:
            slots = reduced[2][1]
            slots["__globals__"] = _Variables(slots["__globals__"])
        return reduced


def _with_slots(reduced: Any) -> Any:
    """A class that is made with its slots: cloudpickle sets them afterwards, when they come too late, so that instances which come
    back have what the class here has no place for."""
    make, (kind, name, bases, options, *rest), (attributes, state), *more = reduced
    kept = {key: value for key, value in attributes.items() if type(value) is not types.MemberDescriptorType}
    options = {**options, "__slots__": kept.pop("__slots__")}
    return (make, (kind, name, bases, options, *rest), (kept, state), *more)


class _MainGlobals(Dict[str, Any]):
    def __reduce_ex__(self, protocol: Any) -> Any:
        return _main.main_globals, ()


class _Variables(Dict[str, Any]):
    def __reduce_ex__(self, protocol: Any) -> Any:
        # A function that uses none can be kept by workers, whatever others bring.
        return (_main.renewed, (dict(self),)) if self else (dict, ())


def _module_files(name: str) -> Dict[str, str]:
    """The files of a top-level module or package, by their names below the directory that it is imported from. None of one
    that is not found by its name: one made by hand, or loaded from anywhere."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not os.path.isfile(file):
        return {}
    place = os.path.dirname(os.path.dirname(file) if hasattr(module, "__path__") else file)
    if not any(os.path.realpath(root or os.getcwd()) == os.path.realpath(place) for root in sys.path):
        return {}
    if not hasattr(module, "__path__"):
        return {os.path.basename(file): file}
    paths = files([os.path.dirname(file)])
    return {inside: path for inside, path in paths if os.path.getsize(path) <= _LARGEST_FILE}


def _installed() -> Set[str]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths.update(site.getsitepackages() if hasattr(site, "getsitepackages") else [])
    paths.add(site.getusersitepackages() if hasattr(site, "getusersitepackages") else "")
    paths.update(path for path in sys.path if path not in paths and _has_packages(path))
    return {path for path in paths if path}


def _has_packages(path: str) -> bool:
    """Whether packages were installed there, e.g. by `pip install --target`."""
    if path.endswith(("site-packages", "dist-packages", ".zip")):
        return True
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(path))
    except OSError:
        return False


def init_payload(pickler: Pickler, worker_class: Any, args: Any, kwargs: Any, settings: Dict[str, Any]) -> bytes:
    """The INIT of a pool: a line of JSON, cloudpickle for nodes that lack it, the class and its arguments."""
    import json

    archive = _cloudpickle_archive()
    line = {
        "mode": "pool",
        "python": list(sys.version_info[:2]),
        "cloudpickle": cloudpickle.__version__,
        "archive": len(archive),
        **settings,
    }
    pickled = pickler.by_value((worker_class, tuple(args), dict(kwargs)))
    return json.dumps(line).encode() + b"\n" + archive + pickled


def _cloudpickle_archive() -> bytes:
    directory = os.path.dirname(cloudpickle.__file__)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        for name in sorted(os.listdir(directory)):
            if name.endswith(".py"):
                files.write(os.path.join(directory, name), "cloudpickle/" + name)
    return archive.getvalue()
