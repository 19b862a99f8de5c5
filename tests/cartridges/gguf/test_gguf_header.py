"""The header of a model file is read without trusting it; what is no model is named for what it is."""

import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cartdeck_gguf.shards import read_model
from cartdeck_modelkit.gguf.header import read_header
from cartdeck_protocol.errors import CartdeckError, Code

WriteGguf = Callable[..., Path]


def error_of(path: Path) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        read_model(path)
    return caught.value


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:b179c952\nsize 98362432\n"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (LFS_POINTER, "Git LFS pointer"),
        (b"<!DOCTYPE html><html><body>Not found</body></html>", "HTML page"),
        (b"<html></html>", "HTML page"),
        (b"ggjt" + bytes(60), "old GGJT format"),
        (b"tjgg" + bytes(60), "old GGJT format"),
        (b"lmgg" + bytes(60), "old GGML format"),
        (b"", "empty file"),
        (b"PK\x03\x04" + bytes(60), "PyTorch checkpoint"),
        (struct.pack("<Q", 100) + b'{"a":{}}', "safetensors"),
        (b'{"error": "gated"}', "JSON text"),
        (b"access denied\n", "a text"),
        (b"\x00\x01\x02\x03" * 8, "unknown kind, beginning with 00 01 02 03"),
        (b"GGUF\x00\x00\x00\x03" + bytes(40), "big-endian"),
    ],
)
def test_what_is_no_gguf_file_is_named_at_once(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    started = time.process_time()
    error = error_of(path)
    assert time.process_time() - started < 2.0  # the collector may come in between, in a process of many tests
    assert error.code is Code.BAD_MODEL_FILE
    assert found in error.details["found"]
    assert str(path) in str(error)


def test_a_directory_a_pipe_and_nothing_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    os.mkfifo(tmp_path / "pipe.gguf")
    assert error_of(tmp_path / "folder.gguf").details["found"] == "a folder without a GGUF file"
    assert "pipe" in error_of(tmp_path / "pipe.gguf").details["found"]
    assert error_of(tmp_path / "missing.gguf").code is Code.FILE_NOT_FOUND
    assert error_of(tmp_path / "folder.gguf" / "a" / "b").code is Code.FILE_NOT_FOUND
    assert error_of(tmp_path / ("x" * 5000)).code is Code.FILE_NOT_FOUND


def test_the_header_of_a_small_model_says_what_was_written(write_gguf: WriteGguf) -> None:
    header = read_header(write_gguf())
    assert (header.architecture, header.version, len(header.tensors)) == ("llama", 3, 21)
    assert header.integer("llama.context_length") == 512
    assert header.metadata["tokenizer.ggml.add_bos_token"] is True
    assert header.needed_bytes == header.size_bytes
    assert header.strings_at("tokenizer.ggml.tokens", [1, 2, 258, 259, -1]) == {1: "<s>", 2: "</s>", 258: "<0xFF>"}


@pytest.mark.parametrize("cut", [4, 24, 0.5, 0.99, -1])
def test_a_truncated_file_says_how_long_it_is_and_should_be(write_gguf: WriteGguf, cut: float) -> None:
    path = write_gguf()
    whole = path.read_bytes()
    size = int(len(whole) * cut) if 0 < cut < 1 else int(cut) % len(whole)
    path.write_bytes(whole[:size])
    error = error_of(path)
    assert error.code is Code.MODEL_TRUNCATED
    assert error.details["size"] == size
    assert size < error.details["needed"] <= len(whole)


@pytest.mark.parametrize("version", [0, 1, 4, 99])
def test_a_version_that_is_not_read_is_named(write_gguf: WriteGguf, version: int) -> None:
    if version == 0:
        assert error_of(write_gguf(version=version)).code is Code.BAD_MODEL_FILE
        return
    error = error_of(write_gguf(version=version))
    assert error.code is Code.UNSUPPORTED_ARCHITECTURE
    assert error.details["version"] == version


def header_of(tensor_count: int, pair_count: int, body: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensor_count, pair_count) + body


KEY = struct.pack("<Q", 1) + b"k"
HOSTILE = {
    "tensors without end": header_of(1 << 63, 0),
    "pairs without end": header_of(0, (1 << 64) - 1),
    "a key of a huge length": header_of(0, 1, struct.pack("<Q", 1 << 40)),
    "a key without a name": header_of(0, 1, struct.pack("<Q", 0)),
    "a string of a huge length": header_of(0, 1, KEY + struct.pack("<IQ", 8, 1 << 62)),
    "an array of a huge count": header_of(0, 1, KEY + struct.pack("<IIQ", 9, 10, 1 << 61)),
    "an array of strings without end": header_of(0, 1, KEY + struct.pack("<IIQ", 9, 8, 1 << 61)),
    "a string in an array of a huge length": header_of(0, 1, KEY + struct.pack("<IIQQ", 9, 8, 2, 1 << 62)),
    "an array in an array": header_of(0, 1, KEY + struct.pack("<IIQ", 9, 9, 1)),
    "an unknown type": header_of(0, 1, KEY + struct.pack("<I", 77)),
    "the same key twice": header_of(0, 2, (KEY + struct.pack("<II", 4, 1)) * 2),
    "a tensor of many dimensions": header_of(1, 0, KEY + struct.pack("<I", 1 << 31)),
    "a tensor of too many elements": header_of(1, 0, KEY + struct.pack("<IQQIQ", 2, 1 << 40, 1 << 40, 0, 0)),
    "an odd alignment": header_of(0, 1, struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, 48)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused_without_time_or_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(HOSTILE[name] + bytes(4096))
    tracemalloc.start()
    started = time.process_time()
    error = error_of(path)
    elapsed, peak = time.process_time() - started, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.code is Code.BAD_MODEL_FILE
    assert error.details["found"] == "a damaged GGUF header"
    assert elapsed < 5.0  # of computing, each allocation traced
    assert peak < 8 << 20


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=400), cut=st.integers(0, 400))
def test_any_bytes_after_the_magic_give_a_header_or_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.gguf"
    start = header_of(1, 2, KEY + struct.pack("<IIQ", 9, 8, 3))
    path.write_bytes(start[: max(4, cut)] + data)
    code = None
    try:
        read_model(path)
    except CartdeckError as error:
        code = error.code
    assert code in (None, Code.BAD_MODEL_FILE, Code.MODEL_TRUNCATED, Code.UNSUPPORTED_ARCHITECTURE)


def test_a_split_model_is_found_by_any_of_its_parts(write_gguf: WriteGguf) -> None:
    parts = {"split.count": 3}
    paths = [write_gguf(f"m-0000{n}-of-00003.gguf", **parts, **{"split.no": n - 1}) for n in (1, 2, 3)]
    assert [header.path for header in read_model(paths[1])] == paths


def test_a_folder_with_the_parts_of_one_split_model_stands_for_it(write_gguf: WriteGguf) -> None:
    parts = {"split.count": 2}
    paths = [write_gguf(f"m-0000{n}-of-00002.gguf", **parts, **{"split.no": n - 1}) for n in (1, 2)]
    assert [header.path for header in read_model(paths[0].parent)] == paths
    other = write_gguf("other.gguf")
    error = error_of(other.parent)
    assert error.code is Code.BAD_MODEL_FILE
    assert error.details["found"] == "a folder with 2 GGUF models: m-00001-of-00002.gguf, other.gguf"


def test_a_missing_part_of_a_split_model_is_named(write_gguf: WriteGguf) -> None:
    first = write_gguf("m-00001-of-00003.gguf", **{"split.count": 3})
    write_gguf("m-00003-of-00003.gguf", **{"split.count": 3})
    error = error_of(first)
    assert error.code is Code.MISSING_SHARD
    assert error.details["missing"] == ["m-00002-of-00003.gguf"]
    assert error_of(write_gguf("renamed.gguf", **{"split.count": 3})).code is Code.BAD_MODEL_FILE
