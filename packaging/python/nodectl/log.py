"""`Log`: entries in one order, which the cluster keeps, and which programs on any of its machines append and read.

    import nodectl

    log = nodectl.Log("measurements")
    log.append({"temperature": 4.2})
    for entry in log.read():
        print(entry.number, entry.value)

An entry that was appended is on the disks of several nodes, once, and every reader finds it under the same number: whichever node
is asked, and whatever nodes die meanwhile.
"""

from __future__ import annotations

import json
import uuid
from typing import Any, Iterator, List, NamedTuple, Tuple

from . import _jobs, _node

# How long one request waits for entries that are to come, in ms.
_WAIT_MS = 2000
_ENDED = ("done", "failed", "cancelled")


class Entry(NamedTuple):
    """What was appended, and where it stands."""

    #: Counted from 0. Numbers rise; some may be missing.
    number: int
    value: Any


class Log:
    """The log of this name, which is begun where there is none.

    Any program may open it that runs as the same user at a node of the cluster. What is appended stays until the log is removed: it
    is a job to `nodectl jobs`, and `nodectl cancel NAME` closes it. A name that was removed is free again after 30 days.

    :param name: Of the log, in the whole cluster.
    :raises NodeError: There is no node, and none can be started; or the name is of something else.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._node, _ = _jobs.open_node()
        request = {"name": name, "log": True}
        self._job = _jobs.submit(self._node, request, key="log:" + name)
        # So many entries were seen, or appended, here: a reader is not told of fewer again.
        self._known = 0

    def append(self, value: Any) -> int:
        """Appends what JSON can express, and returns the number of the entry, which is safe then. One entry has at most 64 KiB.

        :raises TypeError: The value has something in it that JSON has no form for.
        :raises ValueError: JSON cannot express it: NaN or an infinity is in it, or it is in itself.
        :raises NodeError: The log is closed or full (1,048,576 entries), the entry is too large, or nobody who keeps the log answers.
        """
        return self._append(json.dumps(value, allow_nan=False))

    def _append(self, entry: str) -> int:
        """The same of text that `json.dumps` wrote, which may have numbers in it that are Python's alone."""
        # However often it has to be asked for, it is one entry. A text, since others that read JSON round numbers.
        body = json.dumps({"key": uuid.uuid4().hex, "entry": entry, "known": self._known}).encode()
        target = "/v1/jobs/%s/entries" % self._job
        answer = _jobs.again(lambda: _node.request(self._node, "POST", target, body, kind="application/json"))
        number = int(answer["entry"])
        self._known = max(self._known, number + 1)
        return number

    def read(self, start: int = 0) -> List[Entry]:
        """All entries from this number on.

        :raises ValueError: The number is negative: entries are counted from 0.
        """
        entries: List[Entry] = []
        while True:
            found, start, _ = self._page(start, 0)
            if not found:
                return entries
            entries += _entries(found)

    def follow(self, start: int = 0) -> Iterator[Entry]:
        """Entries from this number on, as they are appended, until the log is closed."""
        while True:
            found, start, phase = self._page(start, _WAIT_MS)
            yield from _entries(found)
            if not found and phase in _ENDED:
                return

    def close(self) -> None:
        """Nothing can be appended any more, by anybody. What is in it can be read."""
        _jobs.cancel(self._node, self._job)

    def _page(self, start: int, wait_ms: int) -> Tuple[List[Any], int, str]:
        """Some results from this entry on, the number of the next, and how the log is."""
        if start < 0:
            raise ValueError("there is no entry %d of a log: they are counted from 0" % start)
        target = "/v1/jobs/%s/results?claim=0&position=%d&wait_ms=%d"
        while True:
            # What was told once is waited for: a node that has just taken the log over may not know yet who has it all.
            wait = max(wait_ms, _WAIT_MS if start < self._known else 0)
            page = _jobs.again(lambda: _node.request(self._node, "GET", target % (self._job, start, wait)))
            found = page["results"]
            if found:
                self._known = max(self._known, found[-1]["task"] + 1)
                return found, found[-1]["task"] + 1, page["progress"]["phase"]
            if start >= self._known:
                return found, start, page["progress"]["phase"]

    def __reduce__(self) -> Any:
        return Log, (self.name,)

    def __repr__(self) -> str:
        return "<Log %s>" % self.name


def _entries(found: List[Any]) -> List[Entry]:
    # One without a value holds the place of an entry that never was.
    return [Entry(one["task"], _value(one["value"]["entry"])) for one in found if one.get("value") is not None]


def _value(entry: Any) -> Any:
    # What is no text was appended by a program that speaks the API itself.
    return json.loads(entry) if isinstance(entry, str) else entry
