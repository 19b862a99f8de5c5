"""Owns how the words of a command line become the arguments of a cap, checked.

It does not know the wire: what is long stays a file that is still to be read.
"""

import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from cartdeck_protocol.caps import ArgumentDefinition, CapDefinition, decode_value, encode_value
from cartdeck_protocol.caps.item_text import item_of_text, items_of_text
from cartdeck_protocol.errors import Code, failure
from cartdeck_protocol.wire import encode_item

Value = bytes | BinaryIO
"""Bytes as they travel, or a file whose bytes they are."""


_QUIET, _VERBOSE = ("--quiet", "-q"), ("--verbose", "-v")


@dataclass(slots=True)
class Asked:
    """What was asked for on the command line."""

    values: dict[str, Value] = field(default_factory=dict[str, Value])
    output: str = ""
    is_quiet: bool = False
    is_verbose: bool = False


def read_words(definition: CapDefinition, words: list[str]) -> Asked:
    """The arguments that the words spell. What is missing is required from standard input where that is no terminal,
    for the main argument. Raises the errors of arguments, and FILE_NOT_FOUND."""
    asked, texts, rest = Asked(), dict[str, list[str]](), list(words)
    positions = [one for one in definition.arguments.values() if one.cli == "position"]
    while rest:
        word = rest.pop(0)
        if word in (*_QUIET, *_VERBOSE):
            asked.is_quiet |= word in _QUIET
            asked.is_verbose |= word in _VERBOSE
            continue
        if word.startswith("--"):
            _take_option(definition, word, rest, texts, asked)
        elif positions:
            argument = positions[0] if positions[0].is_sequence else positions.pop(0)
            texts.setdefault(argument.name, []).append(word)
        else:
            raise failure(Code.BAD_ARGUMENT, f"{word!r} is one value too many; options begin with --")
    main = definition.main_argument
    if main is not None and main.required and main.name not in texts and not sys.stdin.isatty():
        texts[main.name] = ["@-"]
    definition.check_complete(texts)
    for name, given in texts.items():
        asked.values[name] = _value(definition.arguments[name], given)
    return asked


def _take_option(
    definition: CapDefinition, word: str, rest: list[str], texts: dict[str, list[str]], asked: Asked
) -> None:
    """An option and its value, which stands behind a = or is the next of the `rest`."""
    name, equals, text = word.partition("=")
    argument = None
    if name not in ("--output", "--arg"):
        spelt = (one for one in definition.arguments.values() if one.cli == name)
        argument = next(spelt, None) or definition.argument(name.removeprefix("--"))
    if not equals:
        if not rest:
            raise failure(Code.BAD_ARGUMENT, f"{name} needs a value behind it")
        text = rest.pop(0)
    if name == "--output":
        asked.output = _output_name(definition, text)
        return
    if argument is None:
        named, equals, text = text.partition("=")
        argument = definition.argument(named)
        if not equals:
            raise failure(Code.BAD_ARGUMENT, f"found --arg {named}, expected --arg {named}=VALUE")
    texts.setdefault(argument.name, []).append(text)


def _value(argument: ArgumentDefinition, texts: list[str]) -> Value:
    if argument.is_sequence:
        if len(texts) == 1 and not texts[0].startswith("@"):
            return b"".join(encode_item(item) for item in items_of_text(argument, texts[0]))
        return b"".join(encode_item(_item(argument, text)) for text in texts)
    if len(texts) > 1:
        raise failure(Code.BAD_ARGUMENT, f"{argument.name} was given {len(texts)} times", argument=argument.name)
    [text] = texts
    if not text.startswith("@") or text.startswith("@@"):
        return encode_value(argument, text.removeprefix("@"))
    file = _open(argument, text[1:])
    if argument.is_stream:
        return file
    with file:
        data = file.read()
    decode_value(argument, data)
    return data


def _item(argument: ArgumentDefinition, text: str) -> object:
    if text.startswith("@") and not text.startswith("@@"):
        with _open(argument, text[1:]) as file:
            return decode_value(argument, file.read())
    return item_of_text(argument, text.removeprefix("@"))


def _open(argument: ArgumentDefinition, name: str) -> BinaryIO:
    try:
        if name == "-":
            return sys.stdin.buffer
        file = Path(name).expanduser().open("rb")
    except OSError as error:
        message = f"{name} cannot be read for {argument.name}: {error.strerror}"
        raise failure(Code.FILE_NOT_FOUND, message, argument=argument.name) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        message = f"{name} is no regular file; standard input is @-"
        raise failure(Code.BAD_ARGUMENT, message, argument=argument.name)
    return file


def _output_name(definition: CapDefinition, name: str) -> str:
    if name not in definition.outputs:
        known = ", ".join(one or "(main)" for one in definition.outputs)
        raise failure(
            Code.BAD_ARGUMENT, f"{definition.alias} has no output {name!r}; it has {known}", argument="--output"
        )
    return name
