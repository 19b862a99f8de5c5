"""Owns the handlers of the echo cartridge. It does not know who calls them."""

import json
from asyncio import sleep
from time import monotonic
from time import sleep as wait
from typing import Any, Final

from cartdeck_echo.misbehaviour import misbehave
from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk import Cartridge, Output, Report, Request

cartridge = Cartridge("cartdeck_echo")

DISTINCT_BLOCKS: Final = 16


@cartridge.handles("echo")
async def echo(request: Request, output: Output) -> None:
    async for chunk in request.stream("data"):
        await output.write(chunk)


@cartridge.handles("emit", needs=("count", "size", "interval"))
async def emit(request: Request, output: Output) -> None:
    size, count, interval = request["size"], request["count"], request["interval"]
    blocks = [bytes((index,)) * size for index in range(min(count, DISTINCT_BLOCKS))]
    for index in range(count):
        await output.write(blocks[index % DISTINCT_BLOCKS])
        if interval:
            output.progress((index + 1) / count, phase="emitting", work=index + 1, total=count)
            await sleep(interval)


@cartridge.handles("emit-items", needs=("count", "size", "merged"))
async def emit_items(request: Request, output: Output) -> None:
    item, items = b"x" * request["size"], output.stream("")
    items.is_merged = request["merged"]
    for _ in range(request["count"]):
        await items.item(item)


@cartridge.handles("sink", needs=("interval",))
async def sink(request: Request, output: Output) -> None:
    size = chunks = 0
    async for chunk in request.stream("data"):
        size += len(chunk)
        chunks += 1
        if request["interval"]:
            await sleep(request["interval"])
    await output.write(json.dumps({"bytes": size, "chunks": chunks}))


@cartridge.handles("work", needs=("steps", "seconds", "silent"))
async def work(request: Request, output: Output) -> None:
    steps, seconds, is_silent = request["steps"], request["seconds"], request["silent"]

    def run(report: Report) -> int:
        for step in range(steps):
            end = monotonic() + seconds
            while (left := end - monotonic()) > 0:
                request.raise_if_cancelled()
                wait(min(left, 0.01))
            if not is_silent:
                report((step + 1) / steps, work=step + 1, total=steps)
        return steps

    done = await output.run_with_keepalive(0.0, "working", run, phase="working")
    await output.write(f"{done} steps done")


@cartridge.handles("relay", needs=("data", "cap", "argument", "arguments"))
async def relay(request: Request, output: Output) -> None:
    arguments: dict[str, Any] = dict(request["arguments"])
    if request["argument"]:
        arguments[request["argument"]] = request["data"]
    if request["cap"] == "":
        raise failure(Code.EMPTY_INPUT, "the argument cap is empty; expected the URN of a cap", argument="cap")
    call = request.peer.call(request["cap"], arguments)
    async for chunk in call.stream(forward_progress=(0.0, 0.9)):
        await output.write(chunk)
    answer = await call.collect()
    output.finish(provenance={"peer": answer.provenance})


cartridge.handles("misbehave", needs=("action", "amount", "seconds"))(misbehave)
