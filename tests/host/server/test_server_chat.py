"""Chats and completions of a double, by the official client: what goes in and comes out, whole and as a stream."""

import json
from typing import Any

import pytest

MESSAGES = [{"role": "user", "content": "Hello"}]


def test_an_answer_has_the_shape_that_the_client_knows(client: Any) -> None:
    answer = client.chat.completions.create(model="act:tokens=3", messages=MESSAGES)
    [choice] = answer.choices
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "act:tokens=3"
    assert (choice.message.role, choice.message.content) == ("assistant", "t0 t1 t2 ")
    assert choice.finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 3, 8)
    assert answer.system_fingerprint == "actor-1.0.0-actor-1"


def test_a_stream_gives_the_same_text_as_the_whole(client: Any) -> None:
    stream = client.chat.completions.create(model="act:tokens=3,pace=0.02", messages=MESSAGES, stream=True)
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "t0 t1 t2 "
    assert len(chunks) >= 3
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


@pytest.mark.parametrize("is_asked", [True, False])
def test_usage_comes_with_the_last_chunk_if_it_is_asked_for(client: Any, is_asked: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if is_asked else {}
    chunks = list(client.chat.completions.create(model="named", messages=MESSAGES, stream=True, **options))
    counted = [chunk for chunk in chunks if chunk.usage is not None]
    whole = client.chat.completions.create(model="named", messages=MESSAGES)
    if is_asked:
        assert counted == chunks[-1:]
        assert counted[0].choices == []
        assert counted[0].usage == whole.usage
    else:
        assert counted == []
        assert all(chunk.choices for chunk in chunks)


def test_an_answer_says_that_nothing_was_refused(server: Any) -> None:
    asked = {"model": "act:tokens=1", "messages": [{"role": "user", "content": "x"}]}
    [choice] = server.post("/v1/chat/completions", asked)[1]["choices"]
    assert choice["message"] == {"role": "assistant", "content": "t0 ", "refusal": None}
    first = server.ask("POST", "/v1/chat/completions", {**asked, "stream": True})[2].partition(b"\n\n")[0]
    delta = json.loads(first.removeprefix(b"data: "))["choices"][0]["delta"]
    assert delta == {"role": "assistant", "content": "t0 ", "refusal": None}


def test_the_stream_ends_with_done(server: Any) -> None:
    asked = {"model": "named", "messages": MESSAGES, "stream": True}
    status, headers, data = server.ask("POST", "/v1/chat/completions", asked)
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert data.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_bound_the_tokens(client: Any, name: str) -> None:
    answer = client.chat.completions.create(model="act:tokens=50", messages=MESSAGES, **{name: 5})
    assert answer.usage.completion_tokens == 5
    assert answer.choices[0].finish_reason == "length"


def test_two_different_bounds_are_refused_and_equal_ones_are_not(client: Any, server: Any) -> None:
    asked = {"model": "act:tokens=50", "messages": MESSAGES, "max_tokens": 5, "max_completion_tokens": 6}
    status, told = server.post("/v1/chat/completions", asked)
    assert (status, told["error"]["param"]) == (400, "max_completion_tokens")
    answer = client.chat.completions.create(**{**asked, "max_completion_tokens": 5})
    assert answer.usage.completion_tokens == 5


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("bound", [None, "absent"])
def test_null_is_as_good_as_absent_and_the_default_is_more_than_16(server: Any, path: str, bound: Any) -> None:
    asked = {"model": "act:tokens=600", "messages": MESSAGES, "prompt": "Hello"}
    del asked["prompt" if "chat" in path else "messages"]
    if bound is None:
        asked["max_tokens"] = None
    status, told = server.post(path, asked)
    assert status == 200
    assert told["usage"]["completion_tokens"] == 512
    assert told["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("bound", [0, -1, "5", 1.5, True, [5]])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_bad_bound_is_refused_by_its_name(server: Any, path: str, bound: Any) -> None:
    asked = {"model": "named", "messages": MESSAGES, "prompt": "Hello", "max_tokens": bound}
    del asked["prompt" if "chat" in path else "messages"]
    status, told = server.post(path, asked)
    assert (status, told["error"]["param"], told["error"]["code"]) == (400, "max_tokens", "BAD_ARGUMENT")
    assert "max_tokens" in told["error"]["message"]


def test_a_bound_beyond_all_means_as_many_as_there_are(server: Any) -> None:
    body = b'{"model": "act:tokens=1000", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1e9}'
    status, told = server.post("/v1/chat/completions", body)
    assert status == 200
    assert told["usage"]["completion_tokens"] == 1000


def test_a_call_of_a_tool_is_told_whole_and_in_a_stream(client: Any) -> None:
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}]
    asked = {"model": "act:calls=1", "messages": MESSAGES, "tools": tools}
    [choice] = client.chat.completions.create(**asked).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    [call] = choice.message.tool_calls
    assert (call.type, call.function.name, call.function.arguments) == ("function", "look_up", '{"x": 1}')
    chunks = list(client.chat.completions.create(**asked, stream=True))
    [told] = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or ()]
    assert (told.index, told.id, told.function.name) == (0, "call_1", "look_up")
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_an_answer_can_be_sent_back_as_a_message(client: Any) -> None:
    answer = client.chat.completions.create(model="named", messages=MESSAGES).choices[0].message
    again = client.chat.completions.create(model="named", messages=[*MESSAGES, answer, *MESSAGES])
    assert again.choices[0].message.content == "t0 t1 "


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("functions", [{"name": "f"}], "UNSUPPORTED"),
        ("modalities", ["audio"], "UNSUPPORTED"),
        ("store", True, "UNSUPPORTED"),
        ("reasoning_effort", "low", "UNSUPPORTED"),
        ("temperatur", 1, "UNKNOWN_ARGUMENT"),
        ("stop", [1], "BAD_ARGUMENT"),
        ("n", 0, "BAD_ARGUMENT"),
        ("n", 17, "BAD_ARGUMENT"),
        ("seed", -1, "BAD_ARGUMENT"),
        ("top_p", 2, "BAD_ARGUMENT"),
        ("temperature", "1", "BAD_ARGUMENT"),
        ("frequency_penalty", 3, "BAD_ARGUMENT"),
        ("top_logprobs", 3, "BAD_ARGUMENT"),
        ("tool_choice", "required", "BAD_ARGUMENT"),
        ("response_format", {"type": "json_schema"}, "MISSING_ARGUMENT"),
        ("response_format", {"type": "xml"}, "BAD_ARGUMENT"),
        ("stream_options", {"include_usage": True}, "BAD_ARGUMENT"),
        ("messages", [], "BAD_ARGUMENT"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(server: Any, field: str, value: Any, code: str) -> None:
    status, told = server.post("/v1/chat/completions", {"model": "named", "messages": MESSAGES, field: value})
    assert status == 400
    assert told["error"]["param"].partition(".")[0] == field
    assert told["error"]["code"] == code
    assert told["error"]["type"] == "invalid_request_error"
    assert told["error"]["class"] == "input"


def test_what_asks_for_nothing_is_taken(client: Any) -> None:
    answer = client.chat.completions.create(
        model="named", messages=MESSAGES, user="me", metadata={"a": "b"}, store=False, service_tier="auto",
        modalities=["text"], parallel_tool_calls=True, prompt_cache_key="x", response_format={"type": "text"}, n=1,
    )  # fmt: skip
    assert answer.choices[0].message.content == "t0 t1 "


def test_one_call_at_most_is_promised_where_a_tool_is_named(client: Any) -> None:
    asked: dict[str, Any] = {"model": "named", "messages": MESSAGES, "parallel_tool_calls": False}
    asked["tools"] = [{"type": "function", "function": {"name": "f"}}]
    for choice in ("none", {"type": "function", "function": {"name": "f"}}):
        assert client.chat.completions.create(tool_choice=choice, **asked).choices
    for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": "required"}):
        with pytest.raises(Exception, match="called once then") as caught:
            client.chat.completions.create(**choice, **asked)
        refused: Any = caught.value
        assert (refused.status_code, refused.code, refused.param) == (400, "UNSUPPORTED", "parallel_tool_calls")


def test_too_many_images_are_refused(server: Any) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asked = {"model": "named", "messages": [{"role": "user", "content": [image] * 17}]}
    status, told = server.post("/v1/chat/completions", asked)
    assert (status, told["error"]["param"]) == (400, "messages")
    assert "17 images" in told["error"]["message"]


def test_several_prompts_are_completed_side_by_side(client: Any) -> None:
    answer = client.completions.create(model="named", prompt=["a", "b"], echo=True)
    assert [(one.index, one.text) for one in answer.choices] == [(0, "at0 t1 "), (1, "bt0 t1 ")]
    assert answer.usage.completion_tokens == 4
    assert answer.object == "text_completion"
    chunks = list(client.completions.create(model="named", prompt=["a", "b"], stream=True))
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "t0 t1 ", 1: "t0 t1 "}


def test_an_error_of_one_prompt_is_the_error_of_the_request(server: Any) -> None:
    status, told = server.post("/v1/completions", {"model": "act:fail=BAD_MODEL_FILE", "prompt": ["a", "b"]})
    assert (status, told["error"]["code"]) == (400, "BAD_MODEL_FILE")


@pytest.mark.parametrize("prompt", [[1, 2], [[1]], [], 5, ["a", 1]])
def test_a_prompt_that_is_no_text_is_refused(server: Any, prompt: Any) -> None:
    status, told = server.post("/v1/completions", {"model": "named", "prompt": prompt})
    assert (status, told["error"]["param"]) == (400, "prompt")
