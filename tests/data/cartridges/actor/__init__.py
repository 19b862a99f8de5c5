"""A cartridge for tests that plays a model. The model's spec is its script: `act:load=2,tokens=100,pace=0.01`.

obtain, load, prompt: seconds of a phase. fail=CODE: the load ends with that error. tokens: how many there are to say,
one each `pace` seconds. dies=N: the process ends after so many. hold=N: after so many it waits for ever. calls=1: the
answer is a call of the first tool. seconds: how long a recording lasts. bare=1: of its segments only text and times.
"""

import asyncio
import json
import os
import struct
from typing import Any

from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk import Cartridge, Output, Request

cartridge = Cartridge("actor")
loaded: set[str] = set()
HEARD = {
    "window_start_s": 0.5, "tokens": [50364, 7], "temperature": 0.0, "avg_logprob": -0.25,
    "compression_ratio": 0.75, "no_speech_prob": 0.125,
}  # fmt: skip


def script_of(request: Request) -> dict[str, str]:
    parts = request["model"].removeprefix("act:").split(",")
    return dict(part.partition("=")[::2] for part in parts if part)


async def enter(request: Request, output: Output, script: dict[str, str]) -> None:
    """The phases before the first token. Only the first call of a process loads."""
    if request["model"] not in loaded:
        for phase, base, name in (("obtaining", 0.0, "obtain"), ("load", 0.25, "load")):
            output.progress(base, phase, phase=phase)
            await asyncio.sleep(float(script.get(name, 0)))
        if "fail" in script:
            raise failure(Code[script["fail"]], "the script says so", phase="load", argument="model")
        loaded.add(request["model"])
    output.progress(0.35, "prompt", phase="prompt")
    await asyncio.sleep(float(script.get("prompt", 0)))


def provenance(request: Request, *, prompt: int, made: int, reason: str) -> dict[str, Any]:
    return {
        "model": {"spec": request["model"], "revision": None, "sha256": None},
        "cartridge": {"name": "actor", "version": "1.0.0"},
        "engine": {"library": "actor", "version": "1"},
        "seed": 7,
        "finish_reason": reason,
        "usage": {"prompt_tokens": prompt, "completion_tokens": made, "cached_tokens": 0},
        "timing": {"obtain_s": 0.0, "load_s": 0.0, "first_token_s": 0.01, "total_s": 1.0},
        "settings": {"language": "en", "audio_s": 2.5},
    }


async def say(request: Request, output: Output) -> None:
    script = script_of(request)
    await enter(request, output, script)
    there_are = int(script.get("tokens", 3))
    count = min(there_are, request["max-tokens"])
    for number in range(count):
        if script.get("dies") == str(number):
            os._exit(3)
        if script.get("hold") == str(number):
            await asyncio.Event().wait()
        await output.write(f"t{number} ")
        await asyncio.sleep(float(script.get("pace", 0)))
    reason = "stop" if count == there_are else "length"
    output.finish(provenance=provenance(request, prompt=5, made=count, reason=reason))


@cartridge.handles("chat", needs=("messages", "model", "max-tokens"))
async def chat(request: Request, output: Output) -> None:
    script = script_of(request)
    if "calls" in script and request["tools"]:
        await enter(request, output, script)
        name = request["tools"][0]["function"]["name"]
        record = {"type": "tool_call", "index": 0, "id": "call_1", "name": name, "arguments": json.dumps({"x": 1})}
        await output.stream("events").item(record)
        output.finish(provenance=provenance(request, prompt=5, made=9, reason="stop"))
    else:
        await say(request, output)


@cartridge.handles("generate-text", needs=("prompt", "model", "max-tokens"))
async def generate_text(request: Request, output: Output) -> None:
    await say(request, output)


@cartridge.handles("embed-text", needs=("model",))
async def embed_text(request: Request, output: Output) -> None:
    await enter(request, output, script_of(request))
    vectors, words = output.stream(""), 0
    async for text in request.stream("texts"):
        words += len(text.split())
        await vectors.item(struct.pack("<3f", 0.6, 0.0, 0.8))
    output.finish(provenance=provenance(request, prompt=words, made=0, reason="stop"))


@cartridge.handles("transcribe-speech", needs=("audio", "model", "task"))
async def transcribe_speech(request: Request, output: Output) -> None:
    script = script_of(request)
    await enter(request, output, script)
    last = float(script.get("seconds", 2.5))
    for start, end, text in (
        (0.0, last / 2, f" {request['task']}"),
        (last / 2, last, f" {len(request['audio'])} bytes"),
    ):
        await output.write(text)
        segment = {"start_s": start, "end_s": end, "text": text}
        await output.stream("segments").item(segment if "bare" in script else segment | HEARD)
        await asyncio.sleep(float(script.get("pace", 0)))
    output.finish(provenance=provenance(request, prompt=0, made=4, reason="stop"))
