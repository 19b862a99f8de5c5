"""The look at memory before a fetch, over HTTP: ranges of a header, and no more."""

import io
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from cartdeck_modelkit.gguf.header import parse_header
from cartdeck_models.fit import Room
from cartdeck_models.growth import growth_of_header
from cartdeck_models.hub.before_fetch import LEAST_BYTES, BeforeFetch
from cartdeck_models.hub.cache import HubCache
from cartdeck_models.hub.client import HubClient
from cartdeck_models.hub.repository import Repository
from cartdeck_models.hub.selection import choose_files
from cartdeck_models.settings import HubSettings
from cartdeck_models.spec import HubSpec
from cartdeck_models.task import Task

MIB = 1024 * 1024
PLENTY, ENOUGH, LITTLE = Room(10**12, 10**12), Room(1200 * MIB, 10**12), Room(100 * MIB, 10**12)


def gguf(size_bytes: int, context_length: int = 8192) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    numbers = {
        "block_count": 32,
        "context_length": context_length,
        "embedding_length": 4096,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
    }
    pairs = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    pairs += b"".join(text(f"llama.{name}") + struct.pack("<II", 4, value) for name, value in numbers.items())
    return (b"GGUF" + struct.pack("<IQQ", 3, 0, len(numbers) + 1) + pairs).ljust(size_bytes, b"\0")


class Looked:
    """A repository of `hub` with what the look needs of it."""

    def __init__(self, hub: Any, folder: Path) -> None:
        self.spec = HubSpec("owner/name")
        task = Task(lambda _: None, lambda: False)
        self.client = HubClient(HubSettings(endpoint=hub.url))
        self.repository = Repository(self.client, self.spec, task, stall_limit_s=5.0)
        self.cache = HubCache(folder)
        self.files = self.repository.list_files()

    def look(self, room: Room) -> BeforeFetch:
        return BeforeFetch(self.cache, self.repository, self.files, room=room)

    def note(self, room: Room, file: str) -> str | None:
        return self.look(room).memory_note(choose_files(self.files, HubSpec("owner/name", file=file)))


@pytest.fixture
def large(hub: Any) -> Any:
    hub.add({"m.Q4_K_M.gguf": gguf(LEAST_BYTES + MIB), "m.Q2_K.gguf": gguf(LEAST_BYTES)})
    return hub


def test_a_model_that_does_not_fit_in_memory_is_told_with_the_reason(large: Any, tmp_path: Path) -> None:
    looked = Looked(large, tmp_path)
    note = looked.note(LITTLE, "Q4_K_M")
    assert note is not None
    assert note.startswith("m.Q4_K_M.gguf: It does not fit: it needs about ")
    assert looked.note(PLENTY, "Q4_K_M") is None
    assert sum(large.sent.values()) == MIB, "one range of one header, and none where memory is plentiful"
    looked.client.close()


def test_a_smaller_quantization_is_advised_where_the_default_does_not_fit(large: Any, tmp_path: Path) -> None:
    looked = Looked(large, tmp_path)
    growth = growth_of_header(parse_header(io.BytesIO(gguf(MIB)), Path("m.gguf"), size_bytes=MIB))
    between = growth.estimate(4096, LEAST_BYTES + MIB // 2).total_bytes  # tokens that a model must have room for
    assert looked.look(PLENTY).quantization(looked.spec) == "Q4_K_M"
    assert looked.look(Room(between, 10**12)).quantization(looked.spec) == "Q2_K"
    assert looked.look(LITTLE).quantization(looked.spec) is None
    looked.client.close()


def test_a_hub_without_ranges_is_no_obstacle(large: Any, tmp_path: Path) -> None:
    for path in ("m.Q4_K_M.gguf", "m.Q2_K.gguf"):
        large.file(path).ignores_range = True
    looked = Looked(large, tmp_path)
    assert looked.note(ENOUGH, "Q4_K_M") is None
    assert looked.look(PLENTY).quantization(looked.spec) == "Q4_K_M"
    looked.client.close()


def test_small_models_are_not_looked_at(hub: Any, tmp_path: Path) -> None:
    hub.add({"m.Q4_K_M.gguf": os.urandom(MIB)})
    looked = Looked(hub, tmp_path)
    assert looked.note(Room(0, 0), "Q4_K_M") is None
    assert hub.sent.total() == 0
    looked.client.close()
