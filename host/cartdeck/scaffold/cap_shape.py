"""Owns the cap of a new cartridge: from a URN, its definition, a sample, and what a first handler gives for it.

It does not know files. What is guessed here is a place to begin: the author changes it.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from cartdeck_protocol.caps import ArgumentDefinition, CapUrn, MediaUrn, UrnError, ValueKind, parse_definition
from cartdeck_protocol.errors import Code, failure

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_INPUT_NAMES = {
    ValueKind.TEXT: "text",
    ValueKind.JSON: "record",
    ValueKind.INTEGER: "number",
    ValueKind.NUMBER: "number",
}
_SAMPLES: dict[ValueKind, str | int | float | bool] = {
    ValueKind.TEXT: "hello",
    ValueKind.INTEGER: 3,
    ValueKind.NUMBER: 0.5,
    ValueKind.BOOLEAN: True,
    ValueKind.BYTES: "hello",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CapShape:
    """A cap that is to be served. `argument` is the name of its input, "" where it takes nothing."""

    alias: str
    urn: CapUrn
    argument: str
    gives: ValueKind | None
    """What its main output is; None where it gives nothing."""

    @property
    def takes(self) -> ValueKind | None:
        return None if not self.argument else _probe(self.urn.input).kind

    @property
    def definition(self) -> str:
        """The text of ALIAS.toml."""
        lines = [
            f"urn = {_toml(str(self.urn))}",
            f"title = {_toml(self.alias.replace('-', ' ').capitalize())}",
            f"documentation = {_toml('Say here what it does, and what it costs.')}",
        ]
        if self.argument:
            lines += [
                "",
                f"[arguments.{self.argument}]",
                "is_main = true",
                "required = true",
                f"documentation = {_toml('Say here what it takes.')}",
            ]
        if self.gives is not None:
            lines += ["", "[output]", f"documentation = {_toml('Say here what it gives.')}"]
        return "\n".join(lines) + "\n"

    @property
    def sample(self) -> str:
        """The table [samples.ALIAS] of manifest.toml; "" for a cap that takes nothing."""
        if self.takes is None:
            return f"\n[samples.{self.alias}]\n"
        value = _SAMPLES.get(self.takes)
        if value is None:
            value = json.loads(_json_of(self.urn.input))
        return f"\n[samples.{self.alias}]\n{self.argument} = {_toml(value)}\n"

    @property
    def answer(self) -> str:
        """A Python expression of what is written to the main output; it may read `given`."""
        said = {None: '"nothing"', ValueKind.TEXT: "given", ValueKind.BYTES: 'f"{len(given)} bytes"'}.get(
            self.takes, "str(given)"
        )
        match self.gives:
            case ValueKind.TEXT:
                return f"{said}.upper()"
            case ValueKind.JSON:
                return f"json.dumps({_json_of(self.urn.output)})"
            case ValueKind.INTEGER | ValueKind.NUMBER:
                return '"1"'
            case ValueKind.BOOLEAN:
                return '"true"'
            case _:
                return "given" if self.takes is ValueKind.BYTES else f"{said}.encode()"

    @property
    def node_answer(self) -> str:
        """The same as an expression of JavaScript, which may read `given.NAME`."""
        given = f"given.{self.argument}" if self.argument.isidentifier() else f"given['{self.argument}']"
        match self.gives:
            case ValueKind.TEXT:
                return f"String({given}).toUpperCase()" if self.argument else "'NOTHING'"
            case ValueKind.JSON:
                return f"JSON.stringify({_json_of(self.urn.output)})"
            case ValueKind.INTEGER | ValueKind.NUMBER:
                return "'1'"
            case ValueKind.BOOLEAN:
                return "'true'"
            case _:
                return given if self.takes is ValueKind.BYTES else "'nothing'"


def shape_of(text: str, *, name: str) -> CapShape:
    """The shape of the cap that the URN `text` names, for a cartridge `name`. Raises BAD_ARGUMENT."""
    try:
        urn = CapUrn.parse(text)
    except UrnError as error:
        raise failure(Code.BAD_ARGUMENT, f"--cap: {error}.", argument="--cap") from None
    argument = "" if urn.input.is_void else _argument_name(urn.input)
    gives = None if urn.output.is_void else _probe(urn.output).kind
    shape = CapShape(alias=_alias(text, urn, name), urn=urn, argument=argument, gives=gives)
    parse_definition(shape.definition, shape.alias)  # what could not be read is not written
    return shape


def default_urn(name: str) -> str:
    """The cap of a cartridge whose author named none: text in, text out."""
    return f'cap:{name};in="media:enc=utf-8;text";out="media:enc=utf-8;{name}-text"'


def _alias(text: str, urn: CapUrn, name: str) -> str:
    """The first tag that stands for itself, in the order written; else the cartridge's name."""
    names = [key for key, tag in urn.tags.items() if _NAME.fullmatch(key) and tag.spell(key) == key]
    return min(names, key=text.lower().find, default=name)


def _argument_name(media: MediaUrn) -> str:
    """`text`, `record`, …; for bytes the tag that names them, such as `image`."""
    kind = _probe(media).kind
    if kind in _INPUT_NAMES:
        return _INPUT_NAMES[kind]
    tags = str(media).removeprefix("media:").split(";")
    return next((tag for tag in tags if _NAME.fullmatch(tag)), "data")


def _probe(media: MediaUrn) -> ArgumentDefinition:
    return ArgumentDefinition(name="probe", media=media, documentation="")


def _json_of(media: MediaUrn) -> str:
    """JSON, and Python, of the form that the media URN asks for."""
    probe = _probe(media)
    item = {ValueKind.TEXT: '"one"', ValueKind.INTEGER: "1", ValueKind.NUMBER: "0.5"}.get(
        probe.item_kind or ValueKind.JSON, '{"value": 1}'
    )
    return f"[{item}]" if probe.is_list else '{"value": 1}'


def _toml(value: object) -> str:
    """A value as TOML; a text whose quotes read well is written as it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value}'" if '"' in value and "'" not in value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, cast("list[Any]", value))) + "]"
    return json.dumps(value)
