"""Owns verifying what is kept: each file's hash taken anew, compared with what it must be, and the time written down.

It does not know handlers, nor where the files came from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cartdeck_models.hub.digest import digest_of
from cartdeck_models.inventory import HubModel, Inventory, KeptModel, WheelModel
from cartdeck_models.record import now_text
from cartdeck_models.task import Meter, Task
from cartdeck_models.unfinished import UnfinishedModel
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_sdk.keepalive import Report

PHASE = "verify"
GIT_DIGITS = 40


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """What was found of one file: `got` is its hash, None where it cannot be read; `expected` is None where nothing
    says what it must be."""

    place: Path
    size_bytes: int
    expected: str | None
    got: str | None

    @property
    def is_intact(self) -> bool | None:
        """None where nothing says what the file must be."""
        return None if self.expected is None else self.expected == self.got

    def to_plain(self) -> dict[str, Any]:
        return {
            "path": str(self.place),
            "size_bytes": self.size_bytes,
            "expected": self.expected,
            "got": self.got,
            "is_intact": self.is_intact,
        }


def verify(inventory: Inventory, models: Sequence[KeptModel], task: Task, report: Report) -> dict[str, Any]:
    """Hash every file of `models`; the record that verify-model gives.

    Raises DOWNLOAD_INTERRUPTED for a model that is not whole; HASH_MISMATCH, once all is hashed, with the files that
    are not what they must be; CANCELLED.
    """
    for model in models:
        if isinstance(model, UnfinishedModel):
            raise model.not_whole()
    gauge = _Gauge(sum(model.size_bytes for model in models), task, report)
    checked: list[CheckedFile] = []
    verified: list[str] = []
    for model in models:
        assert not isinstance(model, UnfinishedModel), "refused above"
        files = _check(model, gauge)
        checked += files
        verified.append(_write_down(inventory, model, files))
    bad = [file for file in checked if file.is_intact is False]
    if bad:
        raise _mismatch(models, bad)
    return {
        "specs": [model.spec for model in models],
        "size_bytes": sum(model.size_bytes for model in models),
        "verified": max(verified),
        "files": [file.to_plain() for file in checked],
    }


class _Gauge:
    """Counts hashed bytes over all files."""

    def __init__(self, total: int, task: Task, report: Report) -> None:
        self._total = total
        self._task = task
        self._report = report
        self._meter = Meter("")
        self._done = 0

    def begin(self, place: Path) -> Callable[[int], None]:
        """What counts the bytes of the file at `place`."""
        self._meter.name = place.name
        before = self._done

        def count(position: int) -> None:
            self._task.raise_if_cancelled(PHASE)
            self._done = before + position
            fraction = self._done / self._total if self._total else 1.0
            self._report(fraction, self._meter.message(self._done, self._total), self._done, self._total)

        return count

    @property
    def is_stopped(self) -> Callable[[], bool]:
        return self._task.is_cancelled


def _check(model: WheelModel | HubModel, gauge: _Gauge) -> list[CheckedFile]:
    if isinstance(model, WheelModel):
        wanted = [(place, place, file.sha256) for place, file in zip(model.places, model.record.files, strict=True)]
    else:
        wanted = [(file.place, file.content, file.content_id) for file in model.files]
    checked: list[CheckedFile] = []
    done: dict[Path, CheckedFile] = {}
    for place, content, expected in wanted:
        if content not in done:
            done[content] = _check_file(place, content, expected, gauge)
        checked.append(replace(done[content], place=place))
    return checked


def _check_file(place: Path, content: Path, expected: str | None, gauge: _Gauge) -> CheckedFile:
    count = gauge.begin(place)
    is_git = expected is not None and len(expected) == GIT_DIGITS
    try:
        size = content.stat().st_size
        digest = digest_of(content, on_position=count, is_stopped=gauge.is_stopped, wants_git=is_git)
    except OSError:
        return CheckedFile(place, 0, expected, None)
    count(size)
    return CheckedFile(place, size, expected, digest.shown(as_sha256=not is_git))


def _write_down(inventory: Inventory, model: WheelModel | HubModel, files: Sequence[CheckedFile]) -> str:
    """Keep the time where the files are what they must be; forget it where not."""
    now = now_text()
    if isinstance(model, WheelModel):
        if all(file.is_intact for file in files):
            inventory.store.rewrite(model.key, replace(model.record, verified=now))
        return now
    for cached, file in zip(model.files, files, strict=True):
        if cached.content_id is None:
            continue
        if file.is_intact:
            inventory.verified.mark(model.snapshot.repository, cached.content_id, cached.content)
        else:
            inventory.verified.forget(model.snapshot.repository, cached.content_id)
    return now


def _mismatch(models: Sequence[KeptModel], bad: Sequence[CheckedFile]) -> CartdeckError:
    first = bad[0]
    found = f"has {first.got}" if first.got is not None else "cannot be read"
    more = f" {len(bad) - 1} more files are damaged too." if len(bad) > 1 else ""
    spec = models[0].spec
    return failure(
        Code.HASH_MISMATCH,
        f"{first.place} is damaged: its hash must be {first.expected}, and it {found}.{more} "
        f"Remove it and fetch it again: cartdeck rm {spec}, then cartdeck pull {spec}.",
        phase=PHASE,
        argument="model",
        details={"files": [file.to_plain() for file in bad[:100]], "specs": [model.spec for model in models]},
    )
