"""A model that is unloaded leaves nothing: its process has ended, and the host has not grown."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cartdeck import Engine, Settings

pytestmark = pytest.mark.model

WriteGguf = Callable[..., Path]
CYCLES, ROUNDS = 4, 3
LEFT_BYTES = 2 * 1024 * 1024
"""What so many cycles may leave in the host: far less than one model's cache."""


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_loading_and_unloading_again_and_again_leaves_no_process_and_no_memory(write_gguf: WriteGguf) -> None:
    arguments = {"model": str(write_gguf()), "prompt": "a", "max-tokens": 1, "threads": 1}

    async def cycle(engine: Engine) -> None:
        await engine.run("cap:generate-text;gguf", arguments)
        pids = [session.process.pid for session in engine.pool.sessions if session.key.cartridge == "gguf"]
        await engine.unload("cap:generate-text;gguf", arguments=arguments)
        assert pids
        assert not any(is_there(pid) for pid in pids)

    async def run() -> None:
        async with asyncio.timeout(100), Engine(Settings()) as engine:
            for _ in range(2):
                await cycle(engine)
            left: list[int] = []
            while len(left) < ROUNDS and (not left or min(left) >= LEFT_BYTES):
                before = resident_bytes()
                for _ in range(CYCLES):
                    await cycle(engine)
                left.append(resident_bytes() - before)
            assert min(left) < LEFT_BYTES  # what is lost each time is lost in each round

    asyncio.run(run())
