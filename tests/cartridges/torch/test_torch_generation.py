"""Texts of small random models of each family: as the library generates them, stopped, constrained and given up."""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Data, Engine, Progress
from cartdeck_modelkit.sampling import SamplingSettings, read_settings
from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_torch.folder import read_folder
from cartdeck_torch.generation import Dialogue, Generation
from cartdeck_torch.job import Job
from cartdeck_torch.settings import LoadSettings

LIMIT_S = 60.0
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
DEFAULTS: dict[str, Any] = {
    "max_tokens": 12,
    "temperature": 0.0,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "seed": 1,
}

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
SHARED = {"shared_expert_intermediate_size": 32}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen3": {},
    "qwen3_moe": MOE,
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": {**MOE, **LINEAR, **SHARED},
    "qwen3_next": {**MOE, **LINEAR, **SHARED},
}


SEEING = ("qwen3_5", "qwen3_5_moe")
"""Kinds whose files hold a tower for images beside the text's model, which is used without it."""
TOWER = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32}
TOWER |= {"patch_size": 4, "num_position_embeddings": 16}


def write_byte_tokenizer(folder: Path) -> int:
    """A token for each byte, one for the beginning and one for the end."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in set(seen)]
    letters = {**{byte: chr(byte) for byte in seen}, **{byte: chr(256 + index) for index, byte in enumerate(hidden)}}
    vocabulary = {letters[byte]: byte for byte in range(256)}
    marks = [
        {"id": 256 + index, "content": mark, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for index, mark in enumerate(("<s>", "</s>"))
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    record: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": marks}
    record |= {"normalizer": None, "pre_tokenizer": level, "post_processor": level, "decoder": level}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    record["model"] = {**model, "end_of_word_suffix": None, "fuse_unk": False, "vocab": vocabulary, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps(record), "utf-8")
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return 258


@pytest.fixture(scope="session")
def make_causal(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a small random language model: `make_causal("qwen3_moe")`."""
    import torch
    import transformers

    made: dict[str, Path] = {}

    def make(kind: str = "llama", **changes: Any) -> Path:
        key = f"{kind}{changes}"
        if key not in made:
            torch.set_num_threads(1)
            torch.manual_seed(0)
            folder = tmp_path_factory.mktemp("causal") / f"tiny-{kind}"
            folder.mkdir()
            sizes: dict[str, Any] = {"vocab_size": write_byte_tokenizer(folder), "hidden_size": 32, "head_dim": 16}
            sizes |= {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
            sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 2048, "initializer_range": 0.3}
            sizes |= {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": None, "tie_word_embeddings": False}
            if kind in SEEING:
                text = {**sizes, **KINDS[f"{kind}_text"]}
                config = transformers.AutoConfig.for_model(kind, text_config=text, vision_config=TOWER)
                transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
            else:
                config = transformers.AutoConfig.for_model(kind, **{**sizes, **KINDS[kind], **changes})
                transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
            made[key] = folder
        return made[key]

    return make


def open_generator(path: Path, **settings: Any) -> Any:
    from cartdeck_torch.engine.models import open_model
    from cartdeck_torch.engine.torch_device import open_device

    device = open_device("cpu", threads=1)
    return open_model(read_folder(path), LoadSettings(threads=1, **settings), device, report=lambda _: None)


@pytest.fixture(scope="module")
def llama(make_causal: Callable[..., Path]) -> Any:
    return open_generator(make_causal("llama"))


def make_text(model: Any, prompt: str = "hello", *, dialogue: Dialogue | None = None, **changes: Any) -> Any:
    """The text, and its counts."""

    async def run() -> tuple[str, Generation]:
        settings = SamplingSettings(**{**DEFAULTS, **changes})
        generation = Generation(prompt, settings.max_tokens, settings=settings, dialogue=dialogue)
        job = Job()
        outcome = None
        try:
            model.generate(generation, job)
            job.outcome.set_result(None)
        except CartdeckError as error:
            outcome = error
        if outcome is not None:
            raise outcome
        text = ""
        async with asyncio.timeout(LIMIT_S):
            job.touch()
            async for piece in job.pieces():
                text += piece
        return text, generation

    return asyncio.run(run())


@pytest.mark.parametrize("kind", [*KINDS, *SEEING])
def test_greedy_tokens_are_those_of_the_library(make_causal: Callable[..., Path], kind: str) -> None:
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


def test_a_prompt_in_slices_gives_the_text_of_the_whole(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from cartdeck_torch.engine import causal

    whole, _ = make_text(llama, "word " * 60)
    monkeypatch.setattr(causal, "SLICE_TOKENS", 7)
    sliced, generation = make_text(llama, "word " * 60)
    assert sliced == whole
    assert generation.prompt_done == generation.prompt_tokens == 300


def test_a_seed_gives_its_text_again_whatever_came_between(llama: Any) -> None:
    import torch

    warm = {"temperature": 1.5, "max_tokens": 30, "top_p": 1.0, "top_k": 0}
    first, _ = make_text(llama, seed=7, **warm)
    torch.manual_seed(123)
    other, _ = make_text(llama, seed=8, **warm)
    again, _ = make_text(llama, seed=7, **warm)
    assert first == again != other


def test_a_stop_text_ends_it_and_is_not_shown(llama: Any) -> None:
    text, _ = make_text(llama, temperature=1.0, seed=3, max_tokens=40, logit_bias=((65, 8.0), (66, 8.0)))
    assert "AB" in text
    cut, generation = make_text(
        llama, temperature=1.0, seed=3, max_tokens=40, logit_bias=((65, 8.0), (66, 8.0)), stop=("AB",)
    )
    assert cut == text[: text.index("AB")]
    assert generation.finish_reason == "stop"


def test_penalties_and_biases_change_what_is_drawn(llama: Any) -> None:
    text, _ = make_text(llama, logit_bias=((65, 100.0),), max_tokens=6)
    assert text == "AAAAAA"
    text, _ = make_text(llama, logit_bias=((65, 90.0),), max_tokens=6, presence_penalty=2.0, frequency_penalty=2.0)
    assert text == "AAAAAA"
    text, _ = make_text(llama, logit_bias=((65, 60.0), (66, 58.0)), max_tokens=30, frequency_penalty=2.0)
    assert set(text) == {"A", "B"}


def test_a_schema_holds_the_text(llama: Any) -> None:
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


def test_a_dialogue_goes_through_the_models_template(llama: Any) -> None:
    said = [{"role": "user", "content": "hi"}]
    text, generation = make_text(llama, "", dialogue=Dialogue(said))
    plain, _ = make_text(llama, "<user>hi<assistant>")
    assert text == plain
    assert generation.prompt_tokens == len("<user>hi<assistant>")
    other, _ = make_text(llama, "", dialogue=Dialogue(said, template="{{ messages[0].content }}"))
    assert other == make_text(llama, "hi")[0]
    refusing = "{{ raise_exception('no system text') }}"
    with pytest.raises(CartdeckError, match="no system text") as caught:
        make_text(llama, "", dialogue=Dialogue(said, template=refusing))
    assert caught.value.code is Code.BAD_ARGUMENT


def test_a_prompt_that_is_too_long_or_empty_is_refused_before_it_is_computed(llama: Any) -> None:
    with pytest.raises(CartdeckError) as caught:
        make_text(llama, "x" * 2048)
    assert caught.value.code is Code.CONTEXT_OVERFLOW
    assert caught.value.details == {"prompt_tokens": 2048, "context_size": 2048}
    _, generation = make_text(llama, "x" * 2040, max_tokens=100, logit_bias=((257, -100.0),))
    assert (generation.completion_tokens, generation.finish_reason) == (8, "length")
    with pytest.raises(CartdeckError) as caught:
        make_text(llama, "", dialogue=Dialogue([], template=" "[:0] or "{# nothing #}"))
    assert caught.value.code is Code.EMPTY_INPUT


def test_numbers_that_are_none_are_reported_and_not_drawn_from(llama: Any) -> None:
    weight = llama.model.lm_head.weight
    before = weight.clone()
    weight.fill_(float("nan"))
    try:
        with pytest.raises(CartdeckError) as caught:
            make_text(llama)
    finally:
        weight.copy_(before)
    assert caught.value.code is Code.NON_FINITE_OUTPUT


def test_a_cancel_acts_inside_a_prompt(make_causal: Callable[..., Path]) -> None:
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
        assert seen[0] - given_up < 2.0  # some milliseconds on a machine that does nothing else
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


WithEngine = Callable[[Callable[[Engine], Awaitable[Any]]], Any]


def test_the_caps_of_text_are_served_with_their_provenance(
    with_engine: WithEngine, make_causal: Callable[..., Path]
) -> None:
    path = make_causal("llama")

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
        phases = {event.phase for event in events if isinstance(event, Progress)}
        assert {"load", "inference"} <= phases
        said = {"messages": [{"role": "user", "content": "hi"}]}
        answered = await engine.run("cap:chat;torch", {**arguments, "messages": said})
        plain = await engine.run("cap:generate-text;torch", {**arguments, "prompt": "<user>hi<assistant>"})
        assert answered.text == plain.text
        assert text == (await engine.run("cap:generate-text;torch", {**arguments, "prompt": "hello"})).text
        await refusals(engine, arguments)

    async def refusals(engine: Engine, arguments: dict[str, Any]) -> None:
        async def error_of(cap: str, **changes: Any) -> CartdeckError:
            with pytest.raises(CartdeckError) as caught:
                await engine.run(cap, {**arguments, **changes})
            return caught.value

        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
        error = await error_of("cap:chat;torch", messages={"messages": [{"role": "user", "content": [image]}]})
        assert (error.code, error.details["index"]) == (Code.UNSUPPORTED, 0)
        assert (await error_of("cap:chat;torch", messages={"messages": []})).code is Code.EMPTY_INPUT
        error = await error_of("cap:generate-text;torch", prompt="x", grammar="root ::= [a-z]")
        assert (error.code, error.argument) == (Code.UNSUPPORTED, "grammar")

    with_engine(use)


def test_a_running_text_is_given_up_and_the_next_one_made(
    with_engine: WithEngine, make_causal: Callable[..., Path]
) -> None:
    path = make_causal("llama")

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


def test_what_there_is_to_know_of_a_model_and_the_devices_is_told(
    with_engine: WithEngine, make_causal: Callable[..., Path]
) -> None:
    async def use(engine: Engine) -> None:
        info = (await engine.run("cap:model-info;torch", {"model": str(make_causal("llama"))})).json()
        assert (info["architecture"], info["context_length"], info["layers"]) == ("llama", 2048, 2)
        assert info["made_for"] == ["generating text"]
        assert info["quantization"]["name"] == "F32"
        assert info["parameters"] * 4 == info["memory"]["weights_bytes"] < info["memory"]["total_bytes"]
        assert info["template"] == TEMPLATE
        devices = (await engine.run("cap:device-info")).json()["devices"]
        assert devices[0]["name"] == "cpu"
        assert "float32" in devices[0]["dtypes"]

    with_engine(use)
