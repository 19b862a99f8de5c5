"""A host without an engine: one real cartridge process, driven frame by frame."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cartdeck_protocol import wire

LIMIT_S = 30.0


class Driver:
    """Starts `python -P -m cartdeck_sdk PACKAGE` and speaks to it; every wait is bounded."""

    def __init__(self, package: str, *, environment: dict[str, str], folder: str | None = None, **limits: int) -> None:
        self.connection = wire.Connection(wire.Role.HOST, limits=wire.Limits(**limits), software="driver")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cartdeck_sdk", package],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=folder,
            env={**os.environ, "CARTDECK_HOST_PID": str(os.getpid()), **environment},
            start_new_session=True,
        )
        self.events: list[Any] = []
        self.connection.send_hello()

    def until(self, found: Callable[[Any], Any], *, takes: bool = True) -> Any:
        """Carry bytes both ways until an event satisfies `found`; all events are kept."""
        end = time.monotonic() + LIMIT_S
        assert self.process.stdout is not None
        while time.monotonic() < end:
            self.send()
            ready, _, _ = select.select([self.process.stdout], [], [], 0.2)
            if not ready:
                continue
            size = os.readv(self.process.stdout.fileno(), [self.connection.buffer()])
            assert size, f"the process ended with {self.process.wait(5)}: {self.stderr()}"
            matched = None
            for event in self.connection.received(size):
                assert not isinstance(event, wire.ConnectionDamaged), event
                self.events.append(event)
                if takes and isinstance(event, wire.ChunkReceived):
                    event.stream.take()
                if matched is None and found(event):
                    matched = event
            if matched is not None:
                return matched
        raise AssertionError(f"not seen within {LIMIT_S} s; the last events: {self.events[-5:]}")

    def send(self) -> None:
        assert self.process.stdin is not None
        for buffer in self.connection.outgoing():
            rest = memoryview(buffer)
            while rest:
                rest = rest[os.write(self.process.stdin.fileno(), rest) :]

    def terminal(self, exchange: wire.Exchange) -> Any:
        def is_terminal(event: Any) -> bool:
            kinds = (wire.Finished, wire.Failed, wire.ExchangeDamaged)
            return isinstance(event, kinds) and event.exchange is exchange

        seen = [event for event in self.events if is_terminal(event)]  # it may have come with what was waited for
        return seen[0] if seen else self.until(is_terminal)

    def call(self, cap: str, **arguments: Any) -> tuple[Any, bytes, list[Any]]:
        """The terminal, the main output's bytes, and the LOGs of one call with small arguments."""
        inline = {name.replace("_", "-"): str(value).encode() for name, value in arguments.items()}
        start = len(self.events)
        exchange = self.connection.request(cap, inline)
        terminal = self.terminal(exchange)
        own = [event for event in self.events[start:] if getattr(event, "exchange", None) is exchange]
        data = b"".join(
            event.payload or b""
            for event in own
            if isinstance(event, wire.ChunkReceived | wire.StreamStarted) and not event.stream.name
        )
        return terminal, data, [event for event in own if isinstance(event, wire.Logged)]

    def stderr(self) -> str:
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        return (self.process.stderr.read() or b"").decode(errors="replace")

    def close(self) -> int:
        """Close the process's stdin and wait for it to leave; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            return self.process.wait(LIMIT_S)
        finally:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdout, self.process.stderr):
                assert pipe is not None
                pipe.close()


@pytest.fixture
def start(tmp_path: Any) -> Iterator[Callable[..., Driver]]:
    """`start("cartdeck_echo", heartbeat_s=0.1, …)` gives a driver whose greeting is through."""
    drivers: list[Driver] = []

    def begin(
        package: str = "cartdeck_echo", *, heartbeat_s: float = 60, keepalive_s: float = 60, **options: Any
    ) -> Driver:
        environment = {"CARTDECK_HEARTBEAT_S": str(heartbeat_s), "CARTDECK_KEEPALIVE_S": str(keepalive_s)}
        environment |= options.pop("environment", {})
        driver = Driver(package, environment=environment, **options)
        drivers.append(driver)
        driver.until(lambda event: isinstance(event, wire.HelloReceived))
        return driver

    yield begin
    for driver in drivers:
        if driver.process.stdin is not None and not driver.process.stdin.closed:
            driver.close()
