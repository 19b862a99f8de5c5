"""A model's text: known, repeatable, whole, and ended by what should end it."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck_gguf.batcher import Batcher
from cartdeck_gguf.generation import Generation
from cartdeck_modelkit.sampling import SamplingSettings, read_settings
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.model

Open = Callable[..., Any]
MakeText = Callable[..., Any]
WriteGguf = Callable[..., Path]
PROMPT = "The capital of France is"
VARIED = {"temperature": 0.9, "seed": 7, "max_tokens": 24}


def error_of(function: Callable[[], Any]) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        function()
    return caught.value


def test_the_likeliest_text_of_a_real_model_is_known(real_model: Path, open_model: Open, make_text: MakeText) -> None:
    made = make_text(open_model(real_model, context_size=512), PROMPT)
    assert made.text == " Paris.\n\nThe United States has"
    assert (made.finish_reason, made.prompt_tokens, made.completion_tokens) == ("length", 5, 8)
    assert len(made.pieces) == 8


IN_A_NEW_PROCESS = """
import json, sys
from pathlib import Path
from cartdeck_gguf.batcher import Batcher
from cartdeck_gguf.generation import Generation
from cartdeck_gguf.loading import LoadSettings, check_model, load
from cartdeck_modelkit.sampling import SamplingSettings
path, prompt, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
wanted = LoadSettings(threads=1, context_size=512)
model = load(check_model(Path(path)), wanted, listener=lambda *_: None, on_progress=lambda _: True)
generation, batcher = Generation(prompt, SamplingSettings(**settings)), Batcher(model)
batcher.submit(generation)
while batcher.step() == 0:
    pass
model.close()
print(json.dumps("".join(piece.text for piece in generation.delivery.take())))
"""


def test_the_same_seed_gives_the_same_text_here_later_and_in_a_new_process(
    real_model: Path, open_model: Open, make_text: MakeText, run_python: Callable[..., Any]
) -> None:
    import json

    model = open_model(real_model, context_size=512)
    first = make_text(model, PROMPT, **VARIED).text
    other = make_text(model, PROMPT + " a city", **{**VARIED, "seed": 8}).text
    assert make_text(model, PROMPT, **VARIED).text == first
    assert other != first
    settings = {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.0, **VARIED}
    assert run_python(IN_A_NEW_PROCESS, str(real_model), PROMPT, json.dumps(settings)) == first


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.0}, {"temperature": 0.9, "seed": 7}, {"temperature": 1.5, "seed": 3, "repeat_penalty": 1.3}],
)
def test_the_text_is_the_one_that_the_library_itself_makes(
    real_model: Path, open_model: Open, make_text: MakeText, settings: dict[str, Any], run_python: Callable[..., Any]
) -> None:
    import json

    program = """
import json, sys
from llama_cpp import Llama
settings = {"seed": 1, **json.loads(sys.argv[3])}
llama = Llama(sys.argv[1], n_ctx=512, n_threads=1, n_threads_batch=1, flash_attn=True, verbose=False)
answer = llama.create_completion(sys.argv[2], max_tokens=32, top_k=40, top_p=0.95, min_p=0.05, **settings)
print(json.dumps(answer["choices"][0]["text"]))
"""
    theirs = run_python(program, str(real_model), PROMPT, json.dumps(settings))
    made = make_text(open_model(real_model, context_size=512), PROMPT, **{**settings, "max_tokens": 32})
    assert made.text == theirs


def test_stop_strings_end_the_text_before_them(real_model: Path, open_model: Open, make_text: MakeText) -> None:
    model = open_model(real_model, context_size=512)
    made = make_text(model, PROMPT, stop=("United",))
    assert made.text == " Paris.\n\nThe "
    assert made.finish_reason == "stop"
    assert made.completion_tokens == 6
    assert make_text(model, PROMPT, stop=("States had",)).text == " Paris.\n\nThe United States has"


def test_a_text_of_any_bytes_comes_in_whole_characters(
    write_gguf: WriteGguf, open_model: Open, make_text: MakeText
) -> None:
    model = open_model(write_gguf())
    made = make_text(model, "héllo", temperature=1.0, max_tokens=400)
    assert made.completion_tokens > 50
    for piece in made.pieces:
        piece.encode()
    whole = make_text(model, "héllo", temperature=1.0, max_tokens=400)
    assert whole.text == made.text
    assert made.prompt_tokens == 1 + len("héllo".encode())  # one beginning-of-text token, and no second


def test_a_space_without_a_token_becomes_its_three_bytes(write_gguf: WriteGguf, open_model: Open) -> None:
    model = open_model(write_gguf()).model
    assert len(model.tokenize(" " * 100)) == 301
    assert len(model.tokenize("a b")) == 6


def test_a_beginning_of_text_token_is_there_once_or_not_at_all(write_gguf: WriteGguf, open_model: Open) -> None:
    asked = open_model(write_gguf()).model
    assert asked.tokenize("a")[:2] == [1, 3 + ord("a")]
    assert asked.tokenize("<s>a") == asked.tokenize("a")
    bare = open_model(write_gguf("bare.gguf", **{"tokenizer.ggml.add_bos_token": False})).model
    assert bare.tokenize("a") == [3 + ord("a")]
    assert bare.tokenize("") == []


@pytest.mark.parametrize(("excess", "answer"), [(-1, "length"), (0, None), (1, None)])
def test_a_prompt_must_leave_room_for_one_token(
    write_gguf: WriteGguf, open_model: Open, make_text: MakeText, excess: int, answer: str | None
) -> None:
    model = open_model(write_gguf(), context_size=64)
    prompt = "a" * (64 + excess - 1)  # and the beginning-of-text token
    if answer is None:
        error = error_of(lambda: make_text(model, prompt, max_tokens=100))
        assert error.code is Code.CONTEXT_OVERFLOW
        assert error.details == {"prompt_tokens": 64 + excess, "context_size": 64}
    else:
        made = make_text(model, prompt, max_tokens=100)
        assert made.completion_tokens <= 1
        assert made.finish_reason in (answer, "stop")
    assert make_text(model, "a", max_tokens=4).completion_tokens <= 4


def test_a_context_that_fills_ends_the_text(write_gguf: WriteGguf, open_model: Open, make_text: MakeText) -> None:
    model = open_model(write_gguf(), context_size=64)
    lengths = [make_text(model, "a" * 59, temperature=1.0, seed=seed, max_tokens=100) for seed in range(8)]
    assert all(made.completion_tokens <= 4 for made in lengths)
    assert any(made.completion_tokens == 4 and made.finish_reason == "length" for made in lengths)


def test_the_models_own_context_is_taken_when_none_is_asked_for(write_gguf: WriteGguf, open_model: Open) -> None:
    assert open_model(write_gguf()).context_size == 512
    assert open_model(write_gguf("b.gguf"), context_size=100).context_size == 100


def test_a_prompt_far_too_long_is_refused_at_once(real_model: Path, open_model: Open, make_text: MakeText) -> None:
    model = open_model(real_model, context_size=512)
    for prompt in ("word " * 200_000, "<|im_start|>" * 200_000, "x" * 50_000_000):
        started = time.process_time()
        assert error_of(lambda prompt=prompt: make_text(model, prompt)).code is Code.CONTEXT_OVERFLOW
        assert time.process_time() - started < 15


def test_an_empty_prompt_starts_from_the_beginning_token_or_is_refused(
    write_gguf: WriteGguf, real_model: Path, open_model: Open, make_text: MakeText
) -> None:
    assert make_text(open_model(write_gguf()), "").prompt_tokens == 1
    assert error_of(lambda: make_text(open_model(real_model, context_size=512), "")).code is Code.EMPTY_INPUT


@pytest.mark.parametrize("after_tokens", [0, 3])
def test_a_text_is_given_up_in_the_prompt_and_between_tokens(
    real_model: Path, open_model: Open, make_text: MakeText, after_tokens: int
) -> None:
    model = open_model(real_model, context_size=4096)
    generation = Generation("word " * 3000 if after_tokens == 0 else PROMPT, SamplingSettings(**VARYING))
    asked_s: list[float] = []

    batcher = Batcher(model)

    def give_up() -> None:
        asked_s.append(time.process_time())
        batcher.cancel(generation)

    timer = threading.Timer(0.2, give_up)
    batcher.submit(generation)
    if after_tokens == 0:
        timer.start()
    while batcher.step() == 0:
        if generation.completion_tokens == after_tokens > 0 and not asked_s:
            give_up()
    elapsed = time.process_time() - asked_s[0]
    timer.cancel()
    error = error_of(generation.delivery.raise_error)
    assert error.code is Code.CANCELLED
    assert elapsed < 2.0  # of computing, whatever else the machine does; the whole prompt takes many
    assert generation.finish_reason == "cancelled"
    assert generation.completion_tokens == after_tokens
    assert make_text(model, PROMPT).text == " Paris.\n\nThe United States has"


VARYING: dict[str, Any] = {
    "max_tokens": 500,
    "temperature": 0.5,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repeat_penalty": 1.1,
    "seed": 5,
}


def test_numbers_that_are_not_finite_are_an_error_and_no_text(
    write_gguf: WriteGguf, open_model: Open, make_text: MakeText
) -> None:
    for name, fill in (("nan.gguf", float("nan")), ("inf.gguf", float("inf"))):
        error = error_of(lambda name=name, fill=fill: make_text(open_model(write_gguf(name, fill=fill)), "a"))
        assert error.code is Code.NON_FINITE_OUTPUT


def test_a_character_without_a_token_is_refused_where_the_engine_would_abort(
    write_gguf: WriteGguf, open_model: Open, make_text: MakeText
) -> None:
    tokens = ["<unk>", "<s>", "</s>", "\u2581", *(chr(0x41 + index) for index in range(255))]
    changes = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [2, 3, 3, *([1] * 256)]}
    model = open_model(write_gguf(**changes))
    error = error_of(lambda: make_text(model, "AB C7\u4e16"))
    assert error.code is Code.BAD_ARGUMENT
    assert error.argument == "prompt"
    assert "'7'" in str(error)
    assert "'\u4e16'" in str(error)
    assert make_text(model, "AB C").prompt_tokens == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max-tokens", 0),
        ("max-tokens", 2**31),
        ("max-tokens", 1.5),
        ("max-tokens", True),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("top-k", -1),
        ("top-p", 1.01),
        ("min-p", -0.5),
        ("repeat-penalty", 0.0),
        ("seed", -1),
        ("seed", 2**32 - 1),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", ["x" * 1001]),
        ("stop", ["x"] * 33),
        ("frequency-penalty", 2.1),
        ("presence-penalty", float("-inf")),
        ("n", 0),
        ("n", 17),
        ("top-logprobs", 21),
        ("top-logprobs", -1),
        ("logit-bias", {"a": 1}),
        ("logit-bias", {"1": 101}),
        ("logit-bias", {"1": float("nan")}),
        ("logit-bias", {"-1": 0}),
        ("logit-bias", [1]),
        ("logit-bias", {str(token): 1 for token in range(1025)}),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(name: str, value: Any) -> None:
    good = {"max-tokens": 8, "temperature": 0.7, "top-k": 40, "top-p": 0.95, "min-p": 0.05, "repeat-penalty": 1.0}
    arguments: dict[str, Any] = {
        **good, "frequency-penalty": 0.0, "presence-penalty": 0.0, "n": 1, "logprobs": False, "top-logprobs": 0,
        "deterministic": False, **dict.fromkeys(("seed", "stop", "logit-bias", "grammar", "json-schema")),
    }  # fmt: skip
    assert read_settings(arguments.__getitem__).seed < 2**32 - 1
    error = error_of(lambda: read_settings({**arguments, name: value}.__getitem__))
    assert error.code is Code.BAD_ARGUMENT
    assert error.argument == name
    assert str(error).startswith(f"{name}: found ")


def test_extreme_settings_that_are_allowed_do_no_harm(
    write_gguf: WriteGguf, open_model: Open, make_text: MakeText
) -> None:
    model = open_model(write_gguf())
    for changes in (
        {"temperature": 1e-300},
        {"temperature": 1e-6},
        {"temperature": 100.0, "top_k": 0, "top_p": 0.0, "min_p": 1.0},
        {"temperature": 1.0, "top_k": 2**31 - 1, "repeat_penalty": 100.0, "seed": 2**32 - 2},
        {"temperature": 0.0, "repeat_penalty": 0.01},
    ):
        assert make_text(model, "a", **changes).completion_tokens <= 8
