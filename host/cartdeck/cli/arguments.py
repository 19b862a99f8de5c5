"""Owns how an argument is spelt on the command line: NAME=VALUE, NAME=@FILE, NAME=@- for standard input.

It does not know which arguments a cap has: the engine checks them, and their values.
"""

import io
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import anyio.to_thread

from cartdeck_protocol.caps import CapDefinition, ValueKind
from cartdeck_protocol.caps.item_text import item_of_text, items_of_text
from cartdeck_protocol.errors import CartdeckError, Code, failure

READ_BYTES: Final = 64 * 1024


def parse_arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """The arguments that `--arg` gave: text, a Path for @FILE, an async iterator of bytes for @-.

    A name that is given several times becomes a list, for arguments that take a sequence. `@@` at the start of a
    value stands for one `@`. Raises BAD_ARGUMENT for a pair without `=` and FILE_NOT_FOUND for a missing file.
    """
    found: dict[str, list[Any]] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name.strip():
            raise failure(
                Code.BAD_ARGUMENT, f"'{pair}' is no argument; expected NAME=VALUE or NAME=@FILE.", argument="--arg"
            )
        found.setdefault(name.strip(), []).append(parse_value(text, name=name.strip()))
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def read_items(definition: CapDefinition, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments, with the texts that were given for a sequence read as its items: by their type, and a single
    JSON list as all of them. What the cap does not have is left to the engine. BAD_ARGUMENT for a wrong item."""
    read = dict(arguments)
    for one in definition.arguments.values():
        for name in (one.name, str(one.media)):
            value = read.get(name) if one.is_sequence else None
            if isinstance(value, str):
                read[name] = items_of_text(one, value)
            elif isinstance(value, list):
                items = cast("list[Any]", value)
                read[name] = [item_of_text(one, item) if isinstance(item, str) else item for item in items]
    return read


def check_given(definition: CapDefinition, arguments: Mapping[str, Any]) -> None:
    """Raises MISSING_ARGUMENT for required arguments that are not given, with what to write; UNKNOWN_ARGUMENT before
    that, which may be a missing one by a wrong name."""
    given = {definition.argument(name).name for name in arguments}
    try:
        definition.check_complete(given)
    except CartdeckError as error:
        missing = [one for one in definition.arguments.values() if one.required and one.name not in given]
        example = " ".join(f"--arg {one.name}={example_of(one.kind)}" for one in missing)
        raise failure(error.code, f"{error.message}. For instance: {example}", argument=error.argument) from None


def example_of(kind: ValueKind) -> str:
    """How a value of that kind may be spelt."""
    if kind is ValueKind.TEXT:
        return "'some text'"
    return "@FILE" if kind in (ValueKind.BYTES, ValueKind.JSON) else "true" if kind is ValueKind.BOOLEAN else "1"


def parse_value(text: str, *, name: str) -> str | Path | AsyncGenerator[bytes]:
    """The value that `text` spells for the argument `name`."""
    if not text.startswith("@"):
        return text
    if text.startswith("@@"):
        return text[1:]
    if text == "@-":
        return read_standard_input()
    path = Path(text[1:]).expanduser()
    if not path.exists():
        raise failure(Code.FILE_NOT_FOUND, f"There is no file {path} for the argument {name}.", argument=name)
    if path.is_dir():
        raise failure(Code.BAD_ARGUMENT, f"{path} is a folder; the argument {name} needs a file.", argument=name)
    return path


async def read_standard_input() -> AsyncGenerator[bytes]:
    """Standard input as it comes: what is there, without waiting for a full block."""
    reader = cast("io.BufferedReader", sys.stdin.buffer)
    while block := await anyio.to_thread.run_sync(reader.read1, READ_BYTES, abandon_on_cancel=True):
        yield block


def read_text(text: str, *, name: str) -> str:
    """`text` itself, or all of standard input when it is `-`, without the one newline that ends its last line.

    Raises INVALID_TEXT for what is no UTF-8.
    """
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        found = f"byte {error.start} is {error.object[error.start]:#04x}"
        message = f"Standard input, read for {name}, is no UTF-8 text: {found}."
        raise failure(Code.INVALID_TEXT, message, argument=name) from None
