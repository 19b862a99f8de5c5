"""Texts of small random models of each family: as the library generates them, stopped, constrained and given up."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck_modelkit.sampling import SamplingSettings, read_settings
from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_torch.family import CAUSAL
from cartdeck_torch.generation import Generation
from cartdeck_torch.job import Job

LIMIT_S = 60.0
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
DEFAULTS: dict[str, Any] = {"temperature": 0.0, "top_k": 40, "top_p": 0.95, "min_p": 0.0, "repeat_penalty": 1.0}
DEFAULTS |= {"max_tokens": 12, "seed": 1}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
MakeCausal = Callable[..., Path]
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def llama(make_causal: MakeCausal, open_generator: Make) -> Any:
    return open_generator(make_causal("llama"))


@pytest.mark.parametrize("kind", CAUSAL)
def test_greedy_tokens_are_those_of_the_library(
    make_causal: MakeCausal, kind: str, make_text: Make, open_generator: Make
) -> None:
    import torch
    import transformers

    path = make_causal(kind)
    text, generation = make_text(open_generator(path), "hello there")
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    ids = torch.tensor([list(b"hello there")])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=257)
    theirs = [token for token in out[0, ids.shape[1] :].tolist() if token < 256]
    assert text == bytes(theirs).decode(errors="replace")
    assert (generation.prompt_tokens, generation.completion_tokens) == (11, len(theirs))
    assert generation.finish_reason == ("length" if len(theirs) == 12 else "stop")


def test_a_prompt_in_slices_gives_the_text_of_the_whole(
    llama: Any, monkeypatch: pytest.MonkeyPatch, make_text: Make
) -> None:
    from cartdeck_torch.engine import causal

    whole, _ = make_text(llama, "word " * 60)
    monkeypatch.setattr(causal, "SLICE_TOKENS", 7)
    sliced, generation = make_text(llama, "word " * 60)
    assert sliced == whole
    assert generation.prompt_done == generation.prompt_tokens == 300


def test_a_seed_gives_its_text_again_whatever_came_between(llama: Any, make_text: Make) -> None:
    import torch

    warm = {"temperature": 1.5, "max_tokens": 30, "top_p": 1.0, "top_k": 0}
    first, _ = make_text(llama, seed=7, **warm)
    torch.manual_seed(123)
    other, _ = make_text(llama, seed=8, **warm)
    again, _ = make_text(llama, seed=7, **warm)
    assert first == again != other


def test_a_stop_text_ends_it_and_is_not_shown(llama: Any, make_text: Make) -> None:
    text, _ = make_text(llama, temperature=1.0, seed=3, max_tokens=40, logit_bias=((65, 8.0), (66, 8.0)))
    assert "AB" in text
    cut, generation = make_text(
        llama, temperature=1.0, seed=3, max_tokens=40, logit_bias=((65, 8.0), (66, 8.0)), stop=("AB",)
    )
    assert cut == text[: text.index("AB")]
    assert generation.finish_reason == "stop"


def test_penalties_and_biases_change_what_is_drawn(llama: Any, make_text: Make) -> None:
    text, _ = make_text(llama, logit_bias=((65, 100.0),), max_tokens=6)
    assert text == "AAAAAA"
    text, _ = make_text(llama, logit_bias=((65, 90.0),), max_tokens=6, presence_penalty=2.0, frequency_penalty=2.0)
    assert text == "AAAAAA"
    text, _ = make_text(llama, logit_bias=((65, 60.0), (66, 58.0)), max_tokens=30, frequency_penalty=2.0)
    assert set(text) == {"A", "B"}


def test_a_schema_holds_the_text(llama: Any, make_text: Make) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"n": {"enum": ["one", "two"]}}, "required": ["n"]}
    schema["additionalProperties"] = False
    for seed in (1, 2, 3):
        text, generation = make_text(llama, json_schema=schema, temperature=1.0, seed=seed, max_tokens=80)
        if generation.finish_reason == "stop":
            assert json.loads(text)["n"] in ("one", "two")
        assert text.lstrip().startswith("{")
    with pytest.raises(CartdeckError) as caught:
        make_text(llama, json_schema={"type": "object", "dependentSchemas": {"a": {}}, "unevaluatedProperties": False})
    assert caught.value.code is Code.UNSUPPORTED_SCHEMA


def test_a_dialogue_goes_through_the_models_template(llama: Any, make_text: Make) -> None:
    said = [{"role": "user", "content": "hi"}]
    text, generation = make_text(llama, "", messages=said)
    plain, _ = make_text(llama, "<user>hi<assistant>")
    assert text == plain
    assert generation.prompt_tokens == len("<user>hi<assistant>")
    other, _ = make_text(llama, "", messages=said, template="{{ messages[0].content }}")
    assert other == make_text(llama, "hi")[0]
    refusing = "{{ raise_exception('no system text') }}"
    with pytest.raises(CartdeckError, match="no system text") as caught:
        make_text(llama, "", messages=said, template=refusing)
    assert caught.value.code is Code.BAD_ARGUMENT


def test_a_model_of_texts_alone_refuses_images(llama: Any, make_text: Make) -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    with pytest.raises(CartdeckError, match="sees no images") as caught:
        make_text(llama, messages=[{"role": "user", "content": [image]}])
    assert (caught.value.code, caught.value.argument) == (Code.UNSUPPORTED, "messages")


def test_a_gpu_that_is_not_there_is_refused_by_its_name() -> None:
    from cartdeck_torch.engine.torch_device import open_device

    with pytest.raises(CartdeckError, match="no device cuda:77 here") as caught:
        open_device("cuda:77", threads=1)
    assert (caught.value.code, caught.value.argument) == (Code.UNSUPPORTED, "device")


def test_a_prompt_that_is_too_long_or_empty_is_refused_before_it_is_computed(llama: Any, make_text: Make) -> None:
    with pytest.raises(CartdeckError) as caught:
        make_text(llama, "x" * 2048)
    assert caught.value.code is Code.CONTEXT_OVERFLOW
    assert caught.value.details == {"prompt_tokens": 2048, "context_size": 2048}
    _, generation = make_text(llama, "x" * 2040, max_tokens=100, logit_bias=((257, -100.0),))
    assert (generation.completion_tokens, generation.finish_reason) == (8, "length")
    with pytest.raises(CartdeckError) as caught:
        make_text(llama, "", messages=[], template="{# nothing #}")
    assert caught.value.code is Code.EMPTY_INPUT


def test_numbers_that_are_none_are_reported_and_not_drawn_from(llama: Any, make_text: Make) -> None:
    weight = llama.model.lm_head.weight
    before = weight.clone()
    for rows in (slice(None), slice(5, 6)):
        weight[rows] = float("nan")
        try:
            with pytest.raises(CartdeckError) as caught:
                make_text(llama)
        finally:
            weight.copy_(before)
        assert caught.value.code is Code.NON_FINITE_OUTPUT


def test_the_smallest_temperature_takes_the_likeliest_token(llama: Any, make_text: Make) -> None:
    likeliest, _ = make_text(llama, temperature=0.0)
    for temperature in (1e-9, 1e-40, 5e-324):
        assert make_text(llama, temperature=temperature, top_k=0)[0] == likeliest


def test_numbers_that_are_ruled_out_or_beyond_any_likelihood_are_drawn_from_all_the_same() -> None:
    """A likelihood that is no number would cost the device on a GPU."""
    import torch

    from cartdeck_torch.engine.sampler import Sampler

    settings = SamplingSettings(**{**DEFAULTS, "temperature": 1.0, "top_k": 0, "top_p": 1.0})
    never, most = float("-inf"), float("inf")
    for row in ([never] * 4, [never, most, 1.0, never], [most] * 4, [3e38, -3e38, 0.0, never]):
        sampler = Sampler(settings, torch.device("cpu"), seed=1, constraint=None)
        assert sampler.draw(torch.tensor(row)) in range(4)


def test_a_cancel_acts_inside_a_prompt(make_causal: MakeCausal, make_text: Make, open_generator: Make) -> None:
    model = open_generator(make_causal("llama", num_hidden_layers=2))
    begun, seen = threading.Event(), list[float]()
    hook = model._layers[0].register_forward_pre_hook(lambda *_: begun.set())

    async def run() -> CartdeckError:
        settings = SamplingSettings(**{**DEFAULTS, "max_tokens": 2000})
        generation, job = Generation("x" * 1500, 2000, settings=settings), Job()
        found: list[CartdeckError] = []

        def work() -> None:
            try:
                model.generate(generation, job)
            except CartdeckError as error:
                seen.append(time.monotonic())
                found.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        await asyncio.to_thread(begun.wait, LIMIT_S)
        job.cancel()
        given_up = time.monotonic()
        await asyncio.to_thread(thread.join, LIMIT_S)
        assert seen[0] - given_up < 10.0  # some milliseconds on a machine that does nothing else
        return found[0]

    error = asyncio.run(run())
    hook.remove()
    assert error.code is Code.CANCELLED
    assert make_text(model, "hello")[0] == make_text(open_generator(make_causal("llama")), "hello")[0]


def test_settings_out_of_range_name_their_argument() -> None:
    values: dict[str, Any] = dict.fromkeys(("seed", "stop", "logit-bias", "grammar", "json-schema"))
    values |= {name.replace("_", "-"): value for name, value in DEFAULTS.items() if name != "seed"}
    values |= {"frequency-penalty": 0.0, "presence-penalty": 0.0, "n": 1, "logprobs": False, "top-logprobs": 0}
    values["deterministic"] = False
    drawn = read_settings(values.__getitem__)
    assert 0 <= drawn.seed < 2**32
    for name, value in (("stop", [""]), ("stop", ["x"] * 33), ("logit-bias", {"a": 1}), ("temperature", float("nan"))):
        with pytest.raises(CartdeckError) as caught:
            read_settings({**values, name: value}.__getitem__)
        assert caught.value.argument == name
