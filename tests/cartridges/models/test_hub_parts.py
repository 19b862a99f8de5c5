"""The pieces under a transfer: spans of bytes, parts on the disk, hashes of what grows, listings, what a spec gave."""

import hashlib
import json
import os
import random
import socket
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cartdeck_models.hub.digest import digest_of
from cartdeck_models.hub.listing import RepositoryFile, files_of_page, listing_from_json, listing_to_json
from cartdeck_models.hub.part import Part, kept_bytes, opened_part, sweep_parts
from cartdeck_models.hub.remembered import Memory, Remembered, RememberedFile
from cartdeck_models.hub.spans import Spans
from cartdeck_models.hub.tally import Tally
from cartdeck_models.spec import parse_spec
from cartdeck_models.task import Advance, Task
from cartdeck_protocol.errors import CartdeckError, Code

BLOB = "a" * 64


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=30), st.integers(1, 9))
def test_spans_are_the_positions_that_were_put_in(pairs: list[tuple[int, int]], longest: int) -> None:
    spans, positions = Spans(), set[int]()
    for start, end in pairs:
        spans.add(start, end)
        positions |= set(range(start, end))
    held = list(spans)
    gaps = spans.gaps(50, longest=longest)

    assert {position for start, end in held for position in range(start, end)} == positions
    assert all(first[1] < second[0] for first, second in pairwise(held))
    assert spans.size == len(positions)
    assert spans.prefix == next(number for number in range(100) if number not in positions)
    assert [position for start, end in gaps for position in range(start, end)] == sorted(set(range(50)) - positions)
    assert all(0 < end - start <= longest for start, end in gaps)


def write_part(parent: Path, *, at: int = 0, data: bytes = b"12345", size: int = 10) -> None:
    with opened_part(parent, BLOB, size) as part:
        part.write(at, data)


def test_a_part_that_broke_off_is_taken_over_with_what_it_has(tmp_path: Path) -> None:
    write_part(tmp_path / "p")
    assert kept_bytes(tmp_path / "p", BLOB, 10) == 5
    with opened_part(tmp_path / "p", BLOB, 10) as part:
        assert (part.resumed_bytes, part.done, part.prefix, part.gaps(3)) == (5, 5, 5, [(5, 8), (8, 10)])
        part.write(8, b"90")
        part.write(5, b"678")
        assert part.path.read_bytes() == b"1234567890"
        part.path.rename(tmp_path / "content")

    assert not (tmp_path / "p").exists()


def test_a_part_without_a_byte_is_not_kept(tmp_path: Path) -> None:
    with opened_part(tmp_path / "p", BLOB, 10):
        pass

    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("other", [("b" * 64, 10), (BLOB, 11), (BLOB, None)])
def test_a_part_of_something_else_is_not_taken(tmp_path: Path, other: tuple[str, int | None]) -> None:
    write_part(tmp_path / "p")
    with opened_part(tmp_path / "p", *other) as part:
        assert part.done == 0


@pytest.mark.parametrize("state", [b"", b"{", b"[]", b'{"blob": 1}', b"null", b"\xff"])
def test_a_part_whose_state_is_damaged_begins_anew(tmp_path: Path, state: bytes) -> None:
    write_part(tmp_path / "p")
    kept = next((tmp_path / "p").iterdir())
    (kept / "state.json").write_bytes(state)

    with opened_part(tmp_path / "p", BLOB, 10) as part:
        assert part.done == 0


def test_a_part_is_believed_only_as_far_as_its_content_goes(tmp_path: Path) -> None:
    write_part(tmp_path / "p")
    kept = next((tmp_path / "p").iterdir())
    os.truncate(kept / "content.part", 3)

    assert kept_bytes(tmp_path / "p", BLOB, 10) == 3


def test_the_state_is_whole_after_it_grew_shorter(tmp_path: Path) -> None:
    with opened_part(tmp_path / "p", BLOB, 1000) as part:
        for at in range(0, 1000, 20):
            part.write(at, b"0123456789")
        part.write(0, bytes(1000))
        part.forget()
        part.write(0, b"x")

    assert kept_bytes(tmp_path / "p", BLOB, 1000) == 1


def test_of_several_parts_the_one_with_most_is_taken_and_the_others_go(tmp_path: Path) -> None:
    write_part(tmp_path / "p", data=b"123")
    kept = next((tmp_path / "p").iterdir())
    kept.rename(kept.with_name("kept-other"))
    (tmp_path / "q").mkdir()
    write_part(tmp_path / "q", data=b"12345678")
    next((tmp_path / "q").iterdir()).rename(tmp_path / "p" / "kept-most")

    with opened_part(tmp_path / "p", BLOB, 10) as part:
        assert part.done == 8
        assert [path.name for path in (tmp_path / "p").iterdir()] == [part.folder.name]


def test_a_running_transfer_s_part_is_left_alone(tmp_path: Path) -> None:
    with opened_part(tmp_path / "p", BLOB, 10) as first:
        first.write(0, b"123")
        with opened_part(tmp_path / "p", BLOB, 10) as second:
            assert second.done == 0
            assert first.folder != second.folder
        assert first.done == 3


def test_the_part_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    write_part(tmp_path / "p")
    kept = next((tmp_path / "p").iterdir())
    kept.rename(kept.with_name(f"{socket.gethostname()}-{2**22 - 3}-{'0' * 12}"))

    with opened_part(tmp_path / "p", BLOB, 10) as part:
        assert part.done == 5


def test_a_part_that_is_closed_takes_no_more(tmp_path: Path) -> None:
    part = Part(tmp_path, BLOB, 10)
    part.close()

    with pytest.raises(OSError, match="closed"):
        part.write(0, b"1")


def test_parts_that_nobody_took_over_for_weeks_are_swept(tmp_path: Path) -> None:
    write_part(tmp_path / "old")
    write_part(tmp_path / "new")
    kept = next((tmp_path / "old").iterdir())
    for path in (kept / "content.part", kept):
        os.utime(path, (1, 1))

    assert sweep_parts(tmp_path) == [kept]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_the_digest_of_a_file_has_its_sha256_and_its_git_name(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3_000_000)
    (tmp_path / "f").write_bytes(data)
    seen: list[int] = []
    digest = digest_of(tmp_path / "f", on_position=seen.append, is_stopped=lambda: False)

    assert digest.sha256 == hashlib.sha256(data).hexdigest()
    assert digest.git_sha1 == hashlib.sha1(b"blob 3000000\0" + data).hexdigest()
    assert seen[-1] == digest.size_bytes == len(data)


def test_an_empty_file_has_a_digest(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    digest = digest_of(tmp_path / "f", on_position=lambda _: None, is_stopped=lambda: False)

    assert digest.fits(sha256=None, git_sha1="e69de29bb2d1d6434b8b29ae775ad8c2e48c5391")


def test_an_empty_file_of_a_hub_arrives(desk, hub) -> None:
    hub.add({"m.gguf": b""})

    assert desk.obtain("hf:owner/name:m.gguf").path.read_bytes() == b""


def test_a_listing_comes_back_from_the_file_that_keeps_it() -> None:
    files = [
        RepositoryFile("a.gguf", 5, "1" * 64, "2" * 40, "3" * 64),
        RepositoryFile("sub/b.json", 0, None, "4" * 40),
    ]

    assert listing_from_json(listing_to_json(files).encode()) == files


@pytest.mark.parametrize(
    "item",
    [
        7,
        {"type": "file"},
        {"type": "file", "path": 1},
        {"type": "file", "path": "a", "size": 1, "oid": "../../x"},
        {"type": "file", "path": "a", "size": 1, "oid": "1" * 40, "lfs": {"oid": "/etc/passwd", "size": 1}},
        {"type": "file", "path": "a", "size": 1, "oid": "1" * 40, "xetHash": "x"},
    ],
)
def test_a_listing_that_is_none_is_refused(item: object) -> None:
    with pytest.raises(ValueError, match="listing"):
        files_of_page([item])


def test_an_unsafe_folder_is_refused_as_a_file_is() -> None:
    with pytest.raises(CartdeckError) as caught:
        files_of_page([{"type": "directory", "path": "../x"}])

    assert caught.value.code is Code.UNSAFE_FILENAME


def test_what_a_spec_gave_is_remembered_and_read_strictly(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    given_ = Remembered("hf:o/n@main", "1" * 40, (RememberedFile("m.gguf", 5, "2" * 64),), "m.gguf")
    memory.keep("k", given_)
    assert memory.recall("k") == given_

    plain = json.loads((tmp_path / "k.json").read_text())
    for change in (
        {"commit": "../.."},
        {"main": "/etc/passwd"},
        {"files": []},
        {"format": 0},
        {"files": [{"path": "x"}]},
    ):
        (tmp_path / "k.json").write_text(json.dumps(plain | change))
        assert memory.recall("k") is None
    assert memory.recall("none") is None


def test_specs_that_ask_the_same_have_one_key() -> None:
    def key(text: str) -> str:
        return parse_spec(text).key  # type: ignore[union-attr]

    assert key("hf:owner/name") == key("hf:owner/name@main") == key("owner/name")
    assert key("hf:owner/name:x") == key('{"repo_id": "owner/name", "filename": "x"}')
    different = [
        "hf:owner/name", "hf:owner/name:x", "hf:owner/name@v1", "hf:owner/name@v1:x", "hf:owner/other",
        '{"repo_id": "owner/name", "include": "x"}', '{"repo_id": "owner/name", "exclude": "x"}',
        '{"repo_id": "owner/name", "include": ["x", "y"]}', '{"repo_id": "owner/name", "include": "x,y"}',
    ]  # fmt: skip
    assert len({key(text) for text in different}) == len(different)


def test_the_sum_of_several_files_never_falls_and_names_the_one_that_is_on() -> None:
    told: list[Advance] = []
    files = [RepositoryFile("a", 100), RepositoryFile("b", 300)]
    tally = Tally(Task(told.append, lambda: False), "o/n", files)
    first, second = (tally.task_of(index, file) for index, file in enumerate(files))
    first.report(Advance(None, "", "download", 50, 100))
    second.report(Advance(None, "", "stalled", 30, 300))
    first.report(Advance(None, "", "download", 20, 100))
    tally.finish(0, 100)
    tally.say()

    assert [advance.work for advance in told] == [50, 80, 80, 130]
    assert "file 1 of 2, a" in told[0].message
    assert {advance.total for advance in told} == {400}


def test_a_size_that_is_not_known_leaves_the_total_open() -> None:
    files = [RepositoryFile("a", 100), RepositoryFile("b", 0, is_size_known=False)]

    assert Tally(Task(lambda _: None, lambda: False), "o/n", files).total is None
