"""cartdeck in the same harness as its peers: every call goes through the whole engine (router, lease, credit, cancel,
progress). argv: [asyncio | uvloop]."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from common import BLK, bench, emit, now  # the shared harness is not a package

from cartdeck import Data, Engine


class Worker:
    """The echo cartridge behind an engine, with the harness's names."""

    async def start(self) -> "Worker":
        self.engine = Engine()
        await self.engine.__aenter__()
        return self

    @property
    def pid(self) -> int:
        return next(session.process.pid for session in self.engine.pool.sessions if session.key.cartridge == "echo")

    async def echo(self, data: bytes) -> bytes:
        return (await self.engine.run("cap:echo", {"data": data})).data

    async def blocks(self, count: int) -> int:
        return await self.count("cap:emit", {"count": count, "size": BLK})

    async def small(self, count: int) -> int:
        return await self.items(count, merged=True)

    async def count(self, cap: str, arguments: dict[str, object]) -> int:
        total = 0
        async with self.engine.call(cap, arguments, keep_bytes=0) as call:
            async for event in call:
                if type(event) is Data:
                    total += len(event.value)
        return total

    async def items(self, count: int, *, merged: bool) -> int:
        total = 0
        arguments = {"count": count, "size": 16, "merged": merged}
        async with self.engine.call("cap:emit-items", arguments, keep_bytes=0) as call:
            async for event in call:
                total += type(event) is Data and len(event.value) == 16
        return total

    async def close(self) -> None:
        await self.engine.__aexit__(None, None, None)


async def extra(worker: Worker) -> None:
    """What only this design has: items in a chunk each, bytes upwards, bytes from worker to worker."""
    start = now()
    count = await worker.items(40_000, merged=False)
    emit(NAME, "small_chunk_each_per_s", count / (now() - start), "1/s")

    async def upload(blocks: int):
        block = bytes(BLK)
        for _ in range(blocks):
            yield block

    total, start = 0, now()
    while total < 256e6 or now() - start < 0.5:
        await worker.engine.run("cap:sink", {"data": upload(256)})
        total += 256 * BLK
    emit(NAME, "upload_MBps", total / 1e6 / (now() - start), "MB/s")

    relayed = {"cap": "cap:emit", "argument": "", "arguments": {"count": 512, "size": BLK}}
    await worker.count("cap:relay", relayed)  # the first one finds out the windows
    total, start = 0, now()
    while total < 256e6 or now() - start < 0.5:
        total += await worker.count("cap:relay", relayed)
    emit(NAME, "peer_MBps", total / 1e6 / (now() - start), "MB/s")


async def make() -> Worker:
    return await Worker().start()


if __name__ == "__main__":
    KIND = sys.argv[1] if len(sys.argv) > 1 else "asyncio"
    NAME = "cartdeck" if KIND == "asyncio" else f"cartdeck_{KIND}"
    if KIND == "uvloop":
        import uvloop

        uvloop.run(bench(NAME, make, 250_000, extra=extra))
    else:
        asyncio.run(bench(NAME, make, 250_000, extra=extra))
