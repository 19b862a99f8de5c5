"""`cartdeck catalog` from the outside: what it prints, and how it ends."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cartdeck.catalog.catalog import parse_catalog

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
README = Path(__file__).parents[2] / "host/cartdeck/catalog/README.md"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "models.toml"


def catalog(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [CARTDECK, "catalog", arguments[0], "--catalog", str(path), *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_model_is_added_shown_checked_and_removed(path: Path) -> None:
    added = catalog(path, "add", "small", "hf:o/n:x.gguf", "--for", "chat", "--set", "temperature=0.2", "--alias", "s")
    assert (added.returncode, added.stdout) == (0, f"{path}: small is in it\n"), added.stderr
    shown = json.loads(catalog(path, "show", "s", "--json").stdout)
    assert (shown["name"], shown["source"], shown["capabilities"]) == ("small", "hf:o/n:x.gguf", ["chat"])
    assert shown["arguments"] == {"temperature": 0.2}
    assert "small\tchat" in catalog(path, "show").stdout
    assert json.loads(catalog(path, "check", "--json").stdout)["is_sound"] is True
    assert catalog(path, "remove", "small").returncode == 0
    assert json.loads(catalog(path, "show", "--json").stdout) == {"models": [], "guards": []}


def test_classes_windows_and_guards_are_added_and_shown(path: Path) -> None:
    path.write_text('[guards.g]\nsource = "x/g"\nformat = "llamaguard3"\n')
    assert catalog(path, "add", "small", "x/y", "--class", "critical", "--guard", "g").returncode == 0
    with path.open("a") as file:
        file.write('[[models.small.scaling.windows]]\nfrom = "00:00"\nto = "24:00"\n')
    shown = json.loads(catalog(path, "show", "small", "--time-zone", "Europe/Berlin", "--json").stdout)
    assert (shown["class"], shown["guards"]) == ("critical", ["g"])
    assert shown["window"] == "always open"
    whole = catalog(path, "show")
    assert "critical\talways open" in whole.stdout
    assert "g\tllamaguard3\tbefore after\trefuse\tx/g" in whole.stdout
    assert json.loads(catalog(path, "show", "g", "--json").stdout)["when_down"] == "refuse"
    refused = catalog(path, "add", "large", "x/z", "--class", "high")
    assert refused.returncode == 2
    assert "models.large.class" in refused.stderr
    assert "'Mars' is no time zone" in catalog(path, "show", "--time-zone", "Mars").stderr


def test_check_says_all_that_is_wrong_and_ends_so(path: Path) -> None:
    path.write_text('[models.a]\nsource = ""\n[models.b]\nsource = "https://huggingface.co/o/n/blob/main/m.gguf"\n')
    done = catalog(path, "check")
    assert done.returncode == 2
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["models.a.source", "models.b.source"]
    assert catalog(path, "check", str(path)).stdout == done.stdout, "its place may be named so, too"
    assert "two catalogs" in catalog(path, "check", "other.toml").stderr
    assert "write hf:o/n:m.gguf" in done.stdout
    assert len(json.loads(catalog(path, "check", "--json").stdout)["problems"]) == 2


def test_a_model_that_is_not_there_ends_with_those_that_are(path: Path) -> None:
    catalog(path, "add", "small", "x/y")
    for arguments in (["show", "smal"], ["remove", "smal"]):
        done = catalog(path, *arguments)
        assert done.returncode == 2
        assert "Near it: small" in " ".join(done.stderr.split())


def test_a_catalog_that_is_not_there_is_an_error_where_it_was_named(path: Path) -> None:
    done = catalog(path, "show")
    assert done.returncode == 2
    assert "FILE_NOT_FOUND" in done.stderr


def test_the_catalog_of_the_readme_is_sound() -> None:
    example = re.search(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)
    assert example is not None
    assert [one.name for one in parse_catalog(example[1], origin="README").models()] == [
        "small", "large", "pirate", "elsewhere",
    ]  # fmt: skip
