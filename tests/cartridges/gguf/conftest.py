"""Owns a writer of small GGUF files, and what the tests of this cartridge do with a model."""

import json
import math
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Told = Callable[[], list[list[dict[str, Any]]]]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """`told()` is each progress that the cartridge told, call by call, once the engines of the test are closed. Of what
    waits for a caller the latest is kept: which of them one sees is chance."""
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv("CARTDECK_TRACE", str(path))

    def read() -> list[list[dict[str, Any]]]:
        calls: dict[int, list[dict[str, Any]]] = {}
        for line in path.read_text("utf-8").splitlines():
            record = json.loads(line)
            is_from_it = record.get("session", "").startswith("gguf") and record.get("direction") == "in"
            if is_from_it and record["kind"] == "LOG" and record["meta"]["level"] == "progress":
                calls.setdefault(record["id"], []).append(record["meta"])
        return list(calls.values())

    return read


STRING, ARRAY, UINT32, INT32, FLOAT32, BOOL = 8, 9, 4, 5, 6, 7
F32 = 0

WriteGguf = Callable[..., Path]


def packed_string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def packed_scalar(value: object) -> bytes:
    """A value with its type in front, as GGUF writes it."""
    match value:
        case bool():
            return struct.pack("<I?", BOOL, value)
        case int():
            return struct.pack("<II", UINT32, value)
        case float():
            return struct.pack("<If", FLOAT32, value)
        case str():
            return struct.pack("<I", STRING) + packed_string(value)
        case _:
            raise TypeError(type(value))


def packed_value(value: object) -> bytes:
    if not isinstance(value, list):
        return packed_scalar(value)
    kind = INT32 if all(type(one) is int for one in value) else struct.unpack("<I", packed_scalar(value[0])[:4])[0]
    items = b"".join(packed_scalar(one)[4:] for one in value)
    return struct.pack("<IIQ", ARRAY, kind, len(value)) + items


def gguf_header(metadata: dict[str, Any], shapes: dict[str, tuple[int, ...]], version: int = 3) -> tuple[bytes, int]:
    """The part of a GGUF file before its tensors, which are of float32 and each aligned to 32 bytes; and what those
    take."""
    table, offset = b"", 0
    for name, shape in shapes.items():
        table += packed_string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        table += struct.pack("<IQ", F32, offset)
        offset += -(-4 * math.prod(shape) // 32) * 32
    pairs = b"".join(packed_string(key) + packed_value(value) for key, value in metadata.items())
    header = b"GGUF" + struct.pack("<IQQ", version, len(shapes), len(metadata)) + pairs + table
    return header + b"\0" * (-len(header) % 32), offset


def gguf_bytes(metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], bytes]], version: int = 3) -> bytes:
    """A GGUF file with float32 `tensors` {name: (shape, data)}."""
    header, _ = gguf_header(metadata, {name: shape for name, (shape, _) in tensors.items()}, version)
    return header + b"".join(values + b"\0" * (-len(values) % 32) for _, values in tensors.values())


def tiny_metadata(**changes: Any) -> dict[str, Any]:
    """A llama of two blocks whose vocabulary is the 256 bytes and three tokens of control."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "tiny",
        "llama.block_count": 2,
        "llama.context_length": 512,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 16,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [2, 3, 3, *([6] * 256)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }
    return {key: value for key, value in {**metadata, **changes}.items() if value is not None}


def tiny_tensors(
    seed: int = 0, fill: float | None = None, *, width: int = 32
) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Random weights for `tiny_metadata`; `fill` puts one value into the last norm, NaN for instance."""
    dice = random.Random(seed)
    heads, inner, cache, vocabulary = 32, 64, 16, 259

    def matrix(*shape: int) -> tuple[tuple[int, ...], bytes]:
        count = shape[0] * shape[1]
        return shape, struct.pack(f"<{count}f", *(dice.gauss(0.0, 0.3) for _ in range(count)))

    def vector(value: float) -> tuple[tuple[int, ...], bytes]:
        return (width,), struct.pack(f"<{width}f", *([value] * width))

    tensors = {
        "token_embd.weight": matrix(width, vocabulary),
        "output_norm.weight": vector(1.0 if fill is None else fill),
        "output.weight": matrix(width, vocabulary),
    }
    for block in range(2):
        shapes = {
            "attn_q": (width, heads),
            "attn_k": (width, cache),
            "attn_v": (width, cache),
            "attn_output": (heads, width),
            "ffn_gate": (width, inner),
            "ffn_up": (width, inner),
            "ffn_down": (inner, width),
        }
        tensors[f"blk.{block}.attn_norm.weight"] = vector(1.0)
        tensors[f"blk.{block}.ffn_norm.weight"] = vector(1.0)
        tensors |= {f"blk.{block}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
    return tensors


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGguf:
    """Writes a small llama under a name in the test's folder: `write_gguf("x.gguf", fill=…, **{"some.key": value})`."""

    def write(name: str = "tiny.gguf", *, version: int = 3, fill: float | None = None, **changes: Any) -> Path:
        path = tmp_path / name
        path.write_bytes(gguf_bytes(tiny_metadata(**changes), tiny_tensors(fill=fill), version))
        return path

    return write


@pytest.fixture(scope="session")
def gguf_file() -> Callable[..., bytes]:
    """A file of any architecture, with the words of the small llama: `gguf_file(architecture, metadata, tensors)`."""

    def make(architecture: str, metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], bytes]]) -> bytes:
        shared = {key: value for key, value in tiny_metadata().items() if not key.startswith("llama.")}
        return gguf_bytes({**shared, "general.architecture": architecture, **metadata}, tensors)

    return make


@pytest.fixture
def hollow_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model of any size whose weights are a hole in the file: `hollow_gguf(architecture, metadata, shapes)`.
    `words` is how many it has."""

    def write(architecture: str, metadata: dict[str, Any], shapes: dict[str, tuple[int, ...]], *, words: int) -> Path:
        shared = {key: value for key, value in tiny_metadata().items() if not key.startswith("llama.")}
        more = words - len(shared["tokenizer.ggml.tokens"])
        for name, one in (("tokens", ""), ("scores", 0.0), ("token_type", 1)):
            added = [f"word{number}" for number in range(more)] if one == "" else [one] * more
            shared[f"tokenizer.ggml.{name}"] = shared[f"tokenizer.ggml.{name}"] + added
        header, size_bytes = gguf_header({**shared, "general.architecture": architecture, **metadata}, shapes)
        path = tmp_path / f"{architecture}.gguf"
        with path.open("wb") as file:
            file.write(header)
            file.truncate(len(header) + size_bytes)
        return path

    return write


@dataclass(slots=True)
class Made:
    """A text that a model made, in the pieces it came in, and the counts."""

    pieces: list[str]
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int

    @property
    def text(self) -> str:
        return "".join(self.pieces)


MakeText = Callable[..., Made]
SETTINGS: dict[str, Any] = {
    "max_tokens": 8,
    "temperature": 0.0,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repeat_penalty": 1.0,
    "seed": 1,
    "stop": (),
}


@pytest.fixture
def open_model() -> Iterator[Callable[..., Any]]:
    """Loads a model in this process: `open_model(path, context_size=…)`; it is closed after the test."""
    from cartdeck_gguf.loading import LoadSettings, check_model, load

    opened: list[Any] = []

    def open_one(path: Path, *, on_progress: Callable[[float], bool] = lambda _: True, **settings: Any) -> Any:
        wanted = LoadSettings(**{"threads": 1, **settings})
        opened.append(load(check_model(path), wanted, listener=lambda level, line: None, on_progress=on_progress))
        return opened[-1]

    yield open_one
    for model in opened:
        model.close()


@pytest.fixture
def make_text() -> MakeText:
    """Has a loaded model make a text, alone and from an empty context: `make_text(model, prompt, max_tokens=…)`."""
    from cartdeck_gguf.batcher import Batcher
    from cartdeck_gguf.generation import Generation, Piece
    from cartdeck_modelkit.sampling import SamplingSettings

    def make(model: Any, prompt: str, *, constraint: Any = None, **changes: Any) -> Made:
        generation = Generation(prompt, SamplingSettings(**{**SETTINGS, **changes}), constraint=constraint)
        model.context.clear()
        batcher, pieces = Batcher(model), []
        batcher.submit(generation)
        while batcher.step() == 0:
            pieces += [item.text for item in generation.delivery.take() if isinstance(item, Piece) and item.text]
        generation.delivery.raise_error()
        counts = generation.prompt_tokens, generation.completion_tokens
        return Made(pieces, generation.finish_reason, *counts)

    return make


@pytest.fixture
def run_python() -> Callable[[str], Any]:
    """Runs a program in a new Python and gives back what it printed as JSON; standard error is part of a failure."""

    def run(program: str, *arguments: str) -> Any:
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run
