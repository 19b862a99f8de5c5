"""A client that goes away: its call is cancelled wherever it stands, and nobody else notices."""

import threading
from typing import Any

import pytest

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]
PROMPT_S = 15.0
"""It takes a fraction of a second; a loaded machine needs more."""


def test_a_stream_that_is_left_is_cancelled_and_the_next_call_starts(server: Any, client: Any) -> None:
    model = "act:tokens=10000,pace=0.01"
    stream = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=10_000, stream=True)
    for _, _ in zip(range(5), stream, strict=False):
        pass
    stream.close()
    assert server.wait_for(lambda: not server.open_calls(model)) < PROMPT_S
    again = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=2)
    assert again.choices[0].message.content == "t0 t1 "


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize(
    ("model", "phase"),
    [
        ("act:obtain=600", "obtaining"),
        ("act:load=600", "load"),
        ("act:prompt=600", "prompt"),
        ("act:hold=1", "prompt"),
    ],
)
def test_a_client_that_leaves_in_any_phase_leaves_nothing(
    server: Any, model: str, phase: str, is_streamed: bool
) -> None:
    model = f"{model},streamed={int(is_streamed)}"
    connection = server.send(CHAT, {"model": model, "messages": MESSAGES, "stream": is_streamed})
    server.wait_for(lambda: server.open_calls(model) == {phase: 1})
    connection.close()
    assert server.wait_for(lambda: not server.open_calls(model)) < PROMPT_S


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_the_queue_frees_its_place(start: Any, is_streamed: bool) -> None:
    with start("--grace", "0.2") as server:
        asked = {"cap": "cap:misbehave", "arguments": {"action": "stall"}, "stream": is_streamed}
        held = [server.send("/caps/call", asked) for _ in range(64)]  # all that one echo takes at a time
        server.wait_for(lambda: server.open_calls("").get("stalling") == 64)
        waiting = server.send("/caps/call", asked)
        server.wait_for(lambda: server.open_calls("").get("queued") == 1)
        waiting.close()
        assert server.wait_for(lambda: "queued" not in server.open_calls("")) < PROMPT_S
        for connection in held:
            connection.close()
        assert server.wait_for(lambda: not server.open_calls("")) < PROMPT_S


def test_a_completion_of_several_prompts_is_cancelled_whole(server: Any) -> None:
    model = "act:hold=1,prompts=3"
    connection = server.send("/v1/completions", {"model": model, "prompt": ["a", "b", "c"]})
    server.wait_for(lambda: server.open_calls(model) == {"prompt": 3})
    connection.close()
    assert server.wait_for(lambda: not server.open_calls(model)) < PROMPT_S


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_plan_that_is_left_is_cancelled(server: Any, is_streamed: bool) -> None:
    plan = '() -> misbehave -> done\nmisbehave.action = "stall"'
    connection = server.send("/plans/run", {"plan": plan, "stream": is_streamed})
    server.wait_for(lambda: server.open_calls("").get("stalling"))
    connection.close()
    assert server.wait_for(lambda: not server.open_calls("").get("stalling")) < PROMPT_S


def test_streams_beside_each_other_are_not_cut(server: Any) -> None:
    heard: dict[int, str] = {}

    def listen(number: int, model: str) -> None:
        stream = server.client().chat.completions.create(model=model, messages=MESSAGES, stream=True)
        heard[number] = "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    models = ["act:tokens=40,pace=0.01", "act:tokens=40,pace=0.01", "act:tokens=40,pace=0.01,other=1"]
    threads = [threading.Thread(target=listen, args=one) for one in enumerate(models)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert heard == dict.fromkeys(range(3), "".join(f"t{number} " for number in range(40)))
