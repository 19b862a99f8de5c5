"""An edit of a catalog keeps what a person wrote, and is whole or not there."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cartdeck import CartdeckError, Code
from cartdeck.catalog.catalog_file import load_catalog
from cartdeck.catalog.editing import add_model, pin_origin, remove_model

TEXT = """# Models of the house.

[models.small]  # the quick one
source = "x/y"   # from there
# capabilities = ["chat"]
max_tokens = 64

[models.large]
source = "x/z"
fallback = ["small"]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "catalog.toml"
    file.write_text(TEXT)
    return file


def test_a_model_comes_behind_the_others_and_comments_stay(path: Path) -> None:
    table = {"source": "x/q", "aliases": ["q"], "arguments": {"top-k": 5}, "profiles": [{"name": "p", "threads": 2}]}
    catalog = add_model(path, "third", table)
    after = path.read_text()
    assert after.startswith(TEXT)
    assert catalog == load_catalog(path)
    assert catalog.find("q").entry.profiles[0].threads == 2
    remove_model(path, "third")
    assert path.read_text().rstrip() == TEXT.rstrip()


def test_a_file_that_is_not_there_is_made(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "catalog.toml"
    add_model(path, "a", {"source": "x/y"})
    assert path.read_text() == '[models.a]\nsource = "x/y"\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("small", {"source": "x/q"}, "--replace"),
        ("bad name", {"source": "x/q"}, "a name has letters"),
        ("new", {"source": ""}, "expected a model's spec"),
        ("new", {"source": "x/q", "aliases": ["large"]}, "is taken by"),
    ],
)
def test_what_would_not_be_sound_is_not_written(path: Path, name: str, table: dict[str, object], message: str) -> None:
    with pytest.raises(CartdeckError, match=message) as caught:
        add_model(path, name, table)
    assert caught.value.code is Code.BAD_ARGUMENT
    assert path.read_text() == TEXT
    assert {one.name for one in path.parent.iterdir()} <= {path.name, f".{path.name}.lock"}


def test_all_that_would_be_wrong_is_told_since_no_file_has_it(path: Path) -> None:
    table = {"source": "x/y", "fallback": ["nobody"], "arguments": {"temperatur": 1}}
    with pytest.raises(CartdeckError) as caught:
        add_model(path, "new", table)
    assert "models.new.fallback: there is no model nobody" in caught.value.message
    assert "models.new.arguments.temperatur" in caught.value.message
    assert "catalog check" not in caught.value.message


def test_a_model_is_replaced_when_that_is_asked_for(path: Path) -> None:
    assert add_model(path, "small", {"source": "x/new"}, replace=True).entries["small"].source == "x/new"
    assert "# Models of the house." in path.read_text()


def test_one_that_others_fall_back_to_stays(path: Path) -> None:
    with pytest.raises(CartdeckError, match=r"models\.large\.fallback: there is no model small"):
        remove_model(path, "small")
    assert path.read_text() == TEXT
    with pytest.raises(CartdeckError) as caught:
        remove_model(path, "nothing")
    assert caught.value.code is Code.MODEL_NOT_FOUND
    add_model(path, "third", {"source": "x/q", "aliases": ["t"]})
    with pytest.raises(CartdeckError, match="t is an alias or an adapter of third"):
        remove_model(path, "t")


def test_an_origin_is_written_once(path: Path) -> None:
    origin = {"revision": "abc", "files": {"m.gguf": {"size_bytes": 5, "sha256": "0" * 64}}}
    keys = ("models", "small", "origin")
    assert pin_origin(path, keys, origin, source="hf:another/one").entries["small"].origin is None
    pin_origin(path, keys, origin)
    catalog = pin_origin(path, keys, origin | {"revision": "def"})
    pinned = catalog.entries["small"].origin
    assert pinned is not None
    assert pinned.revision == "abc"
    assert pinned.files["m.gguf"].size_bytes == 5
    assert "# the quick one" in path.read_text()


def test_a_projector_an_adapter_and_a_guard_have_origins_of_their_own_also_in_tables_of_one_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(
        '[models.a]\nsource = "x/m"\nprojector = "x/eyes"\nlora = { pirate = { source = "x/p" } } # arr\n'
        '[guards]\nwatch = { source = "x/w", format = "json", prompt = "{dialogue}" }\n'
    )
    origin = {"revision": "abc", "files": {"m.gguf": {"size_bytes": 5, "sha256": "0" * 64}}}
    pin_origin(path, ("models", "a", "projector_origin"), origin, source="x/eyes")
    pin_origin(path, ("models", "a", "lora", "pirate", "origin"), origin, source="x/p")
    pin_origin(path, ("guards", "watch", "origin"), origin, source="x/other")
    catalog = pin_origin(path, ("guards", "watch", "origin"), origin, source="x/w")
    entry = catalog.entries["a"]
    found = [entry.projector_origin, entry.lora["pirate"].origin, catalog.guards["watch"].origin]
    assert [None if one is None else one.revision for one in found] == ["abc"] * 3
    assert entry.origin is None
    assert "# arr" in path.read_text()
    for keys in (("models", "gone", "origin"), ("models", "a", "lora", "gone", "origin")):  # taken out meanwhile
        assert pin_origin(path, keys, origin) == catalog


def test_a_catalog_that_is_broken_is_not_edited(path: Path) -> None:
    path.write_text(TEXT + "[models.")
    with pytest.raises(CartdeckError, match="is no TOML"):
        add_model(path, "a", {"source": "x/y"})
    assert path.read_text() == TEXT + "[models."


def test_rights_and_links_of_the_file_stay(path: Path) -> None:
    path.chmod(0o640)
    link = path.with_name("link.toml")
    link.symlink_to(path)
    add_model(link, "a", {"source": "x/y"})
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert "[models.a]" in path.read_text()


def test_edits_of_several_processes_at_once_are_all_there(path: Path) -> None:
    program = "import sys; from pathlib import Path; from cartdeck.catalog.editing import add_model\n"
    program += "for n in range(5): add_model(Path(sys.argv[1]), f'{sys.argv[2]}{n}', {'source': 'x/y'})"
    runs = [subprocess.Popen([sys.executable, "-c", program, str(path), name]) for name in "abc"]
    assert [run.wait(60) for run in runs] == [0, 0, 0]
    assert set(load_catalog(path).entries) == {"small", "large"} | {f"{name}{n}" for name in "abc" for n in range(5)}
