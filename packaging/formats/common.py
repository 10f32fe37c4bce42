"""What packages have in common: the product, the files that a system gets, archives whose bytes depend on nothing but their content."""

import dataclasses
import gzip
import io
import os
import re
import stat
import struct
import tarfile
from typing import Dict, List, NamedTuple, Optional

from .changelog import Release, releases

SUMMARY = "One program that turns the machines of a lab into a GPU cluster"
DESCRIPTION = (
    "Copied to every machine and started with the same secret, nodectl makes a cluster of them: jobs use the cores and GPUs of all, "
    "there is no head node, and machines may die while jobs run."
)
LICENCE = "MIT OR Apache-2.0"
# An address that nobody has (RFC 2606): who publishes packages gives their own (`--maintainer`).
MAINTAINER = "The nodectl authors <nodectl@nodectl.invalid>"
SERVICE = "usr/lib/systemd/system/nodectl.service"
# Of ELF headers: what processor a program is for.
_MACHINES = {62: "x86_64", 183: "aarch64"}
_PT_INTERP = 3
_SHT_GNU_VERNEED = 0x6FFFFFFE
# What is imported: the package, the interfaces of two older ones, and plugins whose names other libraries look for.
_PYTHON_PACKAGES = (
    "distributed_computing",
    "hydra_plugins/hydra_nodectl_launcher",
    "ludwigcluster",
    "nodectl",
    "snakemake_executor_plugin_nodectl",
)
# The first day that a zip file knows.
_1980 = 315532800


class Failed(Exception):
    """A package cannot be made. The text says what to do."""


class File(NamedTuple):
    """A file of a system, by its path without the slash in front."""

    path: str
    content: bytes
    mode: int = 0o644
    #: Kept as its administrator has it when the package is upgraded.
    is_setting: bool = False


@dataclasses.dataclass
class Product:
    """The program, and what it said of itself."""

    here: str
    version: str
    program: bytes
    pages: Dict[str, bytes]
    completions: Dict[str, bytes]
    sbom: Optional[bytes]
    maintainer: str = MAINTAINER

    @property
    def epoch(self) -> int:
        return int(os.environ.get("SOURCE_DATE_EPOCH", _1980))

    @property
    def machine(self) -> str:
        """What the program runs on, as `uname -m` has it. A script runs on this machine."""
        if self.program[:4] != b"\x7fELF":
            return os.uname().machine
        number = struct.unpack_from("<H", self.program, 18)[0]
        if number not in _MACHINES:
            raise Failed("packages are made for %s, and this program is for another processor" % " and ".join(_MACHINES.values()))
        return _MACHINES[number]

    @property
    def is_static(self) -> bool:
        """Whether the kernel starts it without a loader."""
        if self.program[:4] != b"\x7fELF":
            return False
        start, size, count = struct.unpack_from("<Q", self.program, 32) + struct.unpack_from("<HH", self.program, 54)
        return all(struct.unpack_from("<I", self.program, start + at * size)[0] != _PT_INTERP for at in range(count))

    @property
    def glibc(self) -> Optional[str]:
        """The oldest version of glibc that has all symbols which the program uses; None if it is static."""
        if self.program[:4] != b"\x7fELF" or self.is_static:
            return None
        versions = [tuple(map(int, found)) for found in re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)", self._version_names())]
        return "%d.%d" % max(versions) if versions else None

    def _version_names(self) -> bytes:
        """Strings that its section .gnu.version_r refers to (System V gABI, Symbol Versioning), with more of that table."""
        start, size, count = struct.unpack_from("<Q", self.program, 40) + struct.unpack_from("<HH", self.program, 58)
        sections = [struct.unpack_from("<IIQQQQII", self.program, start + at * size) for at in range(count)]
        tables = [sections[section[6]] for section in sections if section[1] == _SHT_GNU_VERNEED]
        return b"".join(b"\0" + self.program[table[4] : table[4] + table[5]] for table in tables)

    def source(self, path: str) -> bytes:
        """A file of the sources, relative to packaging/."""
        with open(os.path.join(self.here, path), "rb") as file:
            return file.read()

    @property
    def releases(self) -> List[Release]:
        """What is new in this version and in those before."""
        return releases(self.source("../CHANGELOG.md").decode(), self.version, self.epoch)

    def python_files(self) -> List[File]:
        """The Python package, by the names that it is imported by."""
        found = []
        for package in _PYTHON_PACKAGES:
            for name in sorted(os.listdir(os.path.join(self.here, "python", package))):
                if name.endswith(".py") or name == "py.typed":
                    path = "%s/%s" % (package, name)
                    found.append(File(path, self.source("python/" + path)))
        return found

    def system_files(self, zsh: str) -> List[File]:
        """What a package puts into a system; `zsh` is where its completions are."""
        unit = self.source("nodectl.service").replace(b"/usr/local/bin/", b"/usr/bin/")
        licences = [File("usr/share/doc/nodectl/" + name, self.source("../" + name)) for name in ("LICENSE-APACHE", "LICENSE-MIT")]
        pages = [File("usr/share/man/man1/%s.gz" % name, packed(page)) for name, page in self.pages.items()]
        files = [
            File("etc/nodectl/nodectl.toml", self.source("../config/nodectl.toml"), is_setting=True),
            File("usr/bin/nodectl", self.program, 0o755),
            File(SERVICE, unit),
            File("usr/lib/sysusers.d/nodectl.conf", self.source("nodectl.sysusers")),
            File("usr/share/bash-completion/completions/nodectl", self.completions["bash"]),
            File("usr/share/fish/vendor_completions.d/nodectl.fish", self.completions["fish"]),
            File(zsh + "/_nodectl", self.completions["zsh"]),
        ]
        return sorted([*files, *licences, *pages])


def packed(content: bytes) -> bytes:
    """gzip without a name and a time."""
    return gzip.compress(content, 9, mtime=0)


def directories(files: List[File]) -> List[str]:
    """The directories that the files are in, those above first."""
    found = set()
    for file in files:
        above = os.path.dirname(file.path)
        while above:
            found.add(above)
            above = os.path.dirname(above)
    return sorted(found)


def tar(files: List[File], epoch: int, prefix: str = "", with_directories: bool = True) -> bytes:
    """An archive whose files are root's, in their order. Directories are of mode 0755, unless they are among the files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:

        def member(name: str, mode: int) -> tarfile.TarInfo:
            info = tarfile.TarInfo(prefix + name)
            info.mtime, info.mode, info.uname, info.gname = epoch, mode, "root", "root"
            return info

        for name in directories(files) if with_directories else []:
            info = member(name, 0o755)
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        for file in files:
            info = member(file.path, stat.S_IMODE(file.mode))
            if stat.S_ISDIR(file.mode):
                info.type = tarfile.DIRTYPE
            info.size = len(file.content)
            archive.addfile(info, io.BytesIO(file.content))
    return made.getvalue()
