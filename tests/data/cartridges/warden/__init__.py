"""A cartridge for tests that plays a guard. The model's spec is its script: `ward:form=llamaguard3,wait=0.2`.

It finds unsafe whatever has the word "bomb" in the message that it is asked about, and is in doubt of "weapon". form:
how it writes. wait: seconds before it does. fail=CODE: it fails with that error. says=TEXT: it writes that, whatever it
is asked (`+` stands for a space). dies=1: its process ends. What it is asked goes to its log.
"""

import asyncio
import json
import math
import os
import sys
from typing import Any

from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk import Cartridge, Output, Request

cartridge = Cartridge("warden")


def script_of(request: Request) -> dict[str, str]:
    parts = request["model"].removeprefix("ward:").split(",")
    return dict(part.partition("=")[::2] for part in parts if part)


def verdict(form: str, text: str) -> str:
    """In the form of a guard model; `text` is what it is asked about."""
    is_bad, is_doubtful = "bomb" in text, "weapon" in text
    match form:
        case "qwen3guard":
            label = "Unsafe" if is_bad else "Controversial" if is_doubtful else "Safe"
            return f"Safety: {label}\nCategories: {'None' if label == 'Safe' else 'Violent'}"
        case "shieldgemma":
            return "Yes" if is_bad else "No"
        case "json":
            return json.dumps({"safe": not is_bad, "categories": ["violence"] if is_bad else []})
        case _:
            return "\n\nunsafe\nS1,S9" if is_bad else "\n\nsafe"


async def answer(request: Request, output: Output, text: str) -> None:
    script = script_of(request)
    sys.stderr.write(f"asked: {json.dumps(text)}\n")
    output.progress(0.35, "prompt", phase="prompt")
    await asyncio.sleep(float(script.get("wait", 0)))
    is_wanted = text.strip() not in ("", ".")  # else it is only to be loaded
    if is_wanted and "dies" in script:
        os._exit(3)
    if is_wanted and "fail" in script:
        raise failure(Code[script["fail"]], "the script says so")
    said = script["says"].replace("+", " ") if "says" in script else verdict(script.get("form", "llamaguard3"), text)
    if request["logprobs"]:
        await tell_token(output, said, doubt=0.3 if "weapon" in text else 0.01)
    await output.write(said)
    output.finish(provenance={"finish_reason": "stop", "usage": {"prompt_tokens": 5, "completion_tokens": 2}})


async def tell_token(output: Output, said: str, *, doubt: float) -> None:
    other = "No" if said == "Yes" else "Yes"
    top = [
        {"id": 1, "text": said, "logprob": math.log(1 - doubt)},
        {"id": 2, "text": other, "logprob": math.log(doubt)},
    ]
    record: dict[str, Any] = {"type": "token", "index": 0, "id": 1, "text": said, "bytes": list(said.encode())}
    await output.stream("events").item({**record, "logprob": math.log(1 - doubt), "top": top})


@cartridge.handles("chat", needs=("messages", "model", "logprobs"))
async def chat(request: Request, output: Output) -> None:
    await answer(request, output, str(request["messages"]["messages"][-1]["content"]))


@cartridge.handles("generate-text", needs=("prompt", "model", "logprobs"))
async def generate_text(request: Request, output: Output) -> None:
    await answer(request, output, request["prompt"])
