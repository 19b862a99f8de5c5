"""Owns a run of pip as a process of its own: what it says on the way, its end, and that it ends with its caller.

It does not know what is installed, nor where.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from cartdeck.sessions.network_cut import network_cut
from cartdeck.sessions.process import tied_to_host
from cartdeck_protocol.errors import Code, failure

Tell = Callable[[str], None]
"""Gets one line for a person at a time."""

_RAW_PROGRESS: Final = re.compile(r"Progress (\d+) of (\d+)")
_TOLD: Final = re.compile(r"\s*(Collecting|Downloading|Building|Installing|Preparing|Processing|Using cached)\b")
_LAST_LINES: Final = 12
_STEPS: Final = 10


async def run_pip(arguments: Sequence[str], *, tell: Tell, has_network: bool = True) -> None:
    """Run `python -m pip ARGUMENTS`. Cancelled, it ends pip and all that pip started, at once. Without `has_network` it
    reaches none where this system allows that.

    Raises START_FAILED with pip's last lines where it fails, CARTRIDGE_UNAVAILABLE where there is no pip.
    """
    cut = () if has_network else (await asyncio.to_thread(network_cut)).prefix
    words = (sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments)
    await _run((*cut, *tied_to_host(words)), tell, "pip")


async def make_environment(folder: str) -> None:
    """A virtual environment without pip. Raises START_FAILED."""
    await _run(tied_to_host((sys.executable, "-m", "venv", "--without-pip", folder)), _silent, "venv")


async def _run(command: Sequence[str], tell: Tell, what: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        limit=2**20,
    )
    last: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        assert process.stdout is not None
        await _listen(process.stdout, last, tell)
        status = await process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.shield(process.wait())
        raise
    if status:
        lines = [line for line in last if line.strip()]
        if any("No module named pip" in line for line in lines):
            remedy = f"Bring it with: {sys.executable} -m ensurepip"
            raise failure(Code.CARTRIDGE_UNAVAILABLE, "pip is not in this Python", details={"remedy": remedy})
        said = next((line for line in lines if line.startswith("ERROR: ")), lines[-1] if lines else f"status {status}")
        details = {"log": lines, "remedy": f"The last lines of {what} say why."}
        raise failure(Code.START_FAILED, f"{what} failed: {said.removeprefix('ERROR: ')}", details=details)


async def _listen(stream: asyncio.StreamReader, last: deque[str], tell: Tell) -> None:
    told_step = -1
    while True:
        try:
            line = (await stream.readline()).decode(errors="replace")
        except ValueError:  # a line longer than the limit
            continue
        if not line:
            return
        line = line.rstrip()
        progress = _RAW_PROGRESS.fullmatch(line)
        if progress is None:
            last.append(line)
            told_step = -1
            if _TOLD.match(line):
                tell(line.strip())
            continue
        done, total = int(progress[1]), int(progress[2])
        step = done * _STEPS // total if total else 0
        if step != told_step:
            told_step = step
            tell(f"{done / 1e6:.1f} of {total / 1e6:.1f} MB")


def _silent(_: str) -> None: ...
