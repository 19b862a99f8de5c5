"""Owns which of the names that are there come near one that is not, for an error that helps.

It does not know where the names come from.
"""

import difflib
from collections.abc import Iterable, Sequence

COUNT = 5
MOST_NAMES = 20_000


def near_names(wanted: str, names: Iterable[str]) -> list[str]:
    """Up to five of `names` that are like `wanted`, by the whole name or by its last part, the nearest first."""
    candidates = sorted({name for _, name in zip(range(MOST_NAMES), names, strict=False)})
    by_last_part: dict[str, list[str]] = {}
    for name in candidates:
        by_last_part.setdefault(_last_part(name).lower(), []).append(name)
    found = [name for key in _close(_last_part(wanted).lower(), list(by_last_part)) for name in by_last_part[key]]
    found += _close(wanted, candidates)
    return list(dict.fromkeys(found))[:COUNT]


def near_sentence(near: Sequence[str], *, otherwise: str = "") -> str:
    """` Near it: a, b.`, ready to follow a sentence; `otherwise` where nothing is near."""
    return f" Near it: {', '.join(near)}." if near else otherwise


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _close(wanted: str, names: list[str]) -> list[str]:
    return difflib.get_close_matches(wanted, names, n=COUNT, cutoff=0.6)
