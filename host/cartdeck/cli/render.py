"""Owns how an error is written: as text for a person, or as one JSON record; and what a JSON line looks like.

It does not know where they are written, nor how the work went.
"""

import json
import os
import re
import shutil
import textwrap
from typing import Any, Final, cast

from cartdeck.cli.display import harmless
from cartdeck.cli.output import STDERR
from cartdeck.plain import plain
from cartdeck_protocol.errors import CartdeckError, Code

_LONE: Final = re.compile("[\ud800-\udfff]")
LOG_KEYS: Final = ("log", "stderr")
"""Details that hold a cartridge's last lines: shown as lines below the paragraph."""
WIDEST: Final = 100
LOG_LINES_SHOWN: Final = 5
LOG_LINE_WIDEST: Final = 200
"""So that the paragraph stays in sight on a terminal of 24 lines; `--json` has them all."""
SELF_EXPLAINING: Final = frozenset({Code.CANCELLED, Code.BAD_ARGUMENT, Code.UNKNOWN_ARGUMENT, Code.MISSING_ARGUMENT})
"""Codes whose remedy says no more than to do what the message says, or nothing at all."""


def error_text(error: CartdeckError) -> str:
    """The error as one paragraph: what happened, its code, where, what to do next; then the log's last few lines."""
    where = [error.code_name]
    if error.phase:
        where.append(f"phase {error.phase}")
    if error.argument and error.argument not in error.message:
        where.append(f"argument {error.argument}")
    parts = [_sentence(error.message), f"[{', '.join(where)}]"]
    is_own = error.remedy != error.code.remedy
    if error.remedy and (is_own or error.code not in SELF_EXPLAINING):
        parts.append(error.remedy)
    text = paragraph("error: " + " ".join(parts))
    lines = _log_lines(error)
    if lines:
        left_out = len(lines) - LOG_LINES_SHOWN
        text += (
            f"Its last log lines ({left_out} before them are not shown):\n" if left_out > 0 else "Its last log lines:\n"
        )
        text += "".join(f"    {_shortened(harmless(line))}\n" for line in lines[-LOG_LINES_SHOWN:])
    return text


def error_record(error: CartdeckError, status: int) -> dict[str, Any]:
    """The error as the JSON record that `--json` prints."""
    record = {**error.to_wire(), "remedy": error.remedy, "exit_code": int(status)}
    return {"error": plain(record)}


def json_line(value: Any) -> str:
    """The value on one line, which UTF-8 can carry: a byte of a file's name that is no UTF-8 is `\\udcXX`, as JSON
    writes such a half of a pair, and reads back as the same name in Python."""
    return _LONE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(plain(value), ensure_ascii=False)) + "\n"


def paragraph(text: str) -> str:
    """`text` wrapped to the terminal that standard error is, elsewhere whole, to be copied and searched; its own line
    breaks stay."""
    if not os.isatty(STDERR):
        return "".join(f"{harmless(line)}\n" for line in text.strip().splitlines())
    width = min(WIDEST, shutil.get_terminal_size().columns)
    lines = [
        textwrap.fill(harmless(line), width, break_long_words=False, break_on_hyphens=False)
        for line in text.strip().splitlines()
    ]
    return "\n".join(lines) + "\n"


def _sentence(message: str) -> str:
    message = message.strip()
    return message if message.endswith((".", "!", "?")) else message + "."


def _shortened(line: str) -> str:
    return line if len(line) <= LOG_LINE_WIDEST else line[: LOG_LINE_WIDEST - 1] + "…"


def _log_lines(error: CartdeckError) -> list[str]:
    for key in LOG_KEYS:
        found = error.details.get(key)
        if isinstance(found, str):
            return found.splitlines()
        if isinstance(found, list):
            return [str(line) for line in cast("list[Any]", found)]
    return []
