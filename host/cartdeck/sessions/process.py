"""Owns one child process: its start, its frame pipes, its exit, and its end with everything it started.

It does not know frames, caps or sessions. Everything here runs on the event loop's thread: the kernel's death signal
follows the *thread* that started the child, so a worker thread that ends would take the cartridge with it.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from cartdeck.environment import SESSION_VARIABLE
from cartdeck.sessions.log_ring import LogRing
from cartdeck.sessions.marked import end_marked
from cartdeck.settings import StopSettings
from cartdeck_protocol.errors import Code, failure

_STDERR_READ_BYTES: Final = 64 * 1024
_MEASURED_FOR_S: Final = 0.01
_SETPIPE_SIZE: Final = getattr(fcntl, "F_SETPIPE_SZ", None)  # Linux only


def sdk_command(module: str) -> tuple[str, ...]:
    """The command that serves a Python cartridge of this environment.

    -P keeps the working directory out of the module path: a `msgpack.py` there must not be imported.
    """
    return (sys.executable, "-P", "-m", "cartdeck_sdk", module)


def tied_to_host(command: Sequence[str]) -> tuple[str, ...]:
    """`command`, killed by the kernel when the host dies, where setpriv is there to ask for it.

    The SDK asks for this itself; a command that knows nothing of it starts through setpriv.
    """
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    return (setpriv, "--pdeathsig", "KILL", "--", *command) if setpriv else tuple(command)


@dataclass(slots=True)
class Pipes:
    """The host's ends of the two frame pipes, both non-blocking: `write` leads to the child, `read` comes from it."""

    write: int
    read: int


class Process:
    """A running child. `pipes` belong to whoever drives the frames, and are closed by them.

    `returncode` is None while it runs, then the exit status, negative for a signal as in `subprocess`.
    """

    def __init__(self, popen: subprocess.Popen[bytes], pipes: Pipes, stderr: int, log: LogRing, mark: str) -> None:
        self.pid = popen.pid
        self.pipes = pipes
        self.log = log
        self.mark = mark
        self.returncode: int | None = None
        self.exited = asyncio.Event()
        self.on_exit: Callable[[], None] | None = None
        """Called once, on the loop's thread, when the process has ended and was reaped."""
        self.private_folder: Path | None = None
        """A folder that is removed when the process and all that it started are gone."""
        self._popen = popen
        self._loop = asyncio.get_running_loop()
        self._stderr: int | None = stderr
        self._stopping: asyncio.Task[None] | None = None
        self._pidfd: int | None = None
        self._rss_bytes: int | None = None
        self._measured_at_s = -1.0
        self._loop.add_reader(stderr, self._read_stderr)
        self._watch_exit()

    @property
    def is_running(self) -> bool:
        return self.returncode is None

    @property
    def signal_name(self) -> str:
        """The signal that killed it, "SIGKILL"; "" where none did."""
        code = self.returncode
        if code is None or code >= 0:
            return ""
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"

    @property
    def exit_text(self) -> str:
        """How it ended, for a message: "was killed by SIGKILL", "exited with status 3"."""
        if self.returncode is None:
            return "still runs"
        return f"was killed by {self.signal_name}" if self.returncode < 0 else f"exited with status {self.returncode}"

    def cpu_s(self) -> float:
        """CPU seconds, user and system, that the process used so far; 0.0 where the system does not tell."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:
            return 0.0
        fields = stat[stat.rindex(b")") + 2 :].split()  # the name before it may hold spaces
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def waits_for_cpu(self) -> bool:
        """Whether a thread of it could go on, had it a core. False where the system does not tell."""
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # the thread has ended
                text = stat.read_bytes()
                if text[text.rindex(b")") + 2 :].startswith(b"R"):
                    return True
        return False

    def rss_bytes(self) -> int | None:
        """The memory of the process that lies in RAM now, give or take 10 ms; None where the system does not tell.

        Where several wait for memory, all are asked once for each of them.
        """
        now_s = time.monotonic()
        if now_s - self._measured_at_s > _MEASURED_FOR_S:
            self._measured_at_s = now_s
            try:
                pages = int(Path(f"/proc/{self.pid}/statm").read_bytes().split()[1])
            except (OSError, IndexError):
                self._rss_bytes = None
            else:
                self._rss_bytes = pages * os.sysconf("SC_PAGE_SIZE")
        return self._rss_bytes

    # -- exit

    def _watch_exit(self) -> None:
        if hasattr(os, "pidfd_open"):
            try:
                self._pidfd = os.pidfd_open(self.pid)
            except OSError:  # an old kernel, or no descriptors left: the thread below does the same
                self._pidfd = None
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._reap)
        else:
            threading.Thread(target=self._wait_in_thread, name=f"wait-{self.pid}", daemon=True).start()

    def _wait_in_thread(self) -> None:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            self._popen.wait()
        with contextlib.suppress(ChildProcessError, AttributeError):
            # WNOWAIT leaves the zombie for the loop, which must signal the group before the id is free
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        if self.returncode is not None:
            return
        # The zombie still holds the group's id, so the signal cannot meet another group that got the same number.
        self._signal_group(signal.SIGKILL)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self.returncode = self._popen.wait()
        self._read_stderr()
        self.exited.set()
        if self.on_exit is not None:
            self.on_exit()

    def _signal_group(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    # -- stderr

    def _read_stderr(self) -> None:
        """Read what is there: a child must never wait for somebody to read its log."""
        for _ in range(16):  # 1 MiB a turn, so that a flood leaves the loop to the others
            if self._stderr is None:
                return
            try:
                data = os.read(self._stderr, _STDERR_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close_stderr()
                return
            self.log.feed(data)

    def _close_stderr(self) -> None:
        if self._stderr is not None:
            self._loop.remove_reader(self._stderr)
            os.close(self._stderr)
            self._stderr = None
            self.log.finish()

    # -- the end

    def close_pipes(self) -> None:
        """For a process that nobody came to drive."""
        os.close(self.pipes.write)
        os.close(self.pipes.read)

    def kill(self) -> None:
        """KILL the whole group at once."""
        self._signal_group(signal.SIGKILL)

    async def stop(self, times: StopSettings, *, is_urgent: bool = False) -> None:
        """Walk down the ladder until the process is gone, then end what it left behind.

        The caller has closed the child's stdin and goes on reading its stdout. `is_urgent` leaves out the first
        step. Any number of callers share one walk; a cancelled caller does not stop it.
        """
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._walk_down(times, is_urgent=is_urgent))
        await asyncio.shield(self._stopping)

    async def _walk_down(self, times: StopSettings, *, is_urgent: bool) -> None:
        if not is_urgent:
            await self._wait(times.close_s)
        if self.is_running:
            self._signal_group(signal.SIGTERM)
            self._signal_group(signal.SIGCONT)  # a stopped process takes TERM only when it goes on
            await self._wait(times.term_s)
        if self.is_running:
            self._signal_group(signal.SIGKILL)
            await self._wait(times.kill_s)
        # A walk over /proc takes milliseconds where there are many processes, so it is not for the loop's thread.
        await self._loop.run_in_executor(None, end_marked, SESSION_VARIABLE, self.mark)
        if self.private_folder is not None:
            await self._loop.run_in_executor(None, partial(shutil.rmtree, self.private_folder, ignore_errors=True))
        self._read_stderr()
        self._close_stderr()

    async def _wait(self, seconds: float) -> None:
        if self.is_running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.exited.wait()


def spawn(
    command: Sequence[str], *, environment: dict[str, str], log: LogRing, pipe_bytes: int, folder: Path | None = None
) -> Process:
    """Start `command` in a session and process group of its own, its stdin and stdout being the frame pipes.

    `environment` is the whole environment and carries the mark of the session; `folder` is where it works, that of this
    process without one. Raises START_FAILED when the program
    cannot be started; then no descriptor is left open.
    """
    opened: list[int] = []
    try:
        child_in, to_child = _pipe(opened)
        from_child, child_out = _pipe(opened)
        stderr, child_err = _pipe(opened)
        _enlarge(to_child, pipe_bytes)
        _enlarge(from_child, pipe_bytes)
        for descriptor in (to_child, from_child, stderr):
            os.set_blocking(descriptor, False)
        # A session of its own also keeps a Ctrl-C in the terminal from the children: the host decides what it means.
        popen = subprocess.Popen(
            command,
            stdin=child_in,
            stdout=child_out,
            stderr=child_err,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    except Exception as error:  # also what is no OSError: a NUL byte in the command, no memory
        for descriptor in opened:
            os.close(descriptor)
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise failure(Code.START_FAILED, f"{command[0]} cannot be started: {reason}") from error
    for descriptor in (child_in, child_out, child_err):
        os.close(descriptor)
    return Process(popen, Pipes(to_child, from_child), stderr, log, environment[SESSION_VARIABLE])


def _pipe(opened: list[int]) -> tuple[int, int]:
    read, write = os.pipe()  # close-on-exec: a child started at the same time does not inherit them
    opened += (read, write)
    return read, write


def _enlarge(descriptor: int, size_bytes: int) -> None:
    """Ask for a larger pipe. Measured: 1 MiB gives 20 to 40 % more throughput than 64 KiB.

    The kernel refuses when the user's pipes together are above its soft limit; then the pipe stays as it is.
    """
    if _SETPIPE_SIZE is not None and size_bytes:
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, _SETPIPE_SIZE, size_bytes)
