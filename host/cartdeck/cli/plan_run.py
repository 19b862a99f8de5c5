"""Owns one plan run from the command line: its events go to the display, its outputs to files or standard output.

It does not know the notation, nor how the view of the steps looks.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import anyio
import anyio.to_thread

from cartdeck.cli.output import STANDARD_LINE, FileOutput, StandardOutput, TerminalText
from cartdeck.cli.plan_view import PlanView, open_view
from cartdeck.cli.render import json_line
from cartdeck.cli.running import TICK_S, run_interruptible
from cartdeck.engine import Engine
from cartdeck.plans.plain_result import output_record, plan_record
from cartdeck.plans.plan import Plan
from cartdeck.plans.result import Output, PlanResult
from cartdeck.plans.run import PlanRun
from cartdeck_protocol.errors import Code, failure

_COPIED: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    outs: tuple[str, ...] = ()
    state: Path | None = None
    on_error: str = "fail"
    force: bool = False
    as_json: bool = False
    is_quiet: bool = False
    is_verbose: bool = False


def run_plan_here(plan: Plan, inputs: Mapping[str, Any], options: RunOptions) -> None:
    """Run the plan and write what it gave. Raises what the plan raised, ReaderGone or Interrupted. The files of
    `--out` are checked before anything starts."""

    async def work() -> None:
        with ExitStack() as files:
            outs = {
                name: files.enter_context(FileOutput(path, force=options.force))
                for name, path in _parse_outs(options.outs, plan.output_names).items()
            }
            async with Engine() as engine:
                view = open_view(is_quiet=options.is_quiet, is_verbose=options.is_verbose)
                run = PlanRun(engine, plan, inputs, on_error=options.on_error, state=options.state)
                await _watch(run, view)
                await anyio.to_thread.run_sync(_write, run.result, outs, options)

    run_interruptible(work)


async def _watch(run: PlanRun, view: PlanView) -> None:
    failed: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_tick, view)
        try:
            async with run:
                view.begin(run.compiled)
                async for event in run:
                    view.take(event)
        except BaseException as error:  # carried out bare: a task group would wrap it
            failed = error
        view.close()
        tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed


async def _tick(view: PlanView) -> None:
    while True:
        await anyio.sleep(TICK_S)
        view.tick()


def _parse_outs(pairs: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for pair in pairs:
        name, separator, path = pair.partition("=")
        if not separator and len(names) == 1:
            name, path = names[0], pair
        if not path or name not in names:
            known = ", ".join(names) or "none"
            message = f"'{pair}' names no output; expected NAME=FILE, where NAME is one of: {known}."
            raise failure(Code.BAD_ARGUMENT, message, argument="--out")
        found[name] = Path(path).expanduser()
    return found


def _write(result: PlanResult, outs: Mapping[str, FileOutput], options: RunOptions) -> None:
    for name, file in outs.items():
        output = result.output(name)
        output.write_to(cast("BinaryIO", _Writer(file)))
        file.commit()
    rest = {name: output for name, output in result.outputs.items() if name not in outs}
    if options.as_json:
        StandardOutput().write(json_line(_record(result, rest, outs)).encode())
    elif len(rest) == 1:
        _print(next(iter(rest.values())))
    else:
        for name, output in rest.items():
            StandardOutput().write(json_line({"output": name, **output_record(output)}).encode())


class _Writer:
    def __init__(self, output: FileOutput | StandardOutput) -> None:
        self._output = output

    def write(self, data: bytes) -> int:
        self._output.write(data)
        return len(data)


def _print(output: Output) -> None:
    """The only output, as it is; a terminal gets text that cannot move its cursor."""
    standard = StandardOutput()
    if not standard.is_terminal:
        output.write_to(cast("BinaryIO", _Writer(standard)))
        return
    text = TerminalText()
    with tempfile.TemporaryFile() as file:
        output.write_to(cast("BinaryIO", file))
        file.seek(0, os.SEEK_SET)
        while data := file.read(_COPIED):
            shown = text.feed(data)
            STANDARD_LINE.follow(shown)
            standard.write(shown)
        standard.write(text.feed(b"", is_last=True))
    STANDARD_LINE.end_on_terminal()


def _record(result: PlanResult, outputs: Mapping[str, Output], outs: Mapping[str, FileOutput]) -> dict[str, Any]:
    given = {name: output_record(output) for name, output in outputs.items()}
    return plan_record(result, given | {name: {"out": str(file.path)} for name, file in outs.items()})
