"""Vectors of texts: those that transformers gives, whatever the batch; and every text that has none is an error."""

import array
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cartdeck
from cartdeck import Settings
from cartdeck_gguf.embedding_batch import pack_by_length
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.model

WriteGguf = Callable[..., Path]
DATA = Path(__file__).resolve().parents[2] / "data" / "gguf"
CAP = "cap:embed-text;gguf"


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with cartdeck.open(Settings()) as opened:
        yield opened


@pytest.fixture(scope="module")
def truth() -> list[dict[str, Any]]:
    return json.loads((DATA / "minilm_vectors.json").read_text("utf-8"))


def vectors_of(engine: Any, model: Path, texts: list[str], **changes: Any) -> list[list[float]]:
    result = engine.run(CAP, {"model": str(model), "texts": texts, "threads": 1, **changes})
    return [list(array.array("f", item)) for item in result.items]


def error_of(engine: Any, model: Path, texts: list[str], **changes: Any) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        vectors_of(engine, model, texts, **changes)
    return caught.value


def farthest(found: list[float], wanted: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_those_of_transformers(
    engine: Any, minilm_gguf: Path, truth: list[dict[str, Any]], pooling: str
) -> None:
    found = vectors_of(engine, minilm_gguf, [one["text"] for one in truth], pooling=pooling)
    assert len(found) == len(truth)
    assert max(farthest(vector, one[pooling]) for vector, one in zip(found, truth, strict=True)) < 2e-3


def test_the_tokens_of_a_text_are_those_of_transformers(
    engine: Any, minilm_gguf: Path, truth: list[dict[str, Any]]
) -> None:
    for one in truth:
        found = engine.run("cap:tokenize;gguf", {"model": str(minilm_gguf), "text": one["text"]}).json()
        assert found == one["ids"]


def test_a_vector_does_not_depend_on_the_texts_beside_it(
    engine: Any, minilm_gguf: Path, truth: list[dict[str, Any]]
) -> None:
    texts = [truth[index % 5]["text"] for index in range(70)]
    found = vectors_of(engine, minilm_gguf, texts)
    assert max(farthest(vector, truth[index % 5]["mean"]) for index, vector in enumerate(found)) < 1e-3


def test_vectors_have_the_length_one_unless_the_caller_wants_them_as_they_are(engine: Any, minilm_gguf: Path) -> None:
    (scaled,) = vectors_of(engine, minilm_gguf, ["A man is eating food."])
    (bare,) = vectors_of(engine, minilm_gguf, ["A man is eating food."], normalize=False)
    assert math.hypot(*scaled) == pytest.approx(1.0, abs=1e-5)
    length = math.hypot(*bare)
    assert length > 2
    assert farthest(scaled, [one / length for one in bare]) < 1e-6


def test_a_model_that_makes_text_gives_one_vector_a_text_too(engine: Any, real_model: Path) -> None:
    texts = ["a", "word " * 600, "Hello"]
    found = vectors_of(engine, real_model, texts)
    assert [len(vector) for vector in found] == [576, 576, 576]
    assert all(math.hypot(*vector) == pytest.approx(1.0, abs=1e-5) for vector in found)
    (alone,) = vectors_of(engine, real_model, ["Hello"])
    assert farthest(alone, found[2]) < 1e-2
    (last,) = vectors_of(engine, real_model, ["Hello there"], pooling="last")
    (mean,) = vectors_of(engine, real_model, ["Hello there"])
    assert farthest(last, mean) > 1e-2


def test_an_empty_text_is_an_error_by_its_index_and_the_process_lives(engine: Any, minilm_gguf: Path) -> None:
    for texts, index in ((["a", "", "b"], 1), ([""], 0), (["a", "b", "  "], 2)):
        error = error_of(engine, minilm_gguf, texts)
        assert (error.code, error.details["index"]) == (Code.EMPTY_INPUT, index)
    assert error_of(engine, minilm_gguf, []).code is Code.EMPTY_INPUT
    assert len(vectors_of(engine, minilm_gguf, ["a"])) == 1


def test_a_text_that_is_too_long_is_an_error_by_its_index_or_is_cut(engine: Any, minilm_gguf: Path) -> None:
    long = "start " + "middle " * 600 + "end"
    error = error_of(engine, minilm_gguf, ["a", long])
    assert (error.code, error.details) == (Code.CONTEXT_OVERFLOW, {"index": 1, "tokens": 604, "max_tokens": 512})
    kept_start = "start " + "middle " * 509
    kept_end = "middle " * 509 + "end"
    for side, kept in (("end", kept_start), ("start", kept_end)):
        arguments = {"model": str(minilm_gguf), "texts": [long, kept], "threads": 1, "truncate": side}
        result = engine.run(CAP, arguments)
        cut, wanted = (list(array.array("f", item)) for item in result.items)
        assert farthest(cut, wanted) < 1e-4
        assert result.provenance["truncated"] is True
        assert result.provenance["usage"]["prompt_tokens"] == 1024


def test_a_pooling_that_gives_no_vector_is_refused_and_another_may_be_asked_for(
    engine: Any, write_gguf: WriteGguf
) -> None:
    for number in (0, 4, 77):
        path = write_gguf(f"pooled_{number}.gguf", **{"llama.pooling_type": number})
        assert error_of(engine, path, ["a"]).code is Code.UNSUPPORTED
        assert len(vectors_of(engine, path, ["a"], pooling="mean")[0]) == 32
    for name in ("rank", "none", "MEAN"):
        assert error_of(engine, path, ["a"], pooling=name).code is Code.BAD_ARGUMENT


def test_dimensions_come_from_the_header(engine: Any, minilm_gguf: Path, write_gguf: WriteGguf) -> None:
    def record(path: Path) -> Any:
        return engine.run("cap:embedding-dimensions;gguf", {"model": str(path)}).json()

    assert record(minilm_gguf) == {"dimensions": 384, "max_tokens": 512, "pooling": "mean"}
    assert record(write_gguf(**{"llama.pooling_type": 4})) == {"dimensions": 32, "max_tokens": 512, "pooling": None}


def test_what_is_no_model_is_refused(engine: Any, write_gguf: WriteGguf) -> None:
    path = write_gguf("projector.gguf", **{"general.type": "mmproj"})
    assert error_of(engine, path, ["a"]).code is Code.BAD_MODEL_FILE


def test_an_embedding_model_makes_no_text(engine: Any, minilm_gguf: Path) -> None:
    with pytest.raises(CartdeckError) as caught:
        engine.run("cap:generate-text;gguf", {"model": str(minilm_gguf), "prompt": "a", "threads": 1})
    assert caught.value.code is Code.UNSUPPORTED


def test_texts_are_packed_with_those_of_their_length() -> None:
    lengths = [5, 300, 5, 300, 600, 6]
    batches = pack_by_length(lengths, most_tokens=512, most_texts=2)
    assert batches == [[0, 2], [5, 1], [3], [4]]
    assert pack_by_length([], most_tokens=512, most_texts=2) == []


def test_a_call_that_is_left_early_leaves_the_model_usable(engine: Any, minilm_gguf: Path) -> None:
    with engine.call(CAP, {"model": str(minilm_gguf), "texts": ["word " * 400] * 200, "threads": 1}) as call:
        for event in call:
            if isinstance(event, cartdeck.Progress) and event.phase == "inference":
                break
    started = time.monotonic()
    assert len(vectors_of(engine, minilm_gguf, ["a"])) == 1
    assert time.monotonic() - started < 20.0  # the whole of it takes minutes
