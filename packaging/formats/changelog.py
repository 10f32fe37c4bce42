"""What a release brought, out of CHANGELOG.md (keepachangelog.com), in the forms of deb and rpm."""

import calendar
import re
import textwrap
import time
from typing import List, NamedTuple


class Release(NamedTuple):
    """A version, the second of its day, and what is new in it: paragraphs without line ends."""

    version: str
    seconds: int
    news: List[str]


def releases(text: str, version: str, epoch: int) -> List[Release]:
    """The newest first. One without a date is from the day of the packages, `epoch`; `version` is there even where the text says
    nothing of it."""
    found = []
    for line in text.splitlines():
        head = re.match(r"## \[(\d\S*)\](?: - (\d{4}-\d\d-\d\d))?", line)
        if head:
            day = calendar.timegm(time.strptime(head.group(2), "%Y-%m-%d")) if head.group(2) else epoch
            found.append(Release(head.group(1), day, []))
        elif found and line.startswith("- "):
            found[-1].news.append(line[2:])
        elif found and line.startswith("  ") and found[-1].news:
            found[-1].news[-1] += " " + line.strip()
    if version not in [release.version for release in found]:
        found.insert(0, Release(version, epoch, ["A new release."]))
    return found


def debian(found: List[Release], maintainer: str) -> str:
    """deb-changelog(5)."""
    entries = []
    for release in found:
        news = [textwrap.fill(one, 78, initial_indent="  * ", subsequent_indent="    ") for one in release.news]
        date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(release.seconds))
        head = "nodectl (%s) unstable; urgency=medium" % release.version
        entries.append("%s\n\n%s\n\n -- %s  %s\n" % (head, "\n".join(news), maintainer, date))
    return "\n".join(entries)


def rpm(found: List[Release], maintainer: str):
    """What a header has of each release: its time, which is noon of its day, who made it, and its text."""
    times = [release.seconds // 86400 * 86400 + 43200 for release in found]
    names = ["%s - %s-1" % (maintainer, release.version) for release in found]
    texts = ["\n".join("- " + one for one in release.news) for release in found]
    return times, names, texts
