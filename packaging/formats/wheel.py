"""A wheel with the program and the Python package together (PyPA's binary distribution format)."""

import base64
import hashlib
import io
import re
import time
import zipfile

from .common import LICENCE, SUMMARY, Failed, File

# A program that needs no C library runs wherever the oldest installers look for wheels.
_STATIC = ("manylinux_2_17", "musllinux_1_1")


def make(product):
    project = product.source("python/pyproject.toml").decode()
    bases = ("manylinux_" + product.glibc.replace(".", "_"),) if product.glibc else _STATIC
    platform = ".".join("%s_%s" % (base, product.machine) for base in bases)
    tag = "py3-none-" + platform
    stem = "nodectl-%s" % product.version
    info = stem + ".dist-info/"
    each = "".join("Tag: py3-none-%s\n" % one for one in platform.split("."))
    about = "Wheel-Version: 1.0\nGenerator: nodectl\nRoot-Is-Purelib: false\n" + each
    files = [
        *product.python_files(),
        File(stem + ".data/scripts/nodectl", product.program, 0o755),
        File(info + "METADATA", _metadata(product, project)),
        File(info + "WHEEL", about.encode()),
        File(info + "entry_points.txt", _entry_points(project)),
        *[File(info + "licenses/" + name, product.source("../" + name)) for name in ("LICENSE-APACHE", "LICENSE-MIT")],
    ]
    if product.sbom:
        files.append(File(info + "sboms/nodectl.cdx.json", product.sbom))
    record = "".join("%s,sha256=%s,%d\n" % (file.path, _hash(file.content), len(file.content)) for file in files)
    files.append(File(info + "RECORD", (record + info + "RECORD,,\n").encode()))
    return "%s-%s.whl" % (stem, tag), _zip(files, product.epoch)


def _metadata(product, project):
    needs = _list(project, "dependencies")
    head = [
        "Metadata-Version: 2.1",
        "Name: nodectl",
        "Version: " + product.version,
        "Summary: " + SUMMARY,
        "License: " + LICENCE,
        "Requires-Python: " + _value(project, "requires-python"),
        *["Requires-Dist: " + need for need in needs],
    ]
    for line in _lines(project, "[project.optional-dependencies]"):
        extra, _, wanted = line.partition(" = ")
        head.append("Provides-Extra: " + extra)
        head += ['Requires-Dist: %s ; extra == "%s"' % (need.strip('" '), extra) for need in wanted.strip("[]").split(",")]
    head.append("Description-Content-Type: text/markdown")
    return ("\n".join(head) + "\n\n").encode() + product.source("python/README.md")


def _entry_points(project):
    """The programs of the package, and what other libraries find of it."""
    groups = {"console_scripts": _lines(project, "[project.scripts]")}
    for table, name in re.findall(r'^(\[project\.entry-points\."?([\w.]+)"?\])$', project, flags=re.M):
        groups[name] = _lines(project, table)
    return "\n".join("\n".join(["[%s]" % name, *lines, ""]) for name, lines in groups.items()).replace('"', "").encode()


def _lines(project, table):
    """The lines of a table. tomllib came with Python 3.11; these are written plainly."""
    if table + "\n" not in project:
        raise Failed("packaging/python/pyproject.toml has no table " + table)
    return project.partition(table + "\n")[2].partition("\n\n")[0].splitlines()


def _value(project, key):
    found = [line for line in _lines(project, "[project]") if line.startswith(key + " = ")]
    if len(found) != 1:
        raise Failed("packaging/python/pyproject.toml says not once what its %s is" % key)
    return found[0].partition(" = ")[2].strip('"')


def _list(project, key):
    return [one.strip().strip('"') for one in _value(project, key).strip("[]").split(",")]


def _hash(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _zip(files, epoch):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for file in files:
            member = zipfile.ZipInfo(file.path, time.gmtime(epoch)[:6])
            member.external_attr = (0o100000 | file.mode) << 16
            member.create_system = 3
            archive.writestr(member, file.content, zipfile.ZIP_DEFLATED, 9)
    return made.getvalue()
