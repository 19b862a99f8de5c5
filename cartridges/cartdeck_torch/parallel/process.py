"""Owns one rank as its leader sees it: a process, its frames, its last words, how it ended.

It does not know the others.
"""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any, Final

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import Exchange, Failed, Finished, Logged, Role
from cartdeck_torch.parallel.link import Link

LAST_LINES: Final = 20
LONGEST_LINE: Final = 4096
_EXIT_S: Final = 2.0


class RankProcess:
    """The rank `rank`. It is killed with the thread that made this, and leaves when its stdin is closed.

    `on_change()` is called by other threads whenever something came, was answered, or the process ended.
    """

    def __init__(self, rank: int, ranks: int, *, on_change: Callable[[], None]) -> None:
        self.rank = rank
        self.progress = 0.0
        self.is_busy = False
        """Whether it has not answered yet what it was asked last."""
        self.error: CartdeckError | None = None
        """Why it is of no use any more."""
        self._ranks = ranks
        self._on_change = on_change
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        command = [sys.executable, "-P", "-m", "cartdeck_torch.parallel"]
        environment = {**os.environ, "CARTDECK_HOST_PID": str(os.getpid())}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, bufsize=0)
        streams: Any = self._process
        self._link = Link(Role.HOST, read_fd=streams.stdout.fileno(), write_fd=streams.stdin.fileno())
        self._speaker = self._thread(self._pass_words)
        self._link.send(lambda connection: connection.send_hello())
        self._thread(self._read)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, cap: str, arguments: dict[str, bytes] | None = None) -> None:
        """Sends a request; its answer makes the rank idle again, or of no use."""
        self.is_busy = True
        self.progress = 0.0
        # a rank that is gone is found by the thread that reads
        with suppress(OSError):
            self._link.send(lambda connection: connection.request(cap, arguments))

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Ends it and waits for its end."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_S)

    def _thread(self, run: Callable[[], None]) -> Thread:
        thread = Thread(target=run, name=f"rank-{self.rank}", daemon=True)
        thread.start()
        return thread

    def _read(self) -> None:
        for event in self._link.events():
            if isinstance(event, Logged) and event.progress is not None:
                self.progress = event.progress
            elif isinstance(event, Finished):
                self.is_busy = False
            elif isinstance(event, Failed):
                self.error = self._of(event.exchange, event.error)
            self._on_change()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._speaker.join(_EXIT_S / 4)
        if self.error is None:
            self.error = self._death()
        self._on_change()
        self._link.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _pass_words(self) -> None:
        """What it writes to stderr goes to the leader's, with its number."""
        stream = self._process.stderr
        if stream is None:
            return
        with stream:
            for data in iter(lambda: stream.readline(LONGEST_LINE), b""):
                line = data.decode("utf-8", errors="replace").rstrip()
                self._lines.append(line)
                print(f"rank {self.rank}: {line}", file=sys.stderr)

    def _of(self, _exchange: Exchange, error: CartdeckError) -> CartdeckError:
        message = f"rank {self.rank} of {self._ranks}: {error.message}"
        details = {**(error.details or {}), "rank": self.rank}
        return failure(error.code, message, argument=error.argument, phase=error.phase, details=details)

    def _death(self) -> CartdeckError:
        code = self._process.returncode
        how = f"was ended by signal {-code}" if code < 0 else f"left with status {code}"
        return failure(
            Code.DEVICE_FAULT,
            f"rank {self.rank} of {self._ranks} {how}; the next request starts all of them anew",
            details={"rank": self.rank, "status": code, "stderr": list(self._lines)},
        )
