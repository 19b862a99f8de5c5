"""Owns one thing that was found out about an installation. It does not know how."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Health(StrEnum):
    GOOD = "ok"
    NOTE = "note"
    """Something is not there that can be lived without."""
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`topic` is what was looked at, `said` what was found, `remedy` the command or deed that mends it."""

    topic: str
    said: str
    health: Health = Health.GOOD
    remedy: str = ""

    def to_plain(self) -> dict[str, Any]:
        return {**asdict(self), "health": str(self.health)}


def is_well(findings: Sequence[Finding]) -> bool:
    """Whether there is no problem. What can be lived without is none."""
    return all(finding.health is not Health.PROBLEM for finding in findings)
