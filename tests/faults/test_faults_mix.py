"""Calls, cancels, deaths, stops and damage all at once, from a seed: each call ends, and nothing is left over."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from cartdeck import Call, CartdeckError, Code, Data, Engine, Settings

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_tasks_left", "phases")]

CLIENTS = 12
TURNS = 12
EXPECTED = {
    Code.ABORTED, Code.CANCELLED, Code.CARTRIDGE_DIED, Code.CREDIT_VIOLATION, Code.FRAME_TOO_LARGE,
    Code.HANDLER_FAILED, Code.PROTOCOL_VIOLATION, Code.START_FAILED, Code.TIMED_OUT,
}  # fmt: skip  # a list to scan


class Client:
    """One caller: what it does is drawn from the seed."""

    def __init__(self, engine: Engine, foreign: str, random: Random) -> None:
        self.engine = engine
        self.foreign = foreign
        self.random = random
        self.answers = 0
        self.errors: list[CartdeckError] = []

    async def turn(self) -> None:
        deed = self.random.choice([self.echo, self.echo, self.peek, self.stay, self.relay, self.break_wire, self.harm])
        try:
            await deed()
            self.answers += 1
        except CartdeckError as error:
            self.errors.append(error)

    async def echo(self) -> None:
        data = bytes((self.random.randrange(256),)) * self.random.choice([1, 5_000, 2_000_000])
        assert (await self.engine.run("echo", {"data": data}, timeout_s=20)).data == data

    async def peek(self) -> None:
        """Leave a stream behind that has hardly begun."""
        async with self.engine.call("emit", {"count": 1000}, keep_bytes=0, timeout_s=20) as call:
            async for event in call:
                if isinstance(event, Data):
                    return

    async def stay(self) -> None:
        phase = self.random.choice(["obtaining", "loading", "held-loading", "decoding", "decoding-in-worker", "full"])
        call: Call
        async with self.engine.call("stay", {"phase": phase, "seconds": 0.2}, keep_bytes=0, timeout_s=20) as call:
            asyncio.get_running_loop().call_later(self.random.random() * 0.3, call.cancel)
            async for _ in call:
                pass

    async def relay(self) -> None:
        arguments = {"argument": "", "cap": "cap:stay", "arguments": {"phase": "loading", "seconds": 0.05}}
        assert (await self.engine.run("relay", arguments, timeout_s=20)).text == "loaded"

    async def break_wire(self) -> None:
        how = self.random.choice(["well", "wrong index", "endless item", "end twice", "unknown kind", "die", "drip"])
        await self.engine.run(self.foreign, {"how": how}, timeout_s=20)

    async def harm(self) -> None:
        kind = self.random.choice(["SystemExit", "ValueError", "Sudden"])
        await self.engine.run("raise-in-worker", {"kind": kind}, timeout_s=20)


async def disturb(engine: Engine, random: Random) -> None:
    """Kill one process, or stop it for a moment, again and again."""
    while True:
        await asyncio.sleep(random.random() * 0.2)
        processes = [one.process for one in engine.pool.sessions if one.process is not None and one.process.is_running]
        if processes:
            process = random.choice(processes)
            number = random.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGSTOP])
            os.kill(process.pid, number)
            if number is signal.SIGSTOP:
                await asyncio.sleep(0.05)
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_happens_each_call_ends_and_nothing_is_left_over(
    quick: Callable[..., Settings], foreign: Callable[..., str], wait_until: Any, seed: int
) -> None:
    cap = foreign()
    settings = quick(restart={"quarantine_after": 1000}, wire={"max_item_bytes": 100_000})
    async with Engine(settings) as engine:
        reserved = engine.reserve.free_bytes
        clients = [Client(engine, cap, Random(f"{seed} {number}")) for number in range(CLIENTS)]

        async def work(client: Client) -> None:
            for _ in range(TURNS):
                await client.turn()

        disturbance = asyncio.create_task(disturb(engine, Random(seed)))
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(*(work(client) for client in clients))
        finally:
            disturbance.cancel()
        assert sum(client.answers for client in clients) > 0
        assert not [error for client in clients for error in client.errors if error.code not in EXPECTED]
        await wait_until(lambda: not any(one.open_requests for one in engine.pool.sessions), limit_s=5.0)
        assert engine.reserve.free_bytes == reserved
        assert not any(door.waiting for door in engine.pool.doors.values())
        assert (await engine.run("echo", {"data": b"on"}, timeout_s=10)).data == b"on"
        assert (await engine.run("stay", {"phase": "loading", "seconds": 0}, timeout_s=10)).text == "loaded"
        assert (await engine.run(cap, {"data": "on"}, timeout_s=10)).text == "on"
