"""How rows look on a terminal: as a table, and below each other where that is too wide."""

import pytest

from cartdeck.cli.listing import table
from cartdeck.cli.top import console_here, table_of

HEADERS = ["model", "size", "where"]
ROWS = [["hf:owner/name@main", "98.4 MB", "/models/hub/models--owner--name"], ["pypi:x==1/y", "", "/models/y"]]


def lines(width: int) -> list[str]:
    return [line.rstrip() for line in table(HEADERS, ROWS, width=width).splitlines()]


def test_rows_that_fit_are_a_table() -> None:
    header, *rows = lines(80)
    assert header.split() == HEADERS
    assert rows[0].split("  ") == ["hf:owner/name@main", "98.4 MB", "/models/hub/models--owner--name"]


def test_where_they_do_not_fit_each_cell_stays_whole_in_a_line_of_its_own() -> None:
    assert lines(40) == [
        "hf:owner/name@main",
        "    size   98.4 MB",
        "    where  /models/hub/models--owner--name",
        "pypi:x==1/y",
        "    where  /models/y",
    ]


def test_names_and_values_stay_beside_each_other_without_a_line_for_headers_that_say_nothing() -> None:
    text = table(["", ""], [["license", "a long text about nothing"]], width=20)
    assert text.splitlines()[0].startswith("license")
    assert len(text.splitlines()) > 1


def test_what_a_server_tells_is_whole_in_a_line_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    message, cartridge = "word " * 300 + "end", "c" * 200
    session = {"cartridge": cartridge, "state": "ready", "pid": 7, "requests": {}, "rss_bytes": 1, "starts": 1}
    session |= {"restarts": 0, "instance": "", "last_error": {"code": "X", "message": message}}
    memory = {"used_bytes": 0, "budget_bytes": 0, "waiting": 0}
    told = {"memory": memory, "uptime_s": 1.0, "requests": {}, "sessions": [session]}
    console_here().print(table_of("http://127.0.0.1:8080", told))
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown[-1] == f"{cartridge} 7: last error [X] {message}"
    assert any(line.startswith(f"{cartridge}  ready") for line in shown)
