"""A package for Fedora, SUSE and their relatives: a lead, a header of digests, a header of what the package is, a compressed cpio
archive (rpm.org, "RPM V4 Package File Format"). Not signed."""

import hashlib
import os
import struct

from . import changelog
from .common import DESCRIPTION, LICENCE, SUMMARY, File, packed

# Types of values in a header.
_INT16, _INT32, _STRING, _BINARY, _STRINGS, _TRANSLATED = 3, 4, 6, 7, 8, 9
_DIRECTORY, _REGULAR = 0o040000, 0o100000
# Of a file: its administrator's changes stay; documentation.
_SETTING, _DOCUMENTATION = 1 | 16, 2
# Of a requirement: <=, and that rpm itself meets it.
_OF_RPM = 8 | 2 | 1 << 24
_EQUAL = 8
_SHA256 = 8
_OWN_DIRECTORIES = ("etc/nodectl", "usr/share/doc/nodectl")


def make(product):
    files = product.system_files("usr/share/zsh/site-functions")
    files = sorted([*files, *[File(path, b"", _DIRECTORY | 0o755) for path in _OWN_DIRECTORIES]])
    archive = _cpio(files, product.epoch)
    payload = packed(archive)
    header = _header(63, _described(product, files, payload))
    digests = [
        (269, _STRING, hashlib.sha1(header).hexdigest()),
        (273, _STRING, hashlib.sha256(header).hexdigest()),
        (1000, _INT32, [len(header) + len(payload)]),
        (1004, _BINARY, hashlib.md5(header + payload).digest()),
        (1007, _INT32, [len(archive)]),
    ]
    name = "nodectl-%s-1" % product.version
    lead = struct.pack(">4sBBhh66shh16x", b"\xed\xab\xee\xdb", 3, 0, 0, 1, name.encode(), 1, 5)
    signature = _header(62, digests)
    signature += b"\0" * (-len(signature) % 8)
    return "%s.%s.rpm" % (name, product.machine), lead + signature + header + payload


def _described(product, files, payload):
    """The tags of the package, by number."""
    paths = [os.path.split(file.path) for file in files]
    dirs = sorted({above for above, _ in paths})
    is_dir = [file.mode & _DIRECTORY == _DIRECTORY for file in files]
    scripts = [product.source("scripts/" + name).decode() for name in ("set-up", "stop")]
    own = "nodectl(%s)" % product.machine.replace("_", "-")
    needed = [("/bin/sh", 0, ""), ("rpmlib(CompressedFileNames)", _OF_RPM, "3.0.4-1")]
    needed += [("rpmlib(FileDigests)", _OF_RPM, "4.6.0-1"), ("rpmlib(PayloadFilesHavePrefix)", _OF_RPM, "4.0-1")]
    if product.glibc:
        needed.append(("libc.so.6(GLIBC_%s)(64bit)" % product.glibc, 0, ""))
    count = len(files)
    times, names, texts = changelog.rpm(product.releases, product.maintainer)
    return [
        (100, _STRINGS, ["C"]),
        (1000, _STRING, "nodectl"),
        (1001, _STRING, product.version),
        (1002, _STRING, "1"),
        (1004, _TRANSLATED, [SUMMARY]),
        (1005, _TRANSLATED, [DESCRIPTION]),
        (1006, _INT32, [product.epoch]),
        (1007, _STRING, "localhost"),
        (1009, _INT32, [sum(len(file.content) for file in files)]),
        (1014, _STRING, LICENCE),
        (1015, _STRING, product.maintainer),
        (1016, _TRANSLATED, ["Unspecified"]),
        (1021, _STRING, "linux"),
        (1022, _STRING, product.machine),
        (1024, _STRING, "set -e\n" + scripts[0]),
        (1025, _STRING, '[ "$1" = 0 ] || exit 0\n' + scripts[1]),
        (1028, _INT32, [len(file.content) for file in files]),
        (1030, _INT16, [file.mode if folder else file.mode | _REGULAR for file, folder in zip(files, is_dir)]),
        (1033, _INT16, [0] * count),
        (1034, _INT32, [product.epoch] * count),
        (1035, _STRINGS, ["" if folder else hashlib.sha256(file.content).hexdigest() for file, folder in zip(files, is_dir)]),
        (1036, _STRINGS, [""] * count),
        (1037, _INT32, [_flags(file) for file in files]),
        (1039, _STRINGS, ["root"] * count),
        (1040, _STRINGS, ["root"] * count),
        (1044, _STRING, "nodectl-%s-1.src.rpm" % product.version),
        (1045, _INT32, [0xFFFFFFFF] * count),
        (1047, _STRINGS, ["nodectl", own]),
        (1048, _INT32, [flags for _, flags, _ in needed]),
        (1049, _STRINGS, [name for name, _, _ in needed]),
        (1050, _STRINGS, [version for _, _, version in needed]),
        (1080, _INT32, times),
        (1081, _STRINGS, names),
        (1082, _STRINGS, texts),
        (1086, _STRING, "/bin/sh"),
        (1087, _STRING, "/bin/sh"),
        (1095, _INT32, [1] * count),
        (1096, _INT32, list(range(1, count + 1))),
        (1097, _STRINGS, [""] * count),
        (1112, _INT32, [_EQUAL, _EQUAL]),
        (1113, _STRINGS, [product.version + "-1"] * 2),
        (1116, _INT32, [dirs.index(above) for above, _ in paths]),
        (1117, _STRINGS, [name for _, name in paths]),
        (1118, _STRINGS, ["/%s/" % above for above in dirs]),
        (1124, _STRING, "cpio"),
        (1125, _STRING, "gzip"),
        (1126, _STRING, "9"),
        (5011, _INT32, [_SHA256]),
        (5092, _STRINGS, [hashlib.sha256(payload).hexdigest()]),
        (5093, _INT32, [_SHA256]),
    ]


def _flags(file):
    if file.is_setting:
        return _SETTING
    return _DOCUMENTATION if file.path.startswith(("usr/share/man/", "usr/share/doc/")) else 0


def _header(region, tags):
    """A header: an index of tags, then their values. The first entry, the region, says that all of it is one piece."""
    index, store = [], b""
    for tag, kind, value in sorted(tags):
        width = {_INT16: 2, _INT32: 4}.get(kind, 1)
        store += b"\0" * (-len(store) % width)
        count = 1 if kind == _STRING else len(value)
        index.append(struct.pack(">IIII", tag, kind, len(store), count))
        store += _value(kind, value)
    size = 16 * (len(index) + 1)
    index.insert(0, struct.pack(">IIII", region, _BINARY, len(store), 16))
    store += struct.pack(">IIiI", region, _BINARY, -size, 16)
    return struct.pack(">4s4xII", b"\x8e\xad\xe8\x01", len(index), len(store)) + b"".join(index) + store


def _value(kind, value):
    if kind == _INT16:
        return struct.pack(">%dH" % len(value), *value)
    if kind == _INT32:
        return struct.pack(">%dI" % len(value), *value)
    if kind == _BINARY:
        return value
    return b"".join(one.encode() + b"\0" for one in ([value] if kind == _STRING else value))


def _cpio(files, epoch):
    made = []

    def member(number, name, mode, content):
        links, date = (0, 0) if mode == 0 else (1, epoch)
        fields = (number, mode, 0, 0, links, date, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        for part in (head, content):
            made.extend((part, b"\0" * (-len(part) % 4)))

    for number, file in enumerate(files, 1):
        kind = 0 if file.mode & _DIRECTORY else _REGULAR
        member(number, "./" + file.path, file.mode | kind, file.content)
    member(0, "TRAILER!!!", 0, b"")
    return b"".join(made)
