"""What a job writes: an entry, other weights of one, and the history beside the catalog."""

import json
from pathlib import Path
from typing import Any

import pytest

from cartdeck.adding.history import History
from cartdeck.adding.placing import check_name, earlier_of, model_of, move, move_back, place
from cartdeck_protocol.errors import CartdeckError, Code

SHA256 = "ab" * 32
BEFORE = """# ours
[models.other]
source = "./other.gguf"  # by hand
aliases = ["o"]
"""


def weights(number: int) -> dict[str, Any]:
    commit = str(number) * 40
    files = {"m.gguf": {"size_bytes": number, "sha256": SHA256}}
    return {"source": f"hf:owner/m@{commit}:m.gguf", "origin": {"revision": commit, "files": files}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "catalog.toml"
    file.write_text(BEFORE)
    return file


def refused(code: Code, work: Any) -> str:
    with pytest.raises(CartdeckError) as caught:
        work()
    assert caught.value.code is code
    return caught.value.message


def test_an_entry_is_written_behind_the_others_and_dry_not_at_all(path: Path) -> None:
    assert "m" in place(path, "m", weights(1), is_dry=True).entries
    assert path.read_text() == BEFORE
    place(path, "m", weights(1))
    assert path.read_text().startswith(BEFORE)
    assert "`cartdeck update m`" in refused(Code.BAD_ARGUMENT, lambda: check_name(path, "m"))
    entry = model_of(path, "m").entry
    assert entry.origin is not None
    assert (entry.origin.revision, entry.origin.files["m.gguf"].sha256) == ("1" * 40, SHA256)
    assert not History(path).path.exists()  # there is nothing to keep


def test_a_name_or_an_alias_that_is_taken_is_told_with_what_has_it(path: Path) -> None:
    for name in ("other", "o"):
        told = refused(Code.BAD_ARGUMENT, lambda name=name: check_name(path, name))
        assert "of ./other.gguf" in told
        assert "cartdeck update" not in told  # there is no hub to look at
    check_name(path, "m")
    check_name(path.with_name("none.toml"), "m")
    refused(Code.BAD_ARGUMENT, lambda: place(path, "other", weights(1)))
    refused(Code.BAD_ARGUMENT, lambda: place(path, "m", {**weights(1), "capabilities": ["flying"]}))
    assert path.read_text() == BEFORE


def test_other_weights_leave_the_rest_of_an_entry_and_come_back(path: Path) -> None:
    place(path, "m", {**weights(1), "aliases": ["s"], "max_tokens": 9}, follows="dev")
    text = path.read_text().replace("max_tokens = 9", "max_tokens = 7  # by hand")
    path.write_text(text)
    move(path, model_of(path, "s"), weights(2), follows="dev")
    move(path, model_of(path, "m"), weights(3), follows="dev")
    assert "max_tokens = 7  # by hand" in path.read_text()
    assert model_of(path, "m").entry.source == weights(3)["source"]
    assert History(path).of("m").earlier == [weights(1), weights(2)]

    for number in (2, 1):
        named = model_of(path, "m")
        move_back(path, named, earlier_of(path, named))
        entry = model_of(path, "m").entry
        assert entry.source == weights(number)["source"]
        assert entry.origin is not None
        assert entry.origin.revision == str(number) * 40
    assert path.read_text() == text
    assert History(path).of("m").follows == "dev"
    assert "nothing to go back to" in refused(Code.BAD_ARGUMENT, lambda: earlier_of(path, model_of(path, "m")))


def test_an_entry_that_somebody_else_changed_meanwhile_stays(path: Path) -> None:
    place(path, "m", weights(1))
    seen = model_of(path, "m")
    move(path, seen, weights(2), follows=None)
    assert "changed meanwhile" in refused(Code.BAD_ARGUMENT, lambda: move(path, seen, weights(3), follows=None))
    assert model_of(path, "m").entry.source == weights(2)["source"]
    assert History(path).of("m").earlier == [weights(1)]


def test_a_history_without_its_edit_leads_nowhere(path: Path) -> None:
    # A process that ends between the two has written what the entry still is.
    place(path, "m", weights(1))
    History(path).path.write_text(json.dumps({"m": {"follows": None, "earlier": [weights(1)]}}))
    refused(Code.BAD_ARGUMENT, lambda: earlier_of(path, model_of(path, "m")))
    move(path, model_of(path, "m"), weights(2), follows=None)
    assert History(path).of("m").earlier == [weights(1)]


def test_weights_that_nobody_pinned_are_kept_as_they_were_written(path: Path) -> None:
    path.write_text('[models.m]\nsource = "hf:owner/m"\n')
    move(path, model_of(path, "m"), weights(1), follows=None)
    named = model_of(path, "m")
    assert earlier_of(path, named) == {"source": "hf:owner/m"}
    move_back(path, named, earlier_of(path, named))
    assert path.read_text().strip() == '[models.m]\nsource = "hf:owner/m"'


def test_a_model_that_is_added_anew_has_no_history(path: Path) -> None:
    History(path).path.write_text(json.dumps({"m": {"follows": "x", "earlier": [weights(1)]}, "n": {"follows": "y"}}))
    place(path, "m", weights(2))
    assert History(path).of("m").earlier == []
    assert History(path).of("n").follows == "y"


def test_a_history_that_cannot_be_read_is_an_error_that_names_it(path: Path) -> None:
    place(path, "m", weights(1))
    History(path).path.write_text("{")
    assert "catalog.history.json" in refused(Code.BAD_ARGUMENT, lambda: earlier_of(path, model_of(path, "m")))
