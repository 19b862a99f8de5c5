"""A cartridge for tests of plans: small caps whose ends have types of their own, and some that fail in set ways."""

import asyncio
import json
import os
from collections import Counter
from pathlib import Path

from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk import Cartridge, Output, Request

cartridge = Cartridge("mill")

_tries: Counter[str] = Counter()


def is_there(path: str) -> bool:
    return Path(path).exists()


def make(path: str) -> None:
    Path(path).touch()


@cartridge.handles("split", needs=("page",))
async def split(request: Request, output: Output) -> None:
    lines = output.stream("")
    for word in request["page"].split():
        await lines.item(word)


@cartridge.handles("shout", needs=("line",))
async def shout(request: Request, output: Output) -> None:
    output.progress(0.5, "shouting", phase="shouting", work=1, total=2)
    await output.write(request["line"].upper())


@cartridge.handles("join")
async def join(request: Request, output: Output) -> None:
    await output.write(" ".join([line async for line in request.stream("lines")]))


@cartridge.handles("pair", needs=("line", "page", "mark"))
async def pair(request: Request, output: Output) -> None:
    await output.write(request["line"] + request["mark"] + request["page"])


@cartridge.handles("size", needs=("line",))
async def size(request: Request, output: Output) -> None:
    await output.write(str(len(request["line"])))


@cartridge.handles("repeat", needs=("line", "times"))
async def repeat(request: Request, output: Output) -> None:
    await output.write(request["line"] * request["times"])


@cartridge.handles("claim", needs=("text",))
async def claim(request: Request, output: Output) -> None:
    await output.write(request["text"])


@cartridge.handles("tamper", needs=("line",))
async def tamper(request: Request, output: Output) -> None:
    await output.write(request["line"][::-1])


@cartridge.handles("flaky", needs=("line", "failures", "code"))
async def flaky(request: Request, output: Output) -> None:
    _tries[request["line"]] += 1
    await output.write(request["line"])
    if _tries[request["line"]] <= request["failures"]:
        raise failure(Code[request["code"]], f"try {_tries[request['line']]} fails")


@cartridge.handles("die-once", needs=("line", "marker"))
async def die_once(request: Request, output: Output) -> None:
    if not is_there(request["marker"]):
        make(request["marker"])
        os._exit(9)
    await output.write(request["line"])


@cartridge.handles("gate", needs=("marker",))
async def gate(request: Request, output: Output) -> None:
    """The last byte goes only when somebody has had the first."""
    await output.write(b"first ")
    while not is_there(request["marker"]):  # noqa: ASYNC110  # a file is what two processes share
        await asyncio.sleep(0.005)
    await output.write(b"last")


@cartridge.handles("touch", needs=("marker",))
async def touch(request: Request, output: Output) -> None:
    async for chunk in request.stream("data"):
        make(request["marker"])
        await output.write(chunk)


@cartridge.handles("tell", needs=("page",))
async def tell(request: Request, output: Output) -> None:
    """The page, and beside it its words and how many there are."""
    words = request["page"].split()
    for word in words:
        await output.stream("words").item(word)
    await output.write(request["page"].upper())
    await output.stream("facts").write(json.dumps({"words": len(words)}) if words else "none")


@cartridge.handles("fork")
async def fork(request: Request, output: Output) -> None:
    async for chunk in request.stream("data"):
        await output.write(chunk)
        await output.stream("right").write(chunk)


@cartridge.handles("concat")
async def concat(request: Request, output: Output) -> None:
    """All of the left, and only then the right."""
    sizes = [sum([len(chunk) async for chunk in request.stream(side)]) for side in ("left", "right")]
    await output.write(json.dumps({"sizes": sizes}))


@cartridge.handles("weigh", needs=("line", "model"))
async def weigh(request: Request, output: Output) -> None:
    """As if by a model: what it says does not tell which."""
    await output.write(f"{request['line']} weighs {len(request['model'])}")
