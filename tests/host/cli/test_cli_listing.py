"""How rows look on a terminal: as a table, and below each other where that is too wide."""

from cartdeck.cli.listing import table

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
