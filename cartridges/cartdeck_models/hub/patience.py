"""Owns how often a failed request is tried again, how long is waited before, and what is said meanwhile.

It does not know what is requested. Whoever got further says so, and then the count begins anew.
"""

import time
from dataclasses import dataclass, field

from cartdeck_models.hub.client import BrokenError, RefusedError, StrangeAnswerError
from cartdeck_models.hub.refusal import PHASE, Asked, refused
from cartdeck_models.task import Advance, Task, pause
from cartdeck_protocol.errors import CartdeckError, Code, failure

RATE_LIMITED, STALLED = "rate_limited", "stalled"
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 8.0
MOST_BREAKS = 5
MOST_CONNECTS = 3
MOST_RATE_LIMITS = 8
LONGEST_RATE_LIMIT_S = 900.0

Trouble = RefusedError | BrokenError | StrangeAnswerError


@dataclass(slots=True)
class Patience:
    """For one request or one file. `work` and `total` are the bytes that its reports show.

    `is_hasty`: the first trouble is told at once, since whoever asks has another answer at hand.
    """

    task: Task
    asked: Asked
    stall_limit_s: float
    work: int = 0
    total: int | None = None
    is_hasty: bool = False
    _breaks: int = 0
    _rate_limits: int = 0
    _moved_s: float = field(default_factory=time.monotonic)

    def moved(self) -> None:
        """Something came: what failed before does not count any more."""
        self._breaks = self._rate_limits = 0
        self._moved_s = time.monotonic()

    def after(self, trouble: Trouble) -> None:
        """Wait as long as `trouble` asks for; the caller tries again. Raises the typed error once that is no use."""
        self.task.raise_if_cancelled(PHASE)
        if isinstance(trouble, RefusedError):
            self._after_refusal(trouble)
        elif isinstance(trouble, BrokenError):
            self._after_break(trouble)
        else:
            raise failure(
                Code.ENDPOINT_UNREACHABLE,
                f"{trouble}: it is no hub, or something between changed the answer. Check HF_ENDPOINT.",
                phase=PHASE,
                details={"repository": self.asked.repository},
            ) from None

    def _after_refusal(self, trouble: RefusedError) -> None:
        refusal = trouble.refusal
        wait_s = refusal.retry_after_s
        if refusal.is_rate_limit:
            self._rate_limits += 1
            wait_s = self._growing_s(self._rate_limits) if wait_s is None else wait_s
            if self.is_hasty or self._rate_limits > MOST_RATE_LIMITS or wait_s > LONGEST_RATE_LIMIT_S:
                raise refused(refusal, self.asked) from None
            self._wait(wait_s, RATE_LIMITED, f"{refusal.host} asks to wait {wait_s:.0f} s")
            return
        self._breaks += 1
        if self.is_hasty or not refusal.is_passing or self._breaks > MOST_BREAKS:
            raise refused(refusal, self.asked) from None
        wait_s = self._growing_s(self._breaks)
        self._wait(wait_s, STALLED, f"{refusal.host} answers {refusal.status}: trying again")

    def _after_break(self, trouble: BrokenError) -> None:
        self._breaks += 1
        if self.is_hasty or (not trouble.was_made and self._breaks >= MOST_CONNECTS):
            raise failure(
                Code.ENDPOINT_UNREACHABLE,
                f"{trouble.host} cannot be reached: {trouble.reason}. Check the network, the proxy and HF_ENDPOINT.",
                phase=PHASE,
                details={"host": trouble.host, "repository": self.asked.repository},
            ) from None
        silent_s = time.monotonic() - self._moved_s
        if trouble.is_quiet and silent_s >= self.stall_limit_s:
            raise self.stalled(trouble.host, silent_s) from None
        if self._breaks > MOST_BREAKS and not (trouble.is_quiet and silent_s < self.stall_limit_s):
            raise self._interrupted(trouble) from None
        self._wait(self._growing_s(self._breaks), STALLED, f"{trouble.host}: {trouble.reason}; trying again")

    def stalled(self, host: str, silent_s: float) -> CartdeckError:
        return failure(
            Code.DOWNLOAD_STALLED,
            f"{host} has sent nothing of {self.asked.what} for {silent_s:.0f} s, also over new connections. "
            "Check the network and start again: what came is kept.",
            phase=PHASE,
            details={"host": host, "got": self.work, "expected": self.total},
        )

    def _interrupted(self, trouble: BrokenError) -> CartdeckError:
        return failure(
            Code.DOWNLOAD_INTERRUPTED,
            f"The transfer of {self.asked.what} broke off {self._breaks} times in a row without getting further "
            f"({trouble.host}: {trouble.reason}). Start again: what came is kept.",
            phase=PHASE,
            details={"host": trouble.host, "got": self.work, "expected": self.total},
        )

    def _growing_s(self, count: int) -> float:
        return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (count - 1))

    def _wait(self, seconds: float, phase: str, message: str) -> None:
        self.task.report(Advance(None, message, phase, self.work, self.total))
        pause(self.task, seconds, phase)
