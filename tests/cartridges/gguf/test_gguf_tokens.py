"""A model's tokens, listed, cut and put together, without its weights."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cartdeck
from cartdeck import Settings
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.model

WriteGguf = Callable[..., Path]


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with cartdeck.open(Settings()) as opened:
        yield opened


def ids_of(engine: Any, model: Path, text: str, **changes: Any) -> list[int]:
    return engine.run("cap:tokenize;gguf", {"model": str(model), "text": text, **changes}).json()


def text_of(engine: Any, model: Path, ids: Any, **changes: Any) -> str:
    return engine.run("cap:detokenize;gguf", {"model": str(model), "ids": ids, **changes}).text


def test_a_vocabulary_lists_every_token_with_its_exact_bytes(engine: Any, real_model: Path) -> None:
    records = engine.run("cap:vocabulary;gguf", {"model": str(real_model)}).items
    assert [record["id"] for record in records] == list(range(49_152))
    assert records[2] == {"id": 2, "text": "<|im_end|>", "bytes": b"<|im_end|>", "kind": "control", "score": 0.0}
    text = "Grüße 👍 to\n\t日本"
    ids = ids_of(engine, real_model, text)
    assert b"".join(records[one]["bytes"] for one in ids) == text.encode()
    broken = [record for record in records if "\ufffd" in record["text"]]
    assert broken
    assert any(record["bytes"] == b"\xf0\x9f" for record in broken)


def test_the_kinds_of_tokens_are_told_apart(engine: Any, write_gguf: WriteGguf) -> None:
    records = engine.run("cap:vocabulary;gguf", {"model": str(write_gguf())}).items
    assert [record["kind"] for record in records[:4]] == ["unknown", "control", "control", "byte"]
    assert records[3 + 0x41]["bytes"] == b"A"
    assert records[3 + 0xFF] == {"id": 258, "text": "\ufffd", "bytes": b"\xff", "kind": "byte", "score": 0.0}


def test_a_text_is_cut_and_put_together_again(engine: Any, real_model: Path) -> None:
    text = "Hello, wörld 👍 <|im_start|>user"
    ids = ids_of(engine, real_model, text)
    assert ids[-2:] == [1, 4093]
    assert text_of(engine, real_model, ids, **{"show-special": True}) == text
    assert text_of(engine, real_model, ids) == text.replace("<|im_start|>", "")
    plain = ids_of(engine, real_model, text, **{"read-special": False})
    assert 1 not in plain
    assert text_of(engine, real_model, plain) == text
    assert text_of(engine, real_model, []) == ""


def test_a_text_has_exactly_one_beginning_where_the_metadata_asks_for_it(engine: Any, write_gguf: WriteGguf) -> None:
    asks = write_gguf("asks.gguf")
    does_not = write_gguf("does_not.gguf", **{"tokenizer.ggml.add_bos_token": False})
    assert ids_of(engine, asks, "A") == [1, 3 + 0x41]
    assert ids_of(engine, asks, "<s>A") == [1, 3 + 0x41]
    assert ids_of(engine, asks, "A", **{"add-special": False}) == [3 + 0x41]
    assert ids_of(engine, does_not, "A") == [3 + 0x41]
    assert ids_of(engine, does_not, "<s>A") == [1, 3 + 0x41]


def test_ids_that_are_none_are_refused_by_index(engine: Any, write_gguf: WriteGguf) -> None:
    path = write_gguf()
    for ids, index in (([5, 259], 1), ([-1], 0), ([1, 2, "a"], 2), ([True], 0), ([2**40], 0)):
        with pytest.raises(CartdeckError) as caught:
            text_of(engine, path, ids)
        assert (caught.value.code, caught.value.details["index"]) == (Code.BAD_ARGUMENT, index)
    with pytest.raises(CartdeckError) as caught:
        text_of(engine, path, "{}")
    assert caught.value.code is Code.BAD_ARGUMENT


def test_bytes_that_are_no_character_become_one_mark_and_no_error(engine: Any, write_gguf: WriteGguf) -> None:
    path = write_gguf()
    ids = [3 + byte for byte in b"\xf0\x9f\x91\x8d ok \xe6\xad"]
    assert text_of(engine, path, ids) == "👍 ok \ufffd"


def test_what_has_no_vocabulary_is_refused(engine: Any, write_gguf: WriteGguf) -> None:
    for changes in ({"general.type": "mmproj"}, {"tokenizer.ggml.tokens": None}):
        with pytest.raises(CartdeckError) as caught:
            engine.run("cap:vocabulary;gguf", {"model": str(write_gguf("bad.gguf", **changes))})
        assert caught.value.code is Code.BAD_MODEL_FILE


def test_a_model_that_is_loaded_is_asked_for_its_tokens_and_vectors(engine: Any, write_gguf: WriteGguf) -> None:
    path = write_gguf("both.gguf")
    made = engine.run("cap:generate-text;gguf", {"model": str(path), "prompt": "a", "max-tokens": 1})
    assert ids_of(engine, path, "A") == [1, 3 + 0x41]
    vectors = engine.run("cap:embed-text;gguf", {"model": str(path), "texts": ["A"]})
    assert len(vectors.items[0]) == 4 * 32
    again = engine.run("cap:generate-text;gguf", {"model": str(path), "prompt": "a", "max-tokens": 1})
    assert again.provenance["timing"]["load_s"] == 0.0  # one process, one load
    assert made.provenance["timing"]["load_s"] > 0


def test_what_the_engine_would_not_come_back_from_is_refused(engine: Any, write_gguf: WriteGguf) -> None:
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "\u2581"]
    few = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [0.0] * 6,
           "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1], "llama.vocab_size": 6}  # fmt: skip
    path = write_gguf("few.gguf", **few)
    assert ids_of(engine, path, "ab") == [1, 3, 4]
    for text, options in (("abc", {}), ("a" * 1_000_001, {})):
        with pytest.raises(CartdeckError) as caught:
            ids_of(engine, path, text, **options)
        assert (caught.value.code, caught.value.argument) == (Code.BAD_ARGUMENT, "text")
    assert len(ids_of(engine, path, "a" * 1_000_001, **{"read-special": False})) == 1_000_002
