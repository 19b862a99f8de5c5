"""Owns how rows are printed: as a table on a terminal, as tab-separated lines for a program.

It does not know what the rows say.
"""

import shutil
from collections.abc import Sequence

from cartdeck.cli.display import harmless
from cartdeck.cli.output import StandardOutput


def print_rows(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints the rows on standard output. Raises ReaderGone when nobody reads it."""
    output = StandardOutput()
    text = _table(headers, rows) if output.is_terminal else _lines(rows)
    output.write(text.encode())


def print_text(text: str) -> None:
    StandardOutput().write(text.encode())


def _lines(rows: Sequence[Sequence[str]]) -> str:
    return "".join("\t".join(harmless(cell).replace("\t", " ") for cell in row) + "\n" for row in rows)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*(Text(harmless(cell)) for cell in row))
    console = Console(width=shutil.get_terminal_size().columns)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
