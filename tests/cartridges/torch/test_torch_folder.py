"""What a model's folder says of itself is read without trust: damage, pickles and strangers are named."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_torch.batching import equal_runs, plan_batches
from cartdeck_torch.family import KINDS, Task, check_kind
from cartdeck_torch.folder import ModelFolder, check_spec, read_folder
from cartdeck_torch.pooling import EmbeddingShape, embedding_shape
from cartdeck_torch.safetensors_header import read_header

BERT = {"model_type": "bert", "hidden_size": 8, "max_position_embeddings": 64}


def safetensors(tensors: dict[str, tuple[str, list[int], int]], *, tail: int = 0) -> bytes:
    """A file with tensors {name: (type, shape, bytes)} of zeros; `tail` bytes more, or fewer, at its end."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * (offset + tail)


SOUND = safetensors({"w": ("F32", [2, 4], 32), "b": ("F16", [4], 8)})


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def write(config: dict[str, Any] | None = None, **files: Any) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(BERT if config is None else config))
        for name, content in {"model.safetensors": SOUND, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            if content is not None:
                path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return tmp_path

    return write


def error_of(path: Path) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        read_folder(path)
    return caught.value


def test_a_whole_folder_is_read_to_its_last_tensor(folder: Callable[..., Path]) -> None:
    found = read_folder(folder())
    assert (found.model_type, found.size_bytes, found.main_dtype) == ("bert", 40, "F32")
    (entries,) = found.weights.values()
    assert entries["w"].elements == 8
    assert read_folder(found.path / "model.safetensors").path == found.path


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (SOUND[:-1], Code.MODEL_TRUNCATED, "39 of the"),
        (SOUND[:40], Code.MODEL_TRUNCATED, "40 of the"),
        (b"", Code.MODEL_TRUNCATED, "0 of the"),
        (b"PK\x03\x04 a zip archive of pickles", Code.BAD_MODEL_FILE, "no safetensors header"),
        (struct.pack("<Q", 5) + b"12345", Code.BAD_MODEL_FILE, "no record"),
        (struct.pack("<Q", 5) + b"{oops", Code.BAD_MODEL_FILE, "no JSON"),
        (safetensors({"w": ("F32", [2, 4], 16)}), Code.BAD_MODEL_FILE, "16 bytes"),
        (safetensors({"w": ("Q9", [2, 4], 16)}), Code.BAD_MODEL_FILE, "'Q9'"),
        (safetensors({"w": ("F32", [-1], 4)}), Code.BAD_MODEL_FILE, "'w'"),
        (SOUND + b"more", Code.BAD_MODEL_FILE, "4 bytes more"),
    ],
)
def test_a_damaged_weights_file_is_named(folder: Callable[..., Path], content: bytes, code: Code, words: str) -> None:
    error = error_of(folder(**{"model.safetensors": content}))
    assert error.code is code
    assert "model.safetensors" in error.message
    if code is Code.MODEL_TRUNCATED:
        assert f"has {len(content)} of the" in error.message
    else:
        assert words in error.message


def test_pickled_weights_are_refused_and_not_read(folder: Callable[..., Path]) -> None:
    marker = folder().parent / "marker"
    pickle = b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR."
    path = folder(**{"pytorch_model.bin": pickle})
    (path / "model.safetensors").unlink()
    error = error_of(path)
    assert error.code is Code.UNSAFE_WEIGHTS
    assert "pytorch_model.bin" in error.message
    assert error_of(path / "pytorch_model.bin").code is Code.UNSAFE_WEIGHTS
    assert not marker.exists()


def test_beside_safetensors_a_pickle_does_not_matter(folder: Callable[..., Path]) -> None:
    assert read_folder(folder(**{"pytorch_model.bin": b"anything"})).main_dtype == "F32"


def test_a_missing_part_of_the_weights_is_named_and_a_part_elsewhere_refused(folder: Callable[..., Path]) -> None:
    index = {"weight_map": {"w": "model-1-of-2.safetensors", "v": "model-2-of-2.safetensors"}}
    path = folder(**{"model-1-of-2.safetensors": SOUND, "model.safetensors.index.json": index})
    (path / "model.safetensors").unlink()
    error = error_of(path)
    assert error.code is Code.MISSING_SHARD
    assert error.details["missing"] == ["model-2-of-2.safetensors"]
    index["weight_map"]["v"] = "../../etc/passwd.safetensors"
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert error_of(path).code is Code.UNSAFE_FILENAME


def test_a_folder_that_is_no_model_says_what_it_lacks(tmp_path: Path) -> None:
    assert error_of(tmp_path).code is Code.FILE_NOT_FOUND
    (tmp_path / "passwd").write_text("root")
    assert f"{tmp_path / 'passwd'} is no file of a model" in error_of(tmp_path / "passwd").message
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert f"{tmp_path / 'passwd'} is no file of a model" in error_of(tmp_path / "passwd").message
    assert "model.gguf" in error_of(tmp_path).message
    (tmp_path / "config.json").write_text("[1]")
    assert error_of(tmp_path).code is Code.BAD_MODEL_FILE
    (tmp_path / "config.json").write_text("{}")
    assert "model_type" in error_of(tmp_path).message
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert "tag gguf" in error_of(tmp_path / "x.gguf").message
    (tmp_path / "config.json").unlink()
    assert "x.gguf" in error_of(tmp_path).message


def test_a_spec_of_a_gguf_file_elsewhere_is_refused_before_it_is_obtained() -> None:
    for spec in ("pypi:small==1/small/model.gguf", "hf:owner/name:Q4.gguf"):
        with pytest.raises(CartdeckError, match="is a GGUF file") as caught:
            check_spec(spec)
        assert caught.value.code is Code.BAD_MODEL_FILE
        with pytest.raises(CartdeckError, match="give a model of safetensors files, no cap with the tag gguf does"):
            check_spec(spec, has_gguf=False)
    for spec in ("./model.gguf", "hf:owner/name-gguf", "pypi:small==1/small/model/"):  # what is there says it
        check_spec(spec)


def test_a_kind_that_is_made_for_something_else_and_one_that_is_not_known_are_told_apart() -> None:
    def error_for(kind: str, task: Task) -> CartdeckError:
        with pytest.raises(CartdeckError) as caught:
            check_kind(ModelFolder(Path("/models/some"), {"model_type": kind}), task)
        return caught.value

    other = error_for("whisper", Task.EMBED_TEXT)
    assert other.code is Code.UNSUPPORTED
    assert "made for transcribing speech" in other.message
    unknown = error_for("mamba", Task.GENERATE)
    assert unknown.code is Code.UNSUPPORTED_ARCHITECTURE
    assert unknown.details["known"] == list(KINDS[Task.GENERATE])
    assert "qwen3_next" in unknown.message


def test_pooling_and_length_come_from_the_files_of_sentence_transformers(folder: Callable[..., Path]) -> None:
    modules = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in STEPS]
    path = folder(
        **{
            "modules.json": modules,
            "1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
            "sentence_bert_config.json": {"max_seq_length": 16},
        }
    )
    assert embedding_shape(read_folder(path)) == EmbeddingShape(8, 16, "cls")
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    assert embedding_shape(read_folder(path)).pooling == "mean"
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(CartdeckError, match="pooling_mode_max_tokens; known are mean, cls and last"):
        embedding_shape(read_folder(path))
    (path / "modules.json").write_text(json.dumps([*modules, {"type": "x.Dense", "path": "3_Dense"}]))
    with pytest.raises(CartdeckError, match=r"x\.Dense"):
        embedding_shape(read_folder(path))


STEPS = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))


def test_without_them_it_is_the_mean_over_what_the_model_sees(folder: Callable[..., Path]) -> None:
    assert embedding_shape(read_folder(folder())) == EmbeddingShape(8, 64, "mean")
    path = folder({**BERT, "model_type": "roberta"})
    assert embedding_shape(read_folder(path)).max_tokens == 62


def test_batches_hold_texts_of_like_length_within_the_budget() -> None:
    lengths = [5, 700, 3, 3, 5, 1500, 400, 3]
    batches = plan_batches(lengths, budget=1024)
    assert batches == [[5], [1], [6, 0, 4, 2, 3, 7]]
    assert plan_batches([]) == []
    assert equal_runs([400, 5, 5, 3, 3, 3]) == [(1, 400), (2, 5), (3, 3)]


def test_a_header_of_a_file_that_is_not_there_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(CartdeckError) as caught:
        read_header(tmp_path / "none.safetensors")
    assert caught.value.code is Code.FILE_NOT_FOUND
