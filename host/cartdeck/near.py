"""Owns the search for names that look like a mistyped one. It does not know what the names mean."""

import difflib
from collections.abc import Iterable


def near_names(wanted: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """Up to `count` of the known names, the most alike first."""
    names = sorted(set(known))
    within = [name for name in names if wanted and wanted in name]
    alike = difflib.get_close_matches(wanted, names, n=count, cutoff=0.5)
    return list(dict.fromkeys([*alike, *within]))[:count]
