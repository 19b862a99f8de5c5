"""LoRA adapters change what a model says by their scale, and one that does not fit is an error before it is used."""

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cartdeck
from cartdeck import Settings
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.model

WriteGguf = Callable[..., Path]
CAP = "cap:generate-text;gguf"
STRING, FLOAT32 = 8, 6
WIDTH, RANK = 32, 4


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with cartdeck.open(Settings()) as opened:
        yield opened


def packed(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def adapter_bytes(*, width: int = WIDTH, **changes: Any) -> bytes:
    """A LoRA adapter for the query and the output of both blocks of the tiny llama."""
    metadata = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 8.0,
        **changes,
    }
    pairs = b""
    for key, value in metadata.items():
        kind = struct.pack("<If", FLOAT32, value) if isinstance(value, float) else struct.pack("<I", STRING)
        pairs += packed(key) + kind + (b"" if isinstance(value, float) else packed(value))
    dice = random.Random(1)
    table, data, count = b"", b"", 0
    for block in range(2):
        for name in ("attn_q", "attn_output"):
            for part, shape in (("lora_a", (width, RANK)), ("lora_b", (RANK, width))):
                size = shape[0] * shape[1]
                table += packed(f"blk.{block}.{name}.weight.{part}") + struct.pack("<IQQ", 2, *shape)
                table += struct.pack("<IQ", 0, len(data))
                values = struct.pack(f"<{size}f", *(dice.gauss(0.0, 1.0) for _ in range(size)))
                data += values + b"\0" * (-len(values) % 32)
                count += 1
    header = b"GGUF" + struct.pack("<IQQ", 3, count, len(metadata)) + pairs + table
    return header + b"\0" * (-len(header) % 32) + data


def with_first_type(adapter: bytes, kind: int) -> bytes:
    """The adapter with another type, of as many bytes, for its first tensor: 26 is I32."""
    name = b"blk.0.attn_q.weight.lora_a"
    place = adapter.index(name) + len(name) + 4 + 16
    return adapter[:place] + struct.pack("<I", kind) + adapter[place + 4 :]


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    path = tmp_path / "adapter.gguf"
    path.write_bytes(adapter_bytes())
    return path


def text_with(engine: Any, model: Path, *lora: Any) -> str:
    arguments = {"model": str(model), "prompt": "Once", "threads": 1, "temperature": 0, "max-tokens": 12}
    return engine.run(CAP, arguments | ({"lora": list(lora)} if lora else {})).text


def error_of(engine: Any, model: Path, *lora: Any) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        text_with(engine, model, *lora)
    return caught.value


def test_an_adapter_changes_the_text_by_its_scale(engine: Any, write_gguf: WriteGguf, adapter: Path) -> None:
    model = write_gguf()
    plain = text_with(engine, model)
    assert text_with(engine, model, str(adapter)) != plain
    assert text_with(engine, model, {"model": str(adapter), "scale": 0}) == plain
    assert text_with(engine, model) == plain  # the process without it is another one


def test_the_provenance_tells_adapters_and_their_scales(engine: Any, write_gguf: WriteGguf, adapter: Path) -> None:
    model = write_gguf()
    given = [str(adapter), {"model": str(adapter), "scale": -0.5}]
    arguments = {"model": str(model), "prompt": "Once", "threads": 1, "max-tokens": 1}
    told = engine.run(CAP, {**arguments, "lora": given}).provenance["settings"]["adapters"]
    assert [(one["spec"], one["scale"]) for one in told] == [(str(adapter), 1.0), (str(adapter), -0.5)]
    assert "adapters" not in engine.run(CAP, arguments).provenance["settings"]


def test_an_adapter_that_does_not_fit_is_refused_and_nothing_dies(
    engine: Any, write_gguf: WriteGguf, adapter: Path, tmp_path: Path
) -> None:
    model = write_gguf()

    def written(name: str, data: bytes) -> str:
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    whole = adapter.read_bytes()
    for spec, code in (
        (str(tmp_path / "missing.gguf"), Code.FILE_NOT_FOUND),
        (str(model), Code.BAD_MODEL_FILE),
        (written("cut.gguf", whole[:-100]), Code.MODEL_TRUNCATED),
        (written("page.gguf", b"<html></html>"), Code.BAD_MODEL_FILE),
        (written("other.gguf", adapter_bytes(**{"general.architecture": "qwen2"})), Code.BAD_MODEL_FILE),
        (written("control.gguf", adapter_bytes(**{"adapter.type": "controlvector"})), Code.BAD_MODEL_FILE),
        (written("alpha.gguf", adapter_bytes(**{"adapter.lora.alpha": "8"})), Code.BAD_MODEL_FILE),
        (written("whole.gguf", with_first_type(whole, 26)), Code.BAD_MODEL_FILE),
        (written("wide.gguf", adapter_bytes(width=64)), Code.BAD_MODEL_FILE),
    ):
        error = error_of(engine, model, str(adapter), spec)
        assert (error.code, error.argument) == (code, "lora"), spec
        assert spec in error.message or Path(spec).name in error.message
    assert text_with(engine, model, str(adapter))


def test_what_is_no_adapter_at_all_is_refused_by_its_index(engine: Any, write_gguf: WriteGguf, adapter: Path) -> None:
    model = write_gguf()
    for wrong in (7, {"scale": 1}, {"model": str(adapter), "scale": 1e9}, {"model": str(adapter), "weight": 1}, ""):
        error = error_of(engine, model, str(adapter), wrong)
        assert (error.code, error.argument, error.details["index"]) == (Code.BAD_ARGUMENT, "lora", 1)
