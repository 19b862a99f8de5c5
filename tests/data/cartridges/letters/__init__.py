"""A cartridge for tests: arguments that are gathered beside one that is streamed, and careless ways with a cancel."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk import Cartridge, Output, Request, WorkerOutput

cartridge = Cartridge("letters")


@cartridge.handles("file", needs=("label",))
async def file(request: Request, output: Output) -> None:
    label, size = request["label"], 0
    async for page in request.stream("pages"):
        size += len(page)
    await output.write(json.dumps([label[:1], len(label), size]))


@cartridge.handles("two-piles")
async def two_piles(request: Request, output: Output) -> None:
    """The left is read to its end before the right."""
    sizes: list[int] = []
    for side in ("left", "right"):
        sizes.append(0)
        async for part in request.stream(side):
            if not sizes[-1]:
                await output.stream("begun").item(side)
            sizes[-1] += len(part)
    await output.write(json.dumps(sizes))


@cartridge.handles("send", needs=("asynchronous", "fails"))
async def send(request: Request, output: Output) -> None:
    pages: Any = b"p" * request["pages"]
    if request["asynchronous"]:
        pages = _parts(pages, request["fails"])
    arguments = {"pages": pages, "label": "l" * request["label"]}
    await output.write((await request.peer.call("cap:file", arguments).collect()).data)


async def _parts(pages: bytes, fails: str) -> AsyncIterator[bytes]:
    for start in range(0, len(pages), 100_000):
        yield pages[start : start + 100_000]
    if fails == "ValueError":
        raise ValueError("a page is missing")
    if fails == "EMPTY_INPUT":
        raise failure(Code.EMPTY_INPUT, "a page is empty")
    if fails == "never":
        await asyncio.sleep(60)


@cartridge.handles("shrug")
async def shrug(request: Request, _output: Output) -> None:
    request.on_cancel(_raise)
    await asyncio.sleep(60)


def _raise() -> None:
    raise ValueError("what is a cancel?")


@cartridge.handles("thread")
def thread(request: Request, _output: WorkerOutput) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        request.raise_if_cancelled()
        time.sleep(0.01)
