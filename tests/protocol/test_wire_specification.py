"""protocol/README.md is the specification: what it says in tables and examples is what the code does."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cartdeck_protocol import wire
from cartdeck_protocol.errors import Code
from cartdeck_protocol.wire import limits
from cartdeck_protocol.wire.kinds import KEYS, META, TYPES, UINT

ROOT = Path(__file__).parents[2]
README = (ROOT / "protocol" / "README.md").read_text("utf-8")
GOLDEN = json.loads((ROOT / "tests" / "data" / "wire_golden.json").read_text("utf-8"))["frames"]
WORDS = {int: "uint", str: "text", bytes: "bin", bool: "bool", dict: "map", list: "array", float: "number"}
Kind = wire.Kind


def table(first_column: str, second_column: str = "") -> list[list[str]]:
    """The rows of the table that begins with this column (and this second one)."""
    head = re.search(rf"^\| {first_column} \| {second_column}.*\n\|[-:| ]+\|\n", README, re.MULTILINE)
    assert head is not None, first_column
    rows = README[head.end() :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows]


def names(cell: str) -> list[str]:
    return [name.strip() for name in cell.split(",") if name.strip()]


def test_the_keys_are_those_of_the_code() -> None:
    rows = {int(number): (name, kind) for number, name, kind, _ in table("key")}
    assert rows == {int(key): (key.name.lower(), WORDS[TYPES[key]]) for key in wire.Key}


def test_the_kinds_are_those_of_the_code() -> None:
    rows = {int(row[0]): (row[1], names(row[3]), names(row[4])) for row in table("kind", "name")}
    expected = {
        int(kind): (kind.name, [key.name.lower() for key in required[2:]], [key.name.lower() for key in allowed])
        for kind, (required, allowed) in ((kind, KEYS[kind]) for kind in Kind)
    }
    assert rows == expected


def test_the_metas_are_those_of_the_code() -> None:
    rows = [tuple(row[:4]) for row in table("kind", "field")]
    expected = [
        (Kind(kind).name, name, "uint" if types is UINT else WORDS[types[-1]], "yes" if is_required else "no")
        for kind, rules in META.items()
        for name, (types, is_required) in rules.items()
    ]
    assert rows == expected


def test_the_limits_are_those_of_the_code() -> None:
    rows = {name: (int(default), int(least), int(most)) for name, default, least, most, _ in table("limit")}
    defaults = wire.Limits()
    assert list(rows) == [field.name for field in fields(defaults)]
    for name, (default, least, most) in rows.items():
        assert getattr(defaults, name) == default
        for value, is_allowed in ((least, True), (most, True), (least - 1, False), (most + 1, False)):
            try:
                wire.Limits(**{name: value})
                found = True
            except ValueError:
                found = False
            assert found is is_allowed, (name, value)
    sizes = [row[1] for row in table("kinds")]
    assert sizes == ["the agreed `max_chunk` + 1024", str(limits.MAX_HELLO), str(limits.MAX_CONTROL)]
    assert limits.CHUNK_HEADROOM == 1024
    assert f"at most {limits.MAX_STREAM_TEXT} bytes together" in README
    assert f"at most {limits.MAX_DEPTH} levels" in README
    assert wire.MAX_CONTROL_BACKLOG == 4 * limits.MIB


def test_the_codes_are_those_of_the_code() -> None:
    assert table("code") == [[code.name, code.error_class.value, code.remedy] for code in Code]


def examples() -> list[str]:
    """The frames of the worked examples: the bytes before the first gap of two spaces."""
    text = "\n\n".join(re.findall(r"^```wire\n(.*?)^```$", README, re.MULTILINE | re.DOTALL))
    return [
        "".join(line.partition("  ")[0].replace(" ", "") for line in frame.splitlines())
        for frame in re.split(r"\n\n+", text.strip())
    ]


def test_the_worked_examples_are_golden_frames() -> None:
    golden = [one["hex"] for one in GOLDEN]
    found = examples()
    assert len(found) == 4
    assert all(frame in golden for frame in found)
    assert found[:3] == golden[2:5], "the call is whole"


@pytest.mark.parametrize("code", re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL))
def test_the_example_of_the_library_runs(code: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(code, "protocol/README.md", "exec"), names)
    assert not names["call"].is_open


def test_every_file_that_it_names_is_there_and_none_is_left_out() -> None:
    folder = ROOT / "protocol" / "cartdeck_protocol"
    named = {cell for row in table("concern") for cell in re.findall(r"`([^`]+)`", row[1])}
    for name in named:
        assert list(ROOT.glob(f"protocol/{name}")) or list(folder.glob(name)), name
    modules = {path.name for path in (folder / "wire").glob("*.py")} - {"__init__.py"}
    assert modules == {Path(name).name for name in named if "wire/" in name}
