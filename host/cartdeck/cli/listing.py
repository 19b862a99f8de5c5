"""Owns how rows are printed: as a table on a terminal, below each other where it is too narrow, as tab-separated lines
for a program.

It does not know what the rows say.
"""

import shutil
from collections.abc import Sequence
from typing import Final

from cartdeck.cli.display import harmless
from cartdeck.cli.output import StandardOutput

GAP: Final = 2
MOST_PAIRED: Final = 2
"""So many columns stay beside each other however narrow the terminal is: names and what they stand for."""


def print_rows(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints the rows on standard output. Raises ReaderGone when nobody reads it."""
    output = StandardOutput()
    text = table(headers, rows, width=shutil.get_terminal_size().columns) if output.is_terminal else _lines(rows)
    output.write(text.encode())


def print_text(text: str) -> None:
    StandardOutput().write(text.encode(errors="surrogateescape"))  # a file's name may be no UTF-8


def _lines(rows: Sequence[Sequence[str]]) -> str:
    return "".join("\t".join(harmless(cell).replace("\t", " ") for cell in row) + "\n" for row in rows)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, width: int) -> str:
    """The rows as text for a terminal of so many columns."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = [[harmless(cell) for cell in row] for row in rows]
    columns = zip(headers, *shown, strict=True)
    needed = sum(max(map(cell_len, column)) + GAP for column in columns) - GAP
    if needed > width and len(headers) > MOST_PAIRED:
        return _below_each_other(headers, shown)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", show_header=any(headers))
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in shown:
        table.add_row(*map(Text, row))
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def _below_each_other(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A line for each cell, whole: what a terminal wraps can still be copied, what a column folds cannot."""
    indent = max(map(len, headers[1:]))
    parts: list[str] = []
    for row in rows:
        named = zip(headers[1:], row[1:], strict=True)
        parts += [f"{row[0]}\n", *(f"    {name:<{indent}}  {cell}\n" for name, cell in named if cell)]
    return "".join(parts)
