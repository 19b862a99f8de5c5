"""Calls, cancels, deaths, stops, floods, slow readers and damage all at once, drawn from a seed; and what must hold.

It does not know how long that goes on: `test_faults_mix.py` runs a little of it, `soak.py` as much as it is told.
"""

import asyncio
import gc
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from random import Random
from typing import Any, Final

from cartdeck import Call, CartdeckError, Code, Data, End, Engine, Progress

CLIENTS: Final = 12
LIMIT_S: Final = 60.0
"""No call takes longer: each ends by itself, by a fault, or by its own limit."""
CALL_S: Final = 20.0
WIRE: Final = {"max_item_bytes": 100_000, "backlog_bytes": 1 << 20}
"""Items that do not end are seen soon, and output that waits is in the file more often than not."""
EXPECTED: Final = {
    Code.ABORTED, Code.CANCELLED, Code.CARTRIDGE_DIED, Code.CREDIT_VIOLATION, Code.FRAME_TOO_LARGE,
    Code.HANDLER_FAILED, Code.PROTOCOL_VIOLATION, Code.START_FAILED, Code.TIMED_OUT,
}  # fmt: skip  # a list to scan


class Client:
    """One caller: what it does is drawn from its own random numbers."""

    def __init__(self, engine: Engine, foreign: str, random: Random) -> None:
        self.engine = engine
        self.foreign = foreign
        self.random = random
        self.answers = 0
        self.errors: Counter[Code] = Counter()
        self.unexpected: list[str] = []
        self.deeds: Counter[str] = Counter()
        self._deeds = [
            self.echo, self.echo, self.peek, self.stay, self.relay, self.break_wire, self.harm, self.flood,
            self.read_slowly, self.read_outputs, self.items, self.upload, self.hurry,
        ]  # fmt: skip  # a list to scan

    async def turn(self) -> None:
        deed = self.random.choice(self._deeds)
        self.deeds[deed.__name__] += 1
        try:
            async with asyncio.timeout(LIMIT_S):
                await deed()
            self.answers += 1
        except CartdeckError as error:
            self.errors[error.code] += 1  # not the error itself, whose traceback would keep the call
            if error.code not in EXPECTED:
                self.unexpected.append(f"{deed.__name__}: {error}")

    async def _read(
        self, call: Call, *, pause_s: float = 0.0, look: Callable[[int, bytes], bool] = lambda _at, _piece: True
    ) -> int:
        """All events of a call; the bytes that came. One end, last and once, and no progress that falls."""
        size, ends, fraction = 0, 0, 0.0
        error: CartdeckError | None = None
        try:
            while events := await call.next_events():
                for event in events:
                    assert not ends, "an event behind the end"
                    if isinstance(event, Data):
                        assert look(size, event.value), "other bytes than were sent"
                        size += len(event.value)
                    elif isinstance(event, Progress) and event.fraction is not None:
                        assert event.fraction >= fraction, "progress fell"
                        fraction = event.fraction
                    elif isinstance(event, End):
                        ends += 1
                if pause_s:
                    await asyncio.sleep(pause_s)
        except CartdeckError as caught:
            error = caught
        assert (ends == 1) is (error is None), "one end, or one error"
        if error is None:
            assert await call.next_events() == []
            return size
        with suppress(CartdeckError):
            await call.next_events()
            raise AssertionError("no end at all, the second time")
        raise error

    async def echo(self) -> None:
        data = bytes((self.random.randrange(256),)) * self.random.choice([1, 5_000, 2_000_000])
        assert (await self.engine.run("echo", {"data": data}, timeout_s=CALL_S)).data == data

    async def peek(self) -> None:
        """Leave a stream behind that has hardly begun."""
        async with self.engine.call("emit", {"count": 1000}, keep_bytes=0, timeout_s=CALL_S) as call:
            async for event in call:
                if isinstance(event, Data):
                    return

    async def read_slowly(self) -> None:
        count = self.random.choice([4, 20])
        async with self.engine.call("emit", {"count": count}, timeout_s=CALL_S) as call:
            assert await self._read(call, pause_s=0.02, look=_is_of_its_block) == count * 262_144

    async def read_outputs(self) -> None:
        """Many that come whole, slowly."""
        async with self.engine.call(self.foreign, {"how": "many outputs"}, timeout_s=CALL_S) as call:
            assert await self._read(call, pause_s=0.01) == 30 * 60_000

    async def items(self) -> None:
        merged, count = self.random.random() < 0.5, self.random.choice([10, 3000])
        async with self.engine.call("emit-items", {"count": count, "merged": merged}, timeout_s=CALL_S) as call:
            assert await self._read(call, pause_s=self.random.choice([0, 0.001])) == count * 16

    async def upload(self) -> None:
        blocks = self.random.randrange(40)

        async def source() -> AsyncIterator[bytes]:
            for _ in range(blocks):
                yield bytes(100_000)

        given = source() if self.random.random() < 0.5 else (bytes(100_000) for _ in range(blocks))
        result = await self.engine.run("sink", {"data": given, "interval": 0.001}, timeout_s=CALL_S)
        assert result.json()["bytes"] == blocks * 100_000

    async def stay(self) -> None:
        phase = self.random.choice(["obtaining", "loading", "held-loading", "decoding", "decoding-in-worker", "full"])
        arguments = {"phase": phase, "seconds": 0.2}
        async with self.engine.call("stay", arguments, keep_bytes=0, timeout_s=CALL_S) as call:
            timer = asyncio.get_running_loop().call_later(self.random.random() * 0.3, call.cancel)
            try:
                await self._read(call)
            finally:
                timer.cancel()

    async def relay(self) -> None:
        arguments = {"argument": "", "cap": "cap:stay", "arguments": {"phase": "loading", "seconds": 0.05}}
        assert (await self.engine.run("relay", arguments, timeout_s=CALL_S)).text == "loaded"

    async def break_wire(self) -> None:
        how = self.random.choice(["well", "wrong index", "endless item", "end twice", "unknown kind", "die", "drip"])
        await self.engine.run(self.foreign, {"how": how}, timeout_s=CALL_S)

    async def harm(self) -> None:
        kind = self.random.choice(["SystemExit", "ValueError", "Sudden"])
        await self.engine.run("raise-in-worker", {"kind": kind}, timeout_s=CALL_S)

    async def flood(self) -> None:
        action = self.random.choice(["flood-stderr", "flood-stdout", "log-lines", "grandchild"])
        amount = self.random.choice([100, 20_000 if action == "log-lines" else 2_000_000])
        arguments = {"action": action, "amount": amount}
        async with self.engine.call("misbehave", arguments, timeout_s=CALL_S) as call:
            await self._read(call)

    async def hurry(self) -> None:
        """A limit that may be too short for a start."""
        limit_s = self.random.random() * 0.3
        await self.engine.run("work", {"steps": 3, "seconds": 0.02}, timeout_s=limit_s + 0.001)


def _is_of_its_block(at: int, piece: bytes) -> bool:
    """Each byte of block i of emit is i modulo 16."""
    return (piece[0], piece[-1]) == (at // 262_144 % 16, (at + len(piece) - 1) // 262_144 % 16)


async def disturb(engine: Engine, random: Random, done: Counter[str], *, pause_s: float) -> None:
    """Kill one process, stop it for a moment, or unload it, again and again."""
    while True:
        await asyncio.sleep(random.random() * pause_s)
        processes = [one.process for one in engine.pool.sessions if one.process is not None and one.process.is_running]
        if not processes:
            continue
        process = random.choice(processes)
        number = random.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGSTOP, None])
        done["unload" if number is None else number.name] += 1
        if number is None:
            with suppress(CartdeckError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await engine.unload(random.choice(["echo", "phases"]))
            continue
        os.kill(process.pid, number)
        if number is signal.SIGSTOP:
            await asyncio.sleep(0.05)
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)


class Mix:
    """One engine's share of it. `work` runs the clients; `check` says what is not as it should be afterwards."""

    def __init__(self, engine: Engine, foreign: str, seed: str) -> None:
        self.engine = engine
        self.foreign = foreign
        self.clients = [Client(engine, foreign, Random(f"{seed} {number}")) for number in range(CLIENTS)]
        self.disturbances: Counter[str] = Counter()
        self.marks: set[str] = set()
        """Of the sessions that were seen: what they started carries them too."""
        self._random = Random(seed)
        self._reserve_bytes = engine.reserve.free_bytes

    @property
    def answers(self) -> int:
        return sum(client.answers for client in self.clients)

    @property
    def errors(self) -> Counter[Code]:
        return sum((client.errors for client in self.clients), Counter[Code]())

    async def work(self, *, turns: int = 1 << 30, seconds: float = float("inf"), pause_s: float = 0.2) -> None:
        """Until each client had its turns, or the time is over and each has ended the call that it is at. `pause_s` is
        the longest time between two disturbances."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds

        async def keep_on(client: Client) -> None:
            for _ in range(turns):
                if loop.time() >= until_s:
                    break
                await client.turn()
                self.marks |= {one.process.mark for one in self.engine.pool.sessions if one.process is not None}

        disturbance = asyncio.create_task(disturb(self.engine, self._random, self.disturbances, pause_s=pause_s))
        try:
            async with asyncio.TaskGroup() as group:
                for client in self.clients:
                    group.create_task(keep_on(client))
        finally:
            disturbance.cancel()
            with suppress(asyncio.CancelledError):
                await disturbance

    async def check(self, *, limit_s: float = 20.0) -> None:
        """Nothing is open, nothing waits, nothing is lent; and each cartridge still works."""
        engine = self.engine
        assert not (wrong := [line for client in self.clients for line in client.unexpected]), wrong
        end = asyncio.get_running_loop().time() + limit_s
        while still_open := [str(one.key) for one in engine.pool.sessions if one.open_requests]:
            assert asyncio.get_running_loop().time() < end, f"requests are open at {still_open}"
            await asyncio.sleep(0.005)
        assert engine.reserve.free_bytes == self._reserve_bytes, "windows kept what they had borrowed"
        assert not any(door.waiting for door in engine.pool.doors.values()), "somebody waits at a door"
        gc.collect()  # calls that were left with output that nobody took
        assert (engine.backlog.used_bytes, engine.backlog.stored_bytes) == (0, 0), "output waits for nobody"
        for cap, arguments, text in (
            ("echo", {"data": "on"}, "on"),
            ("stay", {"phase": "loading", "seconds": 0}, "loaded"),
            (self.foreign, {"data": "on"}, "on"),
        ):
            found: Any = await engine.run(cap, arguments, timeout_s=CALL_S)
            assert found.text == text
