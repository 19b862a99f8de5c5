"""Owns what the kit found: the result of each check, and all of them as text or as plain data.

It does not know how anything was found.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cartdeck_conformance.catalogue import Check


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_EXERCISED = "not exercised"


@dataclass(slots=True)
class Result:
    """How one check ended. `faults` say what was wrong; `notes` what was not exercised, or is good to know."""

    check: Check
    status: Status
    faults: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    took_s: float = 0.0

    def to_plain(self) -> dict[str, Any]:
        return {
            "number": self.check.number,
            "name": self.check.name,
            "sentence": self.check.sentence,
            "status": str(self.status),
            "faults": self.faults,
            "notes": self.notes,
            "remedy": self.check.remedy if self.faults else None,
            "took_s": round(self.took_s, 3),
        }


@dataclass(slots=True)
class Report:
    """All results, in the order of their numbers. `figures` are measurements by name (seconds, bytes, counts)."""

    command: tuple[str, ...]
    cartridge: str
    """Name and version as its manifest says; empty where no manifest came."""
    results: list[Result]
    figures: dict[str, float] = field(default_factory=dict[str, float])
    took_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether no check failed. What was not exercised is no failure, and is listed."""
        return not self.failed

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.results if result.status is Status.FAILED]

    @property
    def not_exercised(self) -> list[str]:
        """What this run says nothing of, as sentences: whole checks, and parts of those that passed."""
        lines: list[str] = []
        for result in self.results:
            is_whole = result.status is Status.NOT_EXERCISED
            lines += [f"{result.check}: {note}" for note in result.notes if is_whole or "not exercised" in note]
        return lines

    def to_plain(self) -> dict[str, Any]:
        """One record for JSON."""
        return {
            "command": list(self.command),
            "cartridge": self.cartridge,
            "passed": self.passed,
            "results": [result.to_plain() for result in self.results],
            "not_exercised": self.not_exercised,
            "figures": {name: round(value, 6) for name, value in self.figures.items()},
            "took_s": round(self.took_s, 3),
        }

    def __str__(self) -> str:
        lines = [f"{self.cartridge or ' '.join(self.command)}: {self.summary}"]
        for result in self.failed:
            lines.append(f"{result.check}: {result.check.sentence}")
            lines += [f"    found: {fault}" for fault in result.faults]
            lines.append(f"    do: {result.check.remedy}")
        if self.not_exercised:
            lines.append("Not exercised:")
            lines += [f"    {line}" for line in self.not_exercised]
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """ "28 checks passed, 1 failed, 1 not exercised, in 6.2 s" """
        counts = {status: sum(result.status is status for result in self.results) for status in Status}
        words = [f"{count} {status}" for status, count in counts.items() if count]
        return f"{_joined(words)} of {len(self.results)} checks, in {self.took_s:.1f} s"


def _joined(words: Sequence[str]) -> str:
    return ", ".join(words) or "none"
