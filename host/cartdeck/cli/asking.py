"""Owns one call whose answer a command reads itself, before it prints something of its own.

It does not know which cap is asked, nor what is printed.
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from cartdeck.cli.bar import open_display
from cartdeck.cli.display import Display
from cartdeck.cli.running import KEEP_BYTES, run_interruptible, shown
from cartdeck.engine import Engine
from cartdeck.events import Data, End, Log, Progress, Result
from cartdeck_protocol.errors import CartdeckError, from_wire

Ask = Callable[..., Awaitable[Result]]
"""`await ask(cap, arguments, on_data=…)`: the result of a call; `on_data` sees each piece of output as it comes."""
OnData = Callable[[Data], None]


def run_asking(
    work: Callable[[Ask], Awaitable[None]],
    *,
    timeout_s: float | None = None,
    is_quiet: bool = False,
    is_verbose: bool = False,
    display: Display | None = None,
) -> None:
    """Run `work(ask)` with an engine and a display. Raises what a call raised, ReaderGone, or Interrupted."""

    async def run() -> None:
        screen = display or open_display(is_quiet=is_quiet, is_verbose=is_verbose)
        async with Engine() as engine:

            async def ask(cap: str, arguments: Mapping[str, Any], on_data: OnData = _ignore) -> Result:
                async with shown(screen):
                    return await _ask(engine, cap, arguments, screen, on_data, timeout_s)

            await work(ask)

    run_interruptible(run)


async def ask_about(
    ask: Ask, cap: str, arguments: Mapping[str, Any], *, name: str, path: Path, on_data: OnData | None = None
) -> Result:
    """Asks with the file as the argument `name`: one of several, so an error that comes of it begins with its path."""
    try:
        return await ask(cap, {**arguments, name: path}, on_data or _ignore)
    except CartdeckError as error:
        if error.argument != name and error.phase != "inference":
            raise
        raise from_wire({**error.to_wire(), "message": f"{path}: {error.message}"}) from error


async def _ask(
    engine: Engine, cap: str, arguments: Mapping[str, Any], display: Display, on_data: OnData, timeout_s: float | None
) -> Result:
    call = engine.call(cap, arguments, timeout_s=timeout_s, keep_bytes=KEEP_BYTES)
    display.begin(cap, call)
    async with call:
        async for event in call:
            match event:
                case Progress():
                    display.progress(event)
                case Log():
                    display.log(event)
                case Data():
                    on_data(event)
                case End():
                    pass
    return call.result


def _ignore(_: Data) -> None: ...
