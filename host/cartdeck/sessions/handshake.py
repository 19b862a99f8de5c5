"""Owns the first exchange with a new process: HELLO, the manifest compared, the identity cap.

It does not know what the session does afterwards. Until this is through, nothing is routed to the process.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Final, TypeVar

from cartdeck.request import Request
from cartdeck.sessions.process import Process
from cartdeck.settings import StartSettings
from cartdeck_protocol.caps import Manifest
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import Connection, HelloReceived, InStream, Logged

T = TypeVar("T")

IDENTITY_ALIAS: Final = "identity"
_PROBE_BYTES: Final = 64
_LOOKS_PER_STEP: Final = 8


class Handshake:
    """One handshake on a connection. `flush` sends what the connection holds."""

    def __init__(self, connection: Connection, flush: Callable[[], None]) -> None:
        self._connection = connection
        self._flush = flush
        self._hello: asyncio.Future[HelloReceived] = asyncio.get_running_loop().create_future()
        self._probe = IdentityProbe()

    def on_hello(self, event: HelloReceived) -> None:
        if not self._hello.done():
            self._hello.set_result(event)

    async def run(self, process: Process, manifest: Manifest, limits: StartSettings) -> None:
        """Raises START_FAILED, VERSION_MISMATCH, MANIFEST_DRIFT or IDENTITY_FAILED."""
        self._connection.send_hello()
        self._flush()
        hello = await within_limits(self._hello, process, step="hello", limits=limits)
        check_manifest(manifest, hello.manifest)
        identity = manifest.cap(IDENTITY_ALIAS)
        argument = identity.main_argument
        name = "data" if argument is None else argument.name
        exchange = self._connection.request(str(identity.urn), {name: self._probe.sent})
        exchange.owner = self._probe
        self._flush()
        await within_limits(self._probe.answer, process, step="identity", limits=limits)

    def break_off(self, error: CartdeckError) -> None:
        """The process is gone, or not wanted any more: `run` raises `error`."""
        for waiter in (self._hello, self._probe.answer):
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # seen: `run` waits for one of the two at most


async def within_limits(answer: "asyncio.Future[T]", process: Process, *, step: str, limits: StartSettings) -> T:
    """Wait for one step of the handshake. START_FAILED when the process was quiet for `step_s`: no byte on stderr and
    no CPU time, nor waited for a core; a slow import is neither. The caller bounds the whole by `hard_s`."""
    loop = asyncio.get_running_loop()
    signs = (process.log.total_bytes, process.cpu_s())
    quiet_since_s = loop.time()
    while not answer.done():
        left_s = quiet_since_s + limits.step_s - loop.time()
        if left_s <= 0:
            raise failure(
                Code.START_FAILED,
                f"the process gave no {step} and was quiet for {limits.step_s:g} s: it neither wrote to stderr nor "
                "used CPU time",
                phase=step,
            )
        await asyncio.wait([answer], timeout=min(left_s, limits.step_s / _LOOKS_PER_STEP))
        now_signs = (process.log.total_bytes, process.cpu_s())
        if now_signs != signs or process.waits_for_cpu():
            signs, quiet_since_s = now_signs, loop.time()
    return answer.result()


def check_manifest(expected: Manifest, received: bytes) -> None:
    """MANIFEST_DRIFT unless the process serves what the host routes by; the message names both versions."""
    found = Manifest.from_json(received, place="the manifest in HELLO")
    if found == expected:
        return
    if (found.name, found.version) != (expected.name, expected.version):
        what = f"it is {found.name} {found.version}, expected {expected.name} {expected.version}"
    else:
        theirs = {cap.alias: cap for cap in found.caps}
        ours = {cap.alias: cap for cap in expected.caps}
        differing = sorted(alias for alias in theirs.keys() | ours.keys() if theirs.get(alias) != ours.get(alias))
        what = f"the definitions of {', '.join(differing)} differ" if differing else "its properties differ"
    raise failure(Code.MANIFEST_DRIFT, f"the process's manifest is not the one on disk: {what}", phase="hello")


class IdentityProbe(Request):
    """The identity cap with random bytes: a self-test of framing, routing and dispatch. `answer` is the verdict."""

    __slots__ = ("_pieces", "answer", "sent")

    def __init__(self) -> None:
        super().__init__()
        self.sent = secrets.token_bytes(_PROBE_BYTES)
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pieces: list[bytes] = []

    def on_opened(self) -> None:
        pass  # its argument went with the request

    def on_stream(self, stream: InStream, payload: bytes | None) -> None:
        if payload is not None:
            self._pieces.append(payload)

    def on_chunk(self, stream: InStream, payload: bytes) -> None:
        self._pieces.append(payload)
        stream.take()

    def on_stream_end(self, stream: InStream) -> None:
        pass

    def on_log(self, event: Logged) -> None:
        pass

    def on_notice(self, message: str, phase: str) -> None:
        pass

    def on_finished(self, progress: float, provenance: dict[str, Any]) -> None:
        if not self.answer.done():
            if b"".join(self._pieces) == self.sent:
                self.answer.set_result(None)
            else:
                found = b"".join(self._pieces)
                message = f"the identity cap gave back {found[:_PROBE_BYTES].hex() or 'nothing'}, not what was sent"
                self.answer.set_exception(failure(Code.IDENTITY_FAILED, message, phase="identity"))

    def on_failed(self, error: CartdeckError) -> None:
        if not self.answer.done():
            message = f"the identity cap failed with {error.code_name}: {error.message}"
            self.answer.set_exception(failure(Code.IDENTITY_FAILED, message, phase="identity", details=error.details))

    def reader_since_s(self, now_s: float) -> float | None:
        return None
