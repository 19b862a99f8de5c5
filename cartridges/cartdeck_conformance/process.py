"""Owns one process of the cartridge: its start, its three pipes, its exit, and that nothing of it is left.

It does not know frames.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cartdeck_conformance.durations import Durations
from cartdeck_conformance.verdict import Fault

_MARK: Final = "CARTDECK_SESSION"
_KEPT_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 64 * 1024
_TURN_S: Final = 0.01


class CartridgeProcess:
    """A running cartridge. Its pipes do not block; `stderr` is read by `read_stderr` alone."""

    def __init__(
        self,
        command: Sequence[str],
        durations: Durations,
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """It works in `folder`, else in this process's; `environment` is what it gets in place of this process's.
        Raises Fault where the command cannot be started."""
        self.mark = secrets.token_hex(16)
        given = os.environ if environment is None else environment
        full = {name: value for name, value in given.items() if name != "CARTDECK_HOST_PID"}
        full |= {
            _MARK: self.mark,
            "CARTDECK_HEARTBEAT_S": repr(durations.heartbeat_s),
            "CARTDECK_KEEPALIVE_S": repr(durations.keepalive_s),
            "PYTHONUNBUFFERED": "1",
        }
        self.started_s = time.monotonic()
        try:
            self._popen = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=folder,
                env=full,
                start_new_session=True,
            )
        except OSError as error:
            raise Fault(f"the command cannot be started: {error}") from None
        stdin, stdout, stderr = self._popen.stdin, self._popen.stdout, self._popen.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        self._files = [stdin, stdout, stderr]
        self.stdin, self.stdout, self.stderr = stdin.fileno(), stdout.fileno(), stderr.fileno()
        self.stdin_is_open = True
        self.stderr_is_open = True
        self.stderr_bytes = 0
        self._log: deque[bytes] = deque()
        self._log_bytes = 0
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(descriptor, False)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._popen.poll()

    @property
    def exit_text(self) -> str:
        code = self.returncode
        if code is None:
            return "still runs"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with status {code}"

    @property
    def log(self) -> str:
        """The last of what it wrote to stderr."""
        return b"".join(self._log).decode("utf-8", "backslashreplace")

    @property
    def log_tail(self) -> str:
        """The last line on stderr, for a message; "" where there is none."""
        lines = self.log.strip().splitlines()
        return f"; its last line on stderr: {lines[-1][:300]}" if lines else ""

    def read_stderr(self) -> None:
        while self.stderr_is_open:
            try:
                data = os.read(self.stderr, _READ_BYTES)
            except BlockingIOError:
                return
            self.stderr_is_open = bool(data)
            self.stderr_bytes += len(data)
            self._log.append(data)
            self._log_bytes += len(data)
            while self._log_bytes > _KEPT_BYTES and len(self._log) > 1:
                self._log_bytes -= len(self._log.popleft())

    def close_stdin(self) -> None:
        if self.stdin_is_open:
            self.stdin_is_open = False
            self._files[0].close()

    def terminate(self) -> None:
        """SIGTERM to the whole group, as a host sends it."""
        self._signal(signal.SIGTERM)

    def wait(self, limit_s: float) -> bool:
        """Whether it ended by itself within the limit; its pipes are drained meanwhile."""
        end = time.monotonic() + limit_s
        while self.returncode is None and time.monotonic() < end:
            self._drain()
            time.sleep(_TURN_S)
        self.read_stderr()
        return self.returncode is not None

    def end(self, limit_s: float) -> None:
        """Make an end of it and of all that carries its mark: first kindly, then by SIGKILL."""
        try:
            self.close_stdin()
            self.wait(limit_s)
        finally:
            self._signal(signal.SIGKILL)
            for pid in self.leftovers():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._popen.wait()
            for file in self._files:
                file.close()

    def leftovers(self) -> list[int]:
        """Processes that were started by it and still run; empty where the system does not tell."""
        needle = f"{_MARK}={self.mark}".encode()
        found: list[int] = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_marked = needle in (entry / "environ").read_bytes().split(b"\0")
                if is_marked and int(entry.name) != self.pid and not _is_zombie(entry):
                    found.append(int(entry.name))
        return found

    def rss_bytes(self) -> int | None:
        """Its memory that lies in RAM; None where the system does not tell."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            return int(Path(f"/proc/{self.pid}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return None

    def open_files(self) -> int | None:
        with contextlib.suppress(OSError):
            return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())
        return None

    def _drain(self) -> None:
        self.read_stderr()
        with contextlib.suppress(OSError):
            while os.read(self.stdout, _READ_BYTES):
                pass

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)


def _is_zombie(entry: Path) -> bool:
    return (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
