"""Texts are cut into tokens as the engine cuts them, in time by their length, and none ends the process."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cartdeck
from cartdeck import Settings
from cartdeck_gguf import cutting
from cartdeck_gguf.cutting import LONGEST_RUN, Cutter, Mark, Parter, longest_run_of, on_own_stack
from cartdeck_gguf.tokenizer import Tokenizer, open_tokenizer
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.model

WriteGguf = Callable[..., Path]
NAME = "<|im_start|>"
LIMIT_S = 20.0
"""What takes a third of a second here, and took more than a minute by the square."""


def byte_words() -> list[str]:
    """The 256 bytes as the vocabularies of the kind BPE write them."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [*map(chr, shown), *(chr(0x100 + place) for place in range(len(hidden)))]


@pytest.fixture
def write_bpe(write_gguf: WriteGguf) -> WriteGguf:
    """A small model that reads words with the splitter of that name: `write_bpe(splitter)`."""

    def write(splitter: str) -> Path:
        tokens = ["<unk>", "<s>", "</s>", *byte_words()]
        changes = {
            "llama.vocab_size": 259,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.ggml.pre": splitter,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": ["a b"],
            "tokenizer.ggml.scores": None,
            "tokenizer.ggml.token_type": [2, 3, 3, *([1] * 256)],
        }
        return write_gguf(f"{splitter}.gguf", **changes)

    return write


@pytest.fixture(scope="module")
def tokenizer(real_model: Path) -> Iterator[Tokenizer]:
    opened = open_tokenizer(real_model)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with cartdeck.open(Settings()) as opened:
        yield opened


def some_text(dice: random.Random, words: list[str]) -> str:
    return "".join(dice.choice(words) for _ in range(dice.randrange(1, 60)))


def test_a_long_text_is_cut_as_the_engine_cuts_a_short_one(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [tokenizer.records([token])[0]["text"] for token in range(17)]
    words = [*names, "<|", "|>", "im_start", "  ", " ", "\n", "a", "Hello", "é", "日本", "1", "!"]
    dice = random.Random(1)
    texts = [some_text(dice, words) for _ in range(100)]
    expected = [(tokenizer.encode(text), tokenizer.encode(text, reads_special=False)) for text in texts]
    monkeypatch.setattr(cutting, "SHORT_CHARACTERS", 0)
    found = [(tokenizer.encode(text), tokenizer.encode(text, reads_special=False)) for text in texts]
    assert found == expected


@pytest.mark.parametrize("adds_bos", [True, False])
def test_marks_in_each_other_and_a_beginning_are_cut_as_the_engine_cuts_them(
    write_gguf: WriteGguf, monkeypatch: pytest.MonkeyPatch, adds_bos: bool
) -> None:
    names = ["ab", "abab", "bc", "<s>a", "  ", " ", "b"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *names]
    changes: dict[str, Any] = {
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [2, 3, 3, *([6] * 256), 4, 4, 3, 3, 4, 4, 1],
        "tokenizer.ggml.add_bos_token": adds_bos,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.add_space_prefix": True,
    }
    tokenizer = open_tokenizer(write_gguf("marks.gguf", **changes))
    dice = random.Random(2)
    texts = [some_text(dice, ["a", "b", "c", " ", "<s>", "</s>", "x"]) for _ in range(100)]
    expected = [(tokenizer.encode(text), tokenizer.encode(text, reads_special=False)) for text in texts]
    monkeypatch.setattr(cutting, "SHORT_CHARACTERS", 0)
    assert [(tokenizer.encode(text), tokenizer.encode(text, reads_special=False)) for text in texts] == expected
    assert expected[0][0][0] == (1 if adds_bos else expected[0][0][0])
    assert expected[0][0][-1] == 2
    tokenizer.close()


def test_white_space_beside_a_mark_that_takes_it_belongs_to_the_mark() -> None:
    left, right = Mark(7, b"<m>", 8 | 128), Mark(8, b"<r>", 8 | 256)
    parter = Parter([left, right])
    assert parter.parts(b"a \n<m> b<r>\t c") == [b"a", 7, b" b", 8, b"c"]
    assert parter.parts(b" <m>") == [7]
    assert parter.parts(b"") == []
    assert Parter([]).parts(b"a") == [b"a"]


def test_many_names_of_special_tokens_take_time_by_their_number(tokenizer: Tokenizer) -> None:
    started = time.monotonic()
    assert tokenizer.encode(NAME * 60_000) == [1] * 60_000
    assert len(tokenizer.encode(f"{NAME}a " * 60_000)) == 180_000
    assert time.monotonic() - started < LIMIT_S


def test_a_text_that_is_given_up_is_cut_no_further(real_model: Path, tokenizer: Tokenizer) -> None:
    asked: list[int] = []

    def is_given_up() -> bool:
        asked.append(1)
        return len(asked) > 3

    cutter: Cutter = tokenizer._model.cutter
    with pytest.raises(CartdeckError) as caught:
        cutter.cut("".join(f"{NAME}{number} " for number in range(2_000)), is_given_up=is_given_up)
    assert (caught.value.code, len(asked)) == (Code.CANCELLED, 4)


def test_the_longest_run_is_of_words_or_of_space() -> None:
    assert longest_run_of("") == 1
    assert longest_run_of("abc de") == 3
    assert longest_run_of("a \n\t b") == 4
    assert longest_run_of("日本語") == 3


def test_a_stack_that_cannot_be_had_is_an_error_of_its_own() -> None:
    before = threading.stack_size()
    with pytest.raises(CartdeckError) as caught:
        on_own_stack(lambda: [1], 1 << 60)
    assert caught.value.code is Code.OUT_OF_MEMORY
    assert threading.stack_size() == before
    assert on_own_stack(lambda: [1], 1 << 20) == [1]


@pytest.mark.parametrize("splitter", ["tekken", "deepseek-v3", "exaone-moe", "superbpe"])
def test_a_word_of_any_length_does_not_end_the_process(engine: Any, write_bpe: WriteGguf, splitter: str) -> None:
    model = str(write_bpe(splitter))

    def count(text: str) -> int:
        return len(engine.run("cap:tokenize;gguf", {"model": model, "text": text}).json())

    for text in ("a" * 60_000, " " * 60_000, "\n" * 60_000, "!" * 60_000):
        assert count(text) == 60_000
    too_much = {"exaone-moe": "a " * LONGEST_RUN, "superbpe": ("1" * 2_500 + " ") * 5}
    for text in ("a" * (LONGEST_RUN + 1), too_much.get(splitter, " " * (LONGEST_RUN + 1))):
        with pytest.raises(CartdeckError) as caught:
            count(text)
        assert (caught.value.code, caught.value.argument) == (Code.BAD_ARGUMENT, "text")
        assert "in a row" in caught.value.message
    assert count("a b") == 3


def test_a_prompt_of_one_long_word_is_an_error_and_the_process_lives(engine: Any, write_bpe: WriteGguf) -> None:
    asked = {"model": str(write_bpe("tekken")), "max-tokens": 1}
    engine.run("cap:generate-text;gguf", {**asked, "prompt": "a"})
    for text, code in (("a" * 60_000, Code.CONTEXT_OVERFLOW), ("a" * 10_000, Code.CONTEXT_OVERFLOW)):
        with pytest.raises(CartdeckError) as caught:
            engine.run("cap:generate-text;gguf", {**asked, "prompt": text})
        assert caught.value.code is code
    again = engine.run("cap:generate-text;gguf", {**asked, "prompt": "a"})
    assert again.provenance["timing"]["load_s"] == 0.0  # the same process


def test_a_splitter_that_does_not_go_with_its_vocabulary_is_refused(engine: Any, write_bpe: WriteGguf) -> None:
    with pytest.raises(CartdeckError) as caught:
        engine.run("cap:tokenize;gguf", {"model": str(write_bpe("whitespace")), "text": "a  b"})
    assert caught.value.code is Code.BAD_MODEL_FILE
    assert "splitter" in caught.value.message
