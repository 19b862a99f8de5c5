"""Owns how many items of a grammar may be left out one after another: in each the engine keeps a place of its own.

It does not know how a grammar is written. The engine's time for a token grows with the cube of that, and nothing stops
it: 22 s with 400 such places, a tenth of a second with 64.
"""

from collections.abc import Mapping, Sequence
from typing import Final

MOST_LEFT_OUT: Final = 64

Rules = Mapping[str, list[list[str | None]]]


def longest_run(rules: Rules, empty: set[str], copies: Mapping[str, int]) -> tuple[int, str]:
    """The most items that one text may pass at one place, and the rule they stand in. `empty` are the rules that may
    take nothing; `copies` says how often a rule is repeated. No rule begins with itself."""
    runs: dict[str, int] = {}
    most = (0, "")
    for start in rules:
        waiting = [start]
        while waiting:
            name = waiting[-1]
            missing = [item for one in rules[name] for item in _passed(one, empty) if item not in runs]
            if missing and name not in runs:
                waiting.extend(missing)
                continue
            waiting.pop()
            if name not in runs:
                runs[name] = max((_run(one, runs, empty) for one in rules[name]), default=0)
                runs[name] *= copies.get(name, 1) if name in empty else 1
    for name, alternatives in rules.items():
        for one in alternatives:
            for index in range(len(one)):
                if index == 0 or one[index - 1] is None or one[index - 1] not in empty:  # where a run begins
                    most = max(most, (_run(one, runs, empty, start=index), name))
        most = max(most, (runs[name], name))
    return most


def _passed(items: Sequence[str | None], empty: set[str]) -> list[str]:
    """The rules among the items up to the first that takes a character."""
    found: list[str] = []
    for item in items:
        if item is not None:
            found.append(item)
        if item is None or item not in empty:
            break
    return found


def _run(items: Sequence[str | None], runs: Mapping[str, int], empty: set[str], *, start: int = 0) -> int:
    total = 0
    for index in range(start, len(items)):
        item = items[index]
        total += 1 if item is None else runs.get(item, 1)
        if item is None or item not in empty:
            break
    return total
