"""Owns a run of the kit: which checks are run, one after another, and the report.

It does not know what the checks do.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from cartdeck_conformance import catalogue
from cartdeck_conformance.bench import Bench, Findings
from cartdeck_conformance.catalogue import Check
from cartdeck_conformance.conversation import Setup
from cartdeck_conformance.durations import Durations
from cartdeck_conformance.peers import PeerAnswer, Peers
from cartdeck_conformance.report import Report, Result, Status
from cartdeck_conformance.schedule import BY_NUMBER, SCHEDULE, Scheduled
from cartdeck_conformance.verdict import Fault, NotExercised
from cartdeck_protocol.caps import Sample


def _ignore(_: Check) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a run may be told beside the command."""

    samples: Mapping[str, Sample] = field(default_factory=dict[str, Sample])
    """By alias: they win over those of the manifest."""
    peers: Mapping[str, PeerAnswer] = field(default_factory=dict[str, PeerAnswer])
    """How to answer peer calls, by the alias or the URN of a cap."""
    manifest: bytes | None = None
    """The manifest.json on disk, where it is known; else the command is asked for it."""
    folder: Path | None = None
    """Where the command is started; where this process works if left out."""
    environment: Mapping[str, str] | None = None
    """What its processes get in place of this process's environment."""
    durations: Durations = field(default_factory=Durations)
    on_check: Callable[[Check], object] = _ignore
    """Called before each check."""


def check_cartridge(
    command: Sequence[str], *, fast: bool = False, only: Collection[int] = (), options: Options | None = None
) -> Report:
    """Start the cartridge that `command` serves, as often as it takes, and check it.

    `fast` sends less and starts fewer processes. `only` names checks by number; what they need is run too. Every wait
    is bounded by `options.durations`, and no process is left behind, whatever is raised. ValueError for a number that
    is none.
    """
    return _run(tuple(command), fast, only, options or Options(), threading.Event())


async def check_cartridge_async(
    command: Sequence[str], *, fast: bool = False, only: Collection[int] = (), options: Options | None = None
) -> Report:
    """The same beside other tasks: in a worker thread, which ends soon when this is cancelled."""
    stop, is_over = threading.Event(), threading.Event()

    def work() -> Report:
        try:
            return _run(tuple(command), fast, only, options or Options(), stop)
        finally:
            is_over.set()

    try:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    finally:
        stop.set()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(is_over.wait, (options or Options()).durations.exit_s * 2)


def _run(
    command: tuple[str, ...], fast: bool, only: Collection[int], options: Options, stop: threading.Event
) -> Report:
    unknown = sorted(set(only) - BY_NUMBER.keys())
    if unknown:
        raise ValueError(f"there is no check {unknown[0]}; they have the numbers 1 to {max(BY_NUMBER)}")
    started = time.monotonic()
    findings = Findings()
    setup = Setup(
        command,
        options.durations,
        Peers(options.peers),
        findings.tell,
        folder=options.folder,
        environment=options.environment,
        stop=stop,
    )
    bench = Bench(setup, findings, is_fast=fast, file=options.manifest, samples=options.samples)
    run = _Run(bench, options.on_check)
    asked = [one for one in SCHEDULE if not only or one.check.number in only]
    for one in asked:
        run.check(one)
    results = [run.result(one) for one in SCHEDULE if not only or one.check.number in only or run.has_failed(one)]
    name = "" if bench.manifest is None else f"{bench.manifest.name} {bench.manifest.version}"
    return Report(command, name, results, bench.figures, time.monotonic() - started)


class _Run:
    """The checks that ran so far. What another one needs is run first, once."""

    def __init__(self, bench: Bench, on_check: Callable[[Check], object]) -> None:
        self._bench = bench
        self._on_check = on_check
        self._took_s: dict[int, float] = {}
        self._why_not: dict[int, str] = {}

    def check(self, one: Scheduled) -> None:
        number = one.check.number
        if number in self._took_s:
            return
        needs = one.needs if one.check is catalogue.HANDSHAKE else (catalogue.HANDSHAKE, *one.needs)
        for earlier in (*needs, *one.after):
            self.check(BY_NUMBER[earlier.number])
        failed = [earlier for earlier in needs if not self._can_build_on(earlier)]
        self._took_s[number] = 0.0
        if failed:
            self._why_not[number] = f"it needs {failed[0]}, which has not passed"
            return
        self._on_check(one.check)
        started = time.monotonic()
        try:
            one.run(self._bench)
        except Fault as fault:
            self._bench.findings.tell(fault.check or one.check, fault.message)
        except NotExercised as reason:
            self._why_not[number] = str(reason)
        self._took_s[number] = time.monotonic() - started

    def _can_build_on(self, check: Check) -> bool:
        if check is catalogue.HANDSHAKE:
            return self._bench.manifest is not None
        return check.number not in self._bench.findings.faults and check.number not in self._why_not

    def has_failed(self, one: Scheduled) -> bool:
        return one.check.number in self._bench.findings.faults

    def result(self, one: Scheduled) -> Result:
        number = one.check.number
        faults = self._bench.findings.faults.get(number, [])
        notes = list(self._bench.findings.notes.get(number, []))
        status = Status.PASSED
        if faults:
            status = Status.FAILED
        elif number in self._why_not:
            status = Status.NOT_EXERCISED
            notes.insert(0, self._why_not[number])
        return Result(one.check, status, list(faults), notes, self._took_s.get(number, 0.0))
