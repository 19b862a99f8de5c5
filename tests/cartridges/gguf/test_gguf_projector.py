"""A projector whose header would make the engine end the process is refused before it is loaded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cartdeck_gguf.projector import find_projector
from cartdeck_gguf.projector_soundness import check_sound_projector
from cartdeck_modelkit.gguf.header import read_header
from cartdeck_modelkit.gguf.memory import projector_compute_bytes
from cartdeck_protocol.errors import CartdeckError, Code

PROJECTOR = Path(__file__).resolve().parents[2] / "data" / "gguf" / "shapes-mmproj-576.gguf"


def checked(*, without: str = "", **changes: Any) -> None:
    header = read_header(PROJECTOR)
    metadata = header.metadata | {f"clip.{name.replace('__', '.')}": value for name, value in changes.items()}
    tensors = tuple(tensor for tensor in header.tensors if tensor.name != without)
    check_sound_projector(replace(header, metadata=metadata, tensors=tensors))


def test_a_projector_that_works_is_sound() -> None:
    checked()


@pytest.mark.parametrize(
    ("name", "value"),
    [("patch_size", 0), ("patch_size", 7), ("patch_size", "16"), ("patch_size", 16.0), ("image_size", 0),
     ("image_size", 1 << 30), ("image_size", 6400), ("embedding_length", 0), ("attention__head_count", 0),
     ("attention__head_count", 7), ("block_count", 1_000_000), ("attention__layer_norm_epsilon", -1.0),
     ("attention__layer_norm_epsilon", float("nan"))],
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused(name: str, value: Any) -> None:
    with pytest.raises(CartdeckError) as caught:
        checked(**{f"vision__{name}": value})
    assert caught.value.code is Code.BAD_MODEL_FILE
    assert caught.value.details["found"]


@pytest.mark.parametrize(
    "tensor",
    ["v.patch_embd.weight", "v.position_embd.weight", "v.blk.1.attn_q.weight", "v.blk.1.attn_q.bias",
     "v.blk.2.ln1.weight", "mm.2.weight", "v.post_ln.weight"],
)  # fmt: skip
def test_a_tensor_that_is_not_there_is_missed(tensor: str) -> None:
    with pytest.raises(CartdeckError) as caught:
        checked(without=tensor)
    assert caught.value.code is Code.BAD_MODEL_FILE


def test_a_kind_that_its_tensors_do_not_fit_is_refused() -> None:
    with pytest.raises(CartdeckError):
        checked(projector_type="qwen2vl_merger")


def test_one_projector_beside_a_model_is_found_and_several_are_named(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"")
    assert find_projector(model) is None
    (tmp_path / "model-mmproj-f16.gguf").write_bytes(b"")
    assert find_projector(model) == find_projector(tmp_path) == tmp_path / "model-mmproj-f16.gguf"
    (tmp_path / "mmproj-f32.gguf").write_bytes(b"")
    with pytest.raises(CartdeckError) as caught:
        find_projector(model)
    assert (caught.value.code, caught.value.argument) == (Code.BAD_ARGUMENT, "projector")
    assert "mmproj-f32.gguf" in caught.value.message


@pytest.mark.parametrize(
    ("size", "patch", "width", "inner", "allocated_mb"), [(336, 14, 1024, 4096, 17.05), (896, 14, 1152, 4304, 121.25)]
)
def test_the_buffers_of_a_projector_are_about_what_the_engine_allocates(
    size: int, patch: int, width: int, inner: int, allocated_mb: float
) -> None:
    header = read_header(PROJECTOR)
    named = {"image_size": size, "patch_size": patch, "embedding_length": width, "feed_forward_length": inner}
    metadata = header.metadata | {f"clip.vision.{name}": value for name, value in named.items()}
    found = projector_compute_bytes(replace(header, metadata=metadata))
    assert found == pytest.approx(allocated_mb * 2**20, rel=0.1)  # what it logged for a projector of this size
