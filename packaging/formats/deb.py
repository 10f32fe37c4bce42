"""A package for Debian and its relatives: an `ar` archive of two tar archives (deb(5))."""

import hashlib
import lzma
import textwrap

from . import changelog
from .common import DESCRIPTION, LICENCE, SUMMARY, File, packed, tar

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# When each of them runs, and what.
_SCRIPTS = {"postinst": ("configure", "set-up"), "prerm": ("remove", "stop"), "postrm": ("purge", "purge")}


def make(product):
    copyright_file = File("usr/share/doc/nodectl/copyright", _copyright(product))
    news = changelog.debian(product.releases, product.maintainer)
    # A package without a Debian revision is native: its changelog has this name (Debian Policy, 12.7).
    news_file = File("usr/share/doc/nodectl/changelog.gz", packed(news.encode()))
    files = sorted([*product.system_files("usr/share/zsh/vendor-completions"), copyright_file, news_file])
    architecture = _ARCHITECTURES[product.machine]
    size = sum(len(file.content) for file in files)
    depends = "Depends: libc6 (>= %s)\n" % product.glibc if product.glibc else ""
    # The Python package is in the program; python3 is for tasks that are written in it.
    control = (
        "Package: nodectl\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nInstalled-Size: %d\n%sRecommends: python3\n"
        "Section: science\nPriority: optional\nDescription: %s\n%s\n"
        % (product.version, architecture, product.maintainer, -(-size // 1024), depends, SUMMARY, _indented(DESCRIPTION))
    )
    sums = "".join("%s  %s\n" % (hashlib.md5(file.content).hexdigest(), file.path) for file in files)
    settings = "".join("/%s\n" % file.path for file in files if file.is_setting)
    members = [File("control", control.encode()), File("conffiles", settings.encode()), File("md5sums", sums.encode())]
    for name, (when, script) in _SCRIPTS.items():
        head = '#!/bin/sh\nset -e\n[ "$1" = %s ] || exit 0\n' % when
        members.append(File(name, head.encode() + product.source("scripts/" + script), 0o755))
    parts = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", packed(tar(members, product.epoch, "./"))),
        ("data.tar.xz", lzma.compress(tar(files, product.epoch, "./"), preset=6)),
    ]
    return "nodectl_%s_%s.deb" % (product.version, architecture), _ar(parts, product.epoch)


def _copyright(product):
    """Who has the rights, in the place and the form where Debian's programs look (copyright-format 1.0)."""
    mit = product.source("../LICENSE-MIT").decode()
    holder = next(line for line in mit.splitlines() if line.startswith("Copyright (c) "))
    terms = mit.partition(holder)[2].strip()
    paragraphs = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: nodectl",
        "Files: *\nCopyright: %s\nLicense: %s" % (holder[len("Copyright (c) ") :], LICENCE.replace("MIT", "Expat").replace(" OR ", " or ")),
        "License: Expat\n" + "\n .\n".join(_indented(one.replace("\n", " ")) for one in terms.split("\n\n")),
        "License: Apache-2.0\n The text is in LICENSE-APACHE beside this file, and in /usr/share/common-licenses/Apache-2.0.",
    ]
    return ("\n\n".join(paragraphs) + "\n").encode()


def _indented(text):
    return textwrap.fill(text, 78, initial_indent=" ", subsequent_indent=" ")


def _ar(parts, epoch):
    made = [b"!<arch>\n"]
    for name, content in parts:
        head = "%-16s%-12d%-6d%-6d%-8s%-10d`\n" % (name, epoch, 0, 0, "100644", len(content))
        made += [head.encode(), content, b"\n" * (len(content) % 2)]
    return b"".join(made)
