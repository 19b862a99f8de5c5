"""Owns `cartdeck trace`: a trace file, printed as a sequence that a person can follow, or filtered as JSON lines.

It does not know how a trace is made, nor how a record looks as a line.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from cartdeck_protocol.errors import Code, failure

WRITTEN_AT_ONCE: Final = 200


def trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What CARTDECK_TRACE=FILE made an engine write.")],
    request: Annotated[
        int | None, typer.Option("--request", metavar="ID", help="Only frames of the request with this id.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="KEY", help="Only this session: a cartridge, a whole key, or a process id."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records, a JSON line each.")] = False,
) -> None:
    """Print the frames that a trace holds: when, who to whom, which request, what.

    CARTDECK_TRACE=FILE before a command makes it write FILE. Equal frames in a row are printed as one line.

    Example: cartdeck trace trace.jsonl --request 4
    """
    from cartdeck.cli.sequence import Sequence

    def is_wanted(record: dict[str, Any]) -> bool:
        return _is_of(record, request=request, session=session)

    if as_json:
        _print(json.dumps(one, ensure_ascii=False) for one in _records(file) if is_wanted(one))
        return
    # Read twice, so that a trace of any size is printed in columns that fit, without being held.
    sequence = Sequence()
    sequence.measure(filter(is_wanted, _records(file)))
    _print(sequence.lines(filter(is_wanted, _records(file))))
    if not any("session" in one for one in filter(is_wanted, _records(file))):
        print("There is no such frame in it.", file=sys.stderr)


def _is_of(record: dict[str, Any], *, request: int | None, session: str | None) -> bool:
    """Records about the trace itself, its head and what was dropped, are of every request."""
    if "session" not in record:
        return True
    if request is not None and record.get("id") != request:
        return False
    key = str(record["session"])
    return session is None or session in (key, key.partition("[")[0], str(record.get("pid")))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a trace; the last line may still be unfinished. Raises FILE_NOT_FOUND, BAD_ARGUMENT."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                record = _record(line)
                if record is not None:
                    yield record
                elif line.endswith("\n"):
                    found = f"line {number} of {path} is no record of a trace: {line.strip()[:60]!r}"
                    raise failure(Code.BAD_ARGUMENT, f"{found}; CARTDECK_TRACE=FILE makes one.", argument="FILE")
    except FileNotFoundError:
        message = f"There is no file {path}; CARTDECK_TRACE={path} makes a command write one."
        raise failure(Code.FILE_NOT_FOUND, message, argument="FILE") from None
    except OSError as error:
        raise failure(Code.BAD_ARGUMENT, f"{path} cannot be read: {error.strerror}.", argument="FILE") from None


def _record(line: str) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(line)
    except ValueError:
        return None
    record = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return record if isinstance(record.get("time"), int | float) else None


def _print(lines: Iterable[str]) -> None:
    from cartdeck.cli.output import StandardOutput

    write: Callable[[bytes], None] = StandardOutput().write
    waiting: list[str] = []
    for line in lines:
        waiting.append(line + "\n")
        if len(waiting) >= WRITTEN_AT_ONCE:
            write("".join(waiting).encode())
            waiting.clear()
    write("".join(waiting).encode())
