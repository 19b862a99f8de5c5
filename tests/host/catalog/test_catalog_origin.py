"""Hashes of files that are believed while nothing changed; specs at the revision of a first download."""

import hashlib
from pathlib import Path

import pytest

from cartdeck.catalog.entry import Origin
from cartdeck.catalog.file_mark import FileMarks
from cartdeck.catalog.origin import Found, check_same
from cartdeck.server.models.pin import is_fetched, pinned_spec
from cartdeck_protocol.errors import CartdeckError, Code

COMMIT = "4bd0f56aca55286ff11fa1096f1d9f14a20700f7"


def test_a_file_is_read_again_only_where_it_changed(tmp_path: Path) -> None:
    file, marks = tmp_path / "m.gguf", FileMarks(tmp_path / "marks")
    file.write_bytes(b"one")
    assert marks.hash_of(file, "told") == (3, "told")
    assert marks.hash_of(file) == (3, "told")
    file.write_bytes(b"other")
    assert marks.hash_of(file, "told") == (5, hashlib.sha256(b"other").hexdigest())
    for mark in (tmp_path / "marks").iterdir():
        mark.write_text("[broken")
    assert marks.hash_of(file) == (5, hashlib.sha256(b"other").hexdigest())
    file.unlink()
    with pytest.raises(CartdeckError) as caught:
        marks.hash_of(file)
    assert caught.value.code is Code.FILE_NOT_FOUND


@pytest.mark.parametrize(
    ("source", "pinned"),
    [
        ("hf:owner/name:m.gguf", f"hf:owner/name@{COMMIT}:m.gguf"),
        ("hf:owner/name@main:Q4_K_M", f"hf:owner/name@{COMMIT}:Q4_K_M"),
        ("hf:owner/name", f"hf:owner/name@{COMMIT}:a/m.gguf"),
        ("owner/name", f"hf:owner/name@{COMMIT}:a/m.gguf"),
        ("pypi:some==1.0/m.gguf", "pypi:some==1.0/m.gguf"),
        ('{"repo_id": "owner/name"}', f'{{"revision": "{COMMIT}", "repo_id": "owner/name"}}'),
    ],
)
def test_a_spec_is_loaded_at_the_revision_of_its_first_download(source: str, pinned: str) -> None:
    origin = Origin.model_validate({"revision": COMMIT, "files": {"a/m.gguf": {"size_bytes": 1, "sha256": "0" * 64}}})
    assert is_fetched(source)
    assert pinned_spec(source, origin) == pinned


@pytest.mark.parametrize("source", ["./m.gguf", "/m.gguf", "package:some/m.gguf", "act:tokens=1", "~/m.gguf"])
def test_what_lies_here_is_its_owners(source: str) -> None:
    assert not is_fetched(source)


@pytest.mark.parametrize(
    ("keys", "whose"),
    [
        (("models", "m", "origin"), "The model m is"),
        (("models", "m", "projector_origin"), "The projector of the model m is"),
        (("models", "m", "lora", "p", "origin"), "The adapter p of the model m is"),
        (("guards", "g", "origin"), "The guard g is"),
    ],
)
def test_what_is_not_the_same_is_named_with_the_key_that_says_so(keys: tuple[str, ...], whose: str) -> None:
    origin = Origin.model_validate({"files": {"a": {"size_bytes": 1, "sha256": "0" * 64}}})
    check_same(keys, origin, Found("", {"a": (1, "0" * 64), "b": (2, "1" * 64)}))
    with pytest.raises(CartdeckError, match=whose) as caught:
        check_same(keys, origin, Found("", {"a": (1, "2" * 64)}))
    assert caught.value.code is Code.HASH_MISMATCH
    assert f"take {'.'.join(keys)} out" in caught.value.message
