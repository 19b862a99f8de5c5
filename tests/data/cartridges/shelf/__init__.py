"""A cartridge for tests: one item per process, one request at a time."""

import asyncio
import json
import os

from cartdeck_sdk import Cartridge, Output, Request

cartridge = Cartridge("shelf")


@cartridge.handles("hold", needs=("item", "seconds"))
async def hold(request: Request, output: Output) -> None:
    output.progress(0.5, "holding", phase="holding")
    await asyncio.sleep(request["seconds"])
    await output.write(json.dumps({"item": request["item"], "pid": os.getpid()}))


@cartridge.handles("pass-on", needs=("item", "cap", "arguments"))
async def pass_on(request: Request, output: Output) -> None:
    answer = await request.peer.call(request["cap"], request["arguments"]).collect(forward_progress=(0.0, 0.9))
    await output.write(answer.data)
