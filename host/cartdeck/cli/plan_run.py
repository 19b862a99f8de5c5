"""Owns one plan run from the command line: its events go to the display, its outputs to files or standard output.

It does not know the notation, nor how the view of the steps looks.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import anyio
import anyio.to_thread

from cartdeck.cli.output import STANDARD_LINE, FileOutput, StandardOutput
from cartdeck.cli.plan_file import check_given, read_lists
from cartdeck.cli.plan_output import PlanOutput
from cartdeck.cli.plan_view import PlanView, open_view
from cartdeck.cli.render import json_line
from cartdeck.cli.running import TICK_S, run_interruptible
from cartdeck.engine import Engine
from cartdeck.plans.events import PlanEnded
from cartdeck.plans.plain_result import output_record, plan_record
from cartdeck.plans.plan import Plan
from cartdeck.plans.result import Output, PlanResult
from cartdeck.plans.run import PlanRun
from cartdeck.size import size_text
from cartdeck_protocol.errors import Code, failure


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

    check_given(plan, dict(inputs))
    inputs = read_lists(plan, inputs)

    async def work() -> None:
        with ExitStack() as files:
            outs = {
                name: files.enter_context(FileOutput(path, force=options.force))
                for name, path in _parse_outs(options.outs, plan.output_names).items()
            }
            async with Engine() as engine:
                view = open_view(is_quiet=options.is_quiet, is_verbose=options.is_verbose)
                run = PlanRun(engine, plan, inputs, on_error=options.on_error, state=options.state)
                rest = [name for name in plan.output_names if name not in outs]
                shown = None if options.as_json or len(rest) != 1 else PlanOutput(run, rest[0], view)
                await _watch(run, view, shown)
                for text, more in await anyio.to_thread.run_sync(_write, run.result, outs, options):
                    view.tell(text, **more)

    run_interruptible(work)


async def _watch(run: PlanRun, view: PlanView, shown: PlanOutput | None) -> None:
    failed: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_tick, view)
        try:
            async with run:
                view.begin(run.compiled)
                if shown is not None:
                    tasks.start_soon(shown.write)
                async for event in run:
                    if shown is not None and shown.holds_back(event):
                        tasks.start_soon(shown.tell_end)  # the others go on meanwhile
                        continue
                    if shown is not None and isinstance(event, PlanEnded):
                        await shown.settle()
                    view.take(event)
                if shown is not None:
                    await shown.written.wait()
        except BaseException as error:  # carried out bare: a task group would wrap it
            failed = error
        view.close()
        STANDARD_LINE.end_on_terminal()
        tasks.cancel_scope.cancel()
    failed = failed if shown is None or shown.error is None else shown.error
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


def _write(
    result: PlanResult, outs: Mapping[str, FileOutput], options: RunOptions
) -> list[tuple[str, dict[str, str | int]]]:
    """Write what the plan gave. For each file what is to be told of it, as text and as fields."""
    told: list[tuple[str, dict[str, str | int]]] = []
    for name, file in outs.items():
        output, writer = result.output(name), _Writer(file)
        output.write_to(cast("BinaryIO", writer))
        file.commit()
        text = f"wrote {name} to {file.path}: {size_text(writer.size_bytes)}"
        told.append((text, {"output": name, "out": str(file.path), "size_bytes": writer.size_bytes}))
    rest = {name: output for name, output in result.outputs.items() if name not in outs}
    if options.as_json:
        StandardOutput().write(json_line(_record(result, rest, outs)).encode())
    elif len(rest) > 1:  # a single one has been written as it came
        for name, output in rest.items():
            StandardOutput().write(json_line({"output": name, **output_record(output)}).encode())
    return told


class _Writer:
    def __init__(self, output: FileOutput) -> None:
        self._output = output
        self.size_bytes = 0

    def write(self, data: bytes) -> int:
        self._output.write(data)
        self.size_bytes += len(data)
        return len(data)


def _record(result: PlanResult, outputs: Mapping[str, Output], outs: Mapping[str, FileOutput]) -> dict[str, Any]:
    given = {name: output_record(output) for name, output in outputs.items()}
    return plan_record(result, given | {name: {"out": str(file.path)} for name, file in outs.items()})
