"""The Python environment that a pool's workers run in: made by the nodes, of files that travel with the pool."""

from __future__ import annotations

import os
import re
import sys
from typing import Dict, List, Mapping, Optional, Tuple

from ._upload import files

_KEYS = ("version", "requirements", "lock", "project", "conda", "wheels")
# Where workers have what it is made of, in their directory.
_PLACE = "environment"
_LIST = re.compile(r"^(?:--requirement|--constraint|-r|-c)[=\s]*(\S+)")

Environment = Mapping[str, str]


def plan(environment: Optional[Environment], python: Optional[str]) -> Tuple[Optional[Dict[str, str]], Dict[str, str]]:
    """What the node is told of it, and the files for it, by the names that workers know them by: `python` may be "match", for
    nodes' own Python of this minor version, wherever it is. None without an environment.

    Fails with ValueError for what no node could make, with FileNotFoundError for files that are not there."""
    ours = "%d.%d" % sys.version_info[:2]
    if environment is None:
        return ({"version": ours}, {}) if python == "match" else (None, {})
    if python not in (None, "match"):
        raise ValueError("`environment` brings its Python: leave `python` out, or name its version in `environment`")
    unknown = sorted(set(environment) - set(_KEYS))
    if unknown:
        raise ValueError("`environment` has no key %r; there are %s" % (unknown[0], ", ".join(_KEYS)))
    told = {key: os.fspath(value) for key, value in environment.items()}
    version = told.get("version", ours)
    if ".".join(version.split(".")[:2]) != ours:
        raise ValueError(
            "workers run code of this program, whose Python is %s: an environment of Python %s cannot" % (ours, version)
        )
    if "conda" not in told:
        # Not whatever is called python3 there.
        told["version"] = version
    named: Dict[str, str] = {}
    for key in ("requirements", "lock", "project", "conda", "wheels"):
        if key in told:
            told[key] = _place(key, told[key], named)
    return told, named


def _place(key: str, path: str, named: Dict[str, str]) -> str:
    """Adds the files that a path stands for. Gives its name on the nodes."""
    path = os.path.abspath(path)
    base = os.path.basename(path)
    if not os.path.exists(path):
        raise FileNotFoundError("`environment` names %s, which is not there" % path)
    place = "%s/%s" % (_PLACE, base)
    if key == "requirements":
        return _lists(path, named)
    if key == "lock":
        project = os.path.join(os.path.dirname(path), "pyproject.toml")
        if base != "uv.lock" or not os.path.isfile(project):
            raise ValueError("`lock` is a uv.lock with its pyproject.toml beside it, not %s" % path)
        named["%s/pyproject.toml" % _PLACE] = project
        named[place] = path
        return place
    if key == "conda":
        named[place] = path
        return place
    directory = "%s/%s" % (_PLACE, key)
    if not os.path.isdir(path):
        raise ValueError("`%s` is a directory, not %s" % (key, path))
    found: List[Tuple[str, str]] = [(os.path.relpath(full, path), full) for _, full in files([path])]
    if key == "wheels":
        found = [(name, full) for name, full in found if name.endswith(".whl") and "/" not in name]
        if not found:
            raise ValueError("there are no wheels in %s" % path)
    elif not any(name == "pyproject.toml" for name, _ in found):
        raise ValueError("%s has no pyproject.toml" % path)
    named.update(("%s/%s" % (directory, name), full) for name, full in found)
    return directory


def _lists(first: str, named: Dict[str, str]) -> str:
    """Adds a list of packages and those that it names, which have to be below its directory."""
    base = os.path.dirname(first)
    left = [first]
    while left:
        path = os.path.normpath(left.pop())
        name = os.path.relpath(path, base)
        if name.startswith(".."):
            raise ValueError("%s is not below %s, whose lists name it" % (path, base))
        place = "%s/%s" % (_PLACE, name)
        if place in named:
            continue
        named[place] = path
        with open(path, encoding="utf-8", errors="replace") as lines:
            found = [_LIST.match(line.strip()) for line in lines]
        others = [match.group(1) for match in found if match and "://" not in match.group(1)]
        left.extend(os.path.join(os.path.dirname(path), other) for other in others)
    return "%s/%s" % (_PLACE, os.path.basename(first))
