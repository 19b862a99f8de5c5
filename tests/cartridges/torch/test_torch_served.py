"""Texts as their callers meet them: through an engine, made by one small model that sees, in one process."""

import base64
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from cartdeck import Data, Engine, Progress
from cartdeck_protocol.errors import CartdeckError, Code

WithEngine = Callable[[Callable[[Engine], Awaitable[Any]]], Any]
Make = Callable[..., Any]
SAID = [{"role": "user", "content": "How is the weather?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def drawing(colour: str) -> bytes:
    image = Image.new("RGB", (50, 40), "grey")
    ImageDraw.Draw(image).ellipse([5, 5, 35, 35], fill=colour)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def about(data: bytes, text: str) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": parts}]}


@pytest.fixture
def path(make_seeing: Make) -> Path:
    return make_seeing("llava")


async def error_in(engine: Engine, cap: str, arguments: dict[str, Any]) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        await engine.run(cap, arguments)
    return caught.value


def test_the_caps_of_text_are_served_with_their_provenance(with_engine: WithEngine, path: Path) -> None:
    async def use(engine: Engine) -> None:
        arguments: dict[str, Any] = {"model": str(path), "threads": 1, "temperature": 0, "max-tokens": 8}
        async with engine.call("cap:generate-text;torch", {**arguments, "prompt": "hello"}) as call:
            events = [event async for event in call]
        text = b"".join(event.value for event in events if isinstance(event, Data)).decode()
        made = events[-1].provenance
        assert made["usage"]["prompt_tokens"] == 5
        assert made["finish_reason"] in ("length", "stop")
        assert made["timing"]["first_token_s"] > 0
        assert isinstance(made["seed"], int)
        steps = [event for event in events if isinstance(event, Progress)]
        assert steps[-1].phase == "inference"  # of what waits for its reader the latest is kept
        said = {"messages": [{"role": "user", "content": "hi"}]}
        answered = await engine.run("cap:chat;torch", {**arguments, "messages": said})
        plain = await engine.run("cap:generate-text;torch", {**arguments, "prompt": "<user>hi<assistant>"})
        assert answered.text == plain.text
        assert text == (await engine.run("cap:generate-text;torch", {**arguments, "prompt": "hello"})).text
        await refusals(engine, arguments)

    async def refusals(engine: Engine, arguments: dict[str, Any]) -> None:
        async def error_of(cap: str, **changes: Any) -> CartdeckError:
            return await error_in(engine, cap, {**arguments, **changes})

        assert (await error_of("cap:chat;torch", messages={"messages": []})).code is Code.EMPTY_INPUT
        error = await error_of("cap:generate-text;torch", prompt="x", grammar="root ::= [a-z]")
        assert (error.code, error.argument) == (Code.UNSUPPORTED, "grammar")
        error = await error_of(
            "cap:chat;torch", messages={"messages": [{"role": "user", "content": "x"}]}, lora=["./a"]
        )
        assert (error.code, error.argument) == (Code.UNSUPPORTED, "lora")
        error = await error_of("cap:generate-text;torch", prompt="x", **{"logit-bias": {"9999": 1}})
        assert (error.code, error.argument) == (Code.BAD_ARGUMENT, "logit-bias")

    with_engine(use)


def test_a_running_text_is_given_up_and_the_next_one_made(with_engine: WithEngine, path: Path) -> None:
    async def use(engine: Engine) -> None:
        arguments: dict[str, Any] = {"model": str(path), "threads": 1, "prompt": "x" * 1900, "max-tokens": 100}
        never_ends = {"logit-bias": {"257": -100}, "temperature": 0}
        async with engine.call("cap:generate-text;torch", {**arguments, **never_ends}) as call:
            async for event in call:
                if isinstance(event, Data):
                    break
            call.cancel("enough")
            with pytest.raises(CartdeckError) as caught:
                async for _ in call:
                    pass
            assert caught.value.code is Code.CANCELLED
        made = await engine.run("cap:generate-text;torch", {**arguments, "prompt": "hi", "max-tokens": 2})
        assert made.provenance["usage"]["completion_tokens"] <= 2

    with_engine(use)


def test_what_there_is_to_know_of_a_model_and_the_devices_is_told(with_engine: WithEngine, make_causal: Make) -> None:
    async def use(engine: Engine) -> None:
        info = (await engine.run("cap:model-info;torch", {"model": str(make_causal("llama"))})).json()
        assert (info["architecture"], info["context_length"], info["layers"]) == ("llama", 2048, 2)
        assert info["made_for"] == ["generating text"]
        assert info["quantization"]["name"] == "F32"
        assert info["parameters"] * 4 == info["memory"]["weights_bytes"] < info["memory"]["total_bytes"]
        assert info["template"].startswith("{% for m in messages %}")
        devices = (await engine.run("cap:device-info")).json()["devices"]
        assert devices[0]["name"] == "cpu"
        assert "float32" in devices[0]["dtypes"]

    with_engine(use)


def test_calls_of_tools_are_whole_and_as_their_schemas_allow(with_engine: WithEngine, path: Path) -> None:
    pytest.importorskip("llguidance")

    async def use(engine: Engine) -> None:
        arguments: dict[str, Any] = {"model": str(path), "threads": 1, "seed": 1, "max-tokens": 200}
        arguments |= {"messages": {"messages": SAID}, "tools": [WEATHER], "tool-choice": '"required"'}
        arguments["logit-bias"] = dict.fromkeys(map(str, b"\t\n\r "), -100)  # a random model may write them for long
        async with engine.call("cap:chat;torch", arguments) as call:
            given = [event async for event in call]
        calls = [json.loads(event.value) if isinstance(event.value, bytes) else event.value for event in given
                 if isinstance(event, Data) and event.output == "events"]  # fmt: skip
        assert calls
        for one in calls:
            assert (one["type"], one["name"]) == ("tool_call", "get_weather")
            assert json.loads(one["arguments"])["city"] in ("Rome", "Oslo")
        assert [one["index"] for one in calls] == list(range(len(calls)))
        assert not b"".join(event.value for event in given if isinstance(event, Data) and event.output is None).strip()
        error = await error_in(engine, "cap:chat;torch", {**arguments, "n": 2})
        assert (error.code, error.argument) == (Code.BAD_ARGUMENT, "n")

    with_engine(use)


def test_several_texts_travel_on_events_with_their_ends(with_engine: WithEngine, path: Path) -> None:
    async def use(engine: Engine) -> None:
        arguments: dict[str, Any] = {"model": str(path), "threads": 1, "seed": 1, "max-tokens": 5}
        result = await engine.run(
            "cap:generate-text;torch", {**arguments, "prompt": "hello", "n": 2, "top-logprobs": 1}
        )
        events = [json.loads(item) if isinstance(item, bytes) else item for item in result.items_of("events")]
        kinds = {(one["type"], one["index"]) for one in events}
        assert {("token", 0), ("token", 1), ("finish", 0), ("finish", 1)} <= kinds
        assert result.provenance["seed"] == 1

    with_engine(use)


def test_an_image_is_described_and_talked_about(with_engine: WithEngine, path: Path) -> None:
    async def use(engine: Engine) -> None:
        arguments: dict[str, Any] = {"model": str(path), "threads": 1, "temperature": 0, "max-tokens": 6}
        described = await engine.run(
            "cap:describe-image;torch", {**arguments, "image": drawing("red"), "prompt": "What?"}
        )
        asked = about(drawing("red"), "What?")
        answered = await engine.run("cap:chat;torch", {**arguments, "messages": asked})
        assert described.text == answered.text
        assert described.provenance["settings"]["frames"] == 1
        frames = [Image.new("RGB", (20, 20), (20 * index, 0, 0)) for index in range(12)]
        file = io.BytesIO()
        frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
        moving = await engine.run("cap:describe-image;torch", {**arguments, "image": file.getvalue()})
        assert moving.provenance["settings"]["frames"] == 12
        error = await error_in(engine, "cap:chat;torch", {**arguments, "messages": about(b"no image", "?")})
        assert error.code is Code.BAD_IMAGE
        words = {"messages": [{"role": "user", "content": "only words"}]}
        plain = await engine.run("cap:chat;torch", {**arguments, "messages": words})
        assert plain.provenance["usage"]["prompt_tokens"] == len("<user>only words<assistant>")

    with_engine(use)
