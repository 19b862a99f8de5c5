"""Several texts of one prompt, what is told of their tokens, calls of tools, and the two kinds of caches."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_torch.family import CAUSAL
from cartdeck_torch.generation import splitter_for

Make = Callable[..., Any]
WARM = {"temperature": 1.5, "top_p": 1.0, "top_k": 0, "max_tokens": 20}
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
SAID = [{"role": "user", "content": "How is the weather?"}]


@pytest.fixture(scope="module")
def llama(make_causal: Make, open_generator: Make) -> Any:
    return open_generator(make_causal("llama"))


@pytest.mark.parametrize("kind", CAUSAL)
def test_a_static_cache_gives_the_text_of_a_growing_one_and_is_used_again(
    kind: str, make_causal: Make, open_generator: Make, make_text: Make
) -> None:
    growing, static = (open_generator(make_causal(kind), kv_cache=one) for one in ("dynamic", "static"))
    for prompt in ("hello there", "another one", "hello there"):
        assert make_text(static, prompt)[0] == make_text(growing, prompt)[0]
    assert static.caches.kept_tokens == 64
    assert growing.caches.kept_tokens == 0


def test_a_static_cache_is_given_back_when_it_is_cleared_and_made_anew(
    make_causal: Make, open_generator: Make, make_text: Make
) -> None:
    model = open_generator(make_causal("llama"), kv_cache="static")
    text, _ = make_text(model)
    model.clear()
    assert model.caches.kept_tokens == 0
    assert make_text(model)[0] == text
    make_text(model, "x" * 500)
    assert model.caches.kept_tokens == 512
    assert make_text(model)[0] == text


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_each_of_several_texts_is_the_one_of_its_seed(
    cache: str, make_causal: Make, open_generator: Make, make_answer: Make, make_text: Make
) -> None:
    model = open_generator(make_causal("llama"), kv_cache=cache)
    text, events, made = make_answer(model, seed=5, texts=3, **WARM)
    others = {index: "".join(one["text"] for one in events if _is_text_of(one, index)) for index in (1, 2)}
    ends = {one["index"]: one["seed"] for one in events if one["type"] == "finish"}
    assert ends == {0: 5, 1: 6, 2: 7}
    assert [text, others[1], others[2]] == [make_text(model, seed=seed, **WARM)[0] for seed in (5, 6, 7)]
    assert made.completion_tokens <= made.most_tokens == 60


def _is_text_of(event: dict[str, Any], index: int) -> bool:
    return event["type"] == "text" and event["index"] == index


def test_a_token_is_told_with_what_the_model_itself_gave_it(llama: Any, make_answer: Make) -> None:
    import torch

    text, events, made = make_answer(llama, logprobs=True, top_logprobs=3, logit_bias=((65, 100.0),), max_tokens=4)
    assert (text, made.completion_tokens) == ("AAAA", 4)
    assert [one["text"] for one in events if one["type"] == "token"] == ["A"] * 4
    with torch.inference_mode():
        likely = llama.model(input_ids=torch.tensor([list(b"hello")])).logits[0, -1].log_softmax(0)
    first = events[0]
    assert first["logprob"] == pytest.approx(float(likely[65]), abs=1e-4)  # before the bias
    values, tokens = likely.topk(3)
    assert [one["id"] for one in first["top"]] == tokens.tolist()
    assert [one["logprob"] for one in first["top"]] == pytest.approx(values.tolist(), abs=1e-4)
    assert all(math.isfinite(one["logprob"]) for one in events)


def test_no_token_of_a_stop_text_is_told(llama: Any, make_answer: Make) -> None:
    biased = {"logit_bias": ((65, 50.0), (66, 49.0)), "temperature": 1.0, "seed": 3, "max_tokens": 40}
    text, events, made = make_answer(llama, logprobs=True, stop=("AB",), **biased)
    assert made.finish_reason == "stop"
    assert "".join(one["text"] for one in events) == text


def test_a_bias_on_a_token_that_there_is_not_is_refused(llama: Any, make_text: Make) -> None:
    with pytest.raises(CartdeckError, match="the model has 258 tokens") as caught:
        make_text(llama, logit_bias=((258, 1.0),))
    assert (caught.value.code, caught.value.argument) == (Code.BAD_ARGUMENT, "logit-bias")


def test_a_model_whose_template_knows_no_tools_is_told_of_them(llama: Any, make_answer: Make) -> None:
    pytest.importorskip("llguidance")
    plain = make_answer(llama, messages=SAID)[2]
    told = make_answer(llama, messages=SAID, tools=[WEATHER])[2]
    assert told.prompt_tokens > plain.prompt_tokens + 100
    assert told.syntax is not None
    none = make_answer(llama, messages=SAID, tools=[WEATHER], tool_choice="none")[2]
    assert (none.prompt_tokens, none.syntax) == (plain.prompt_tokens, None)


def test_calls_behind_a_token_of_control_are_listed_and_show_in_no_text(
    make_causal: Make, open_generator: Make, make_answer: Make, tmp_path: Path
) -> None:
    pytest.importorskip("llguidance")
    folder = tmp_path / "listing"
    shutil.copytree(make_causal("llama", vocab_size=259), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], "id": 258, "content": "[TOOL_CALLS]"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    template = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ messages[0].content }}{# [TOOL_CALLS] #}"
    asked = {"messages": SAID, "tools": [WEATHER], "template": template, "tool_choice": "required", "max_tokens": 120}
    no_space = tuple((byte, -100.0) for byte in b"\t\n\r ")
    text, _, made = make_answer(open_generator(folder), **asked, logit_bias=no_space)
    assert (made.syntax.token, made.syntax.is_list) == (258, True)
    splitter = splitter_for(made)
    assert splitter is not None
    found: list[Any] = [part for character in text for part in splitter.push(character)]
    assert found
    for call in found:
        assert (call.name, json.loads(call.arguments)["city"] in ("Rome", "Oslo")) == ("get_weather", True)
    assert not splitter.finish()
