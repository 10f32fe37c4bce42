"""Sizes as job files write them, and counts as people read them."""

from __future__ import annotations

import re
from typing import Union

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def size(given: Union[int, float, str]) -> int:
    """Bytes, of a number of them or of a text such as `"2 GiB"`. Raises ValueError for anything else."""
    if isinstance(given, str):
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", given)
        unit = _UNITS.get(found.group(2).lower()) if found else None
        if found and unit:
            return int(float(found.group(1)) * unit)
    elif not isinstance(given, bool) and given >= 0 and int(given) == given:
        return int(given)
    raise ValueError('%r is no size, which is a number of bytes, or a text such as "2 GiB" or "500 MB"' % (given,))


def counted(count: int, one: str) -> str:
    """A count with what is counted: `1 task`, `2 tasks`."""
    return "1 %s" % one if count == 1 else "%d %ss" % (count, one)
