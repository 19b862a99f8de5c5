"""Owns the definition of a cap: its arguments, its outputs, and the rules that make them consistent.

It does not know files: it is made from a plain record and gives one back. Faults in a definition are
`MANIFEST_DRIFT`, with the place; a caller's unknown or missing argument has its own code.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from cartdeck_protocol.caps.argument import ArgumentDefinition, OutputDefinition, ValueKind
from cartdeck_protocol.caps.cap import CapUrn
from cartdeck_protocol.caps.media import MediaUrn
from cartdeck_protocol.caps.record import Fields
from cartdeck_protocol.caps.tag import UrnError
from cartdeck_protocol.caps.values import check_value
from cartdeck_protocol.errors import CartdeckError, Code, failure

UNIVERSAL_CAPS = ("identity", "discard")
"""The caps that every cartridge serves. They are added to each manifest and carry no cartridge's tags."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_OPTION = re.compile(r"--[a-z][a-z0-9]*(-[a-z0-9]+)*")
_NUMBERS = (ValueKind.INTEGER, ValueKind.NUMBER)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapDefinition:
    """What a cap takes and gives. `arguments` and `outputs` are by short name, in the order of the definition."""

    alias: str
    urn: CapUrn
    title: str
    documentation: str
    arguments: dict[str, ArgumentDefinition]
    outputs: dict[str, OutputDefinition]

    @property
    def main_argument(self) -> ArgumentDefinition | None:
        """The cap's input; None for a cap that takes `media:void`."""
        return next((argument for argument in self.arguments.values() if argument.is_main), None)

    @property
    def main_output(self) -> OutputDefinition | None:
        """The cap's output; None for a cap that gives `media:void`."""
        return self.outputs.get("")

    @property
    def instance_arguments(self) -> tuple[ArgumentDefinition, ...]:
        """The arguments that make an instance: calls that differ in one of them need another process."""
        return tuple(argument for argument in self.arguments.values() if argument.is_instance)

    def argument(self, name: str) -> ArgumentDefinition:
        """The argument of that short name or media URN. Raises UNKNOWN_ARGUMENT, which lists the known names."""
        found = self.arguments.get(name) or self._argument_by_media(name)
        if found is not None:
            return found
        near = get_close_matches(name, self.arguments, n=3, cutoff=0.5)
        names = ", ".join([*near, *(known for known in self.arguments if known not in near)])
        meant = f", did you mean {near[0]!r}?" if near else ";"
        known = f"the arguments are {names}" if names else "it takes no arguments"
        raise failure(
            Code.UNKNOWN_ARGUMENT,
            f"{self.alias} has no argument {name!r}{meant} {known}",
            argument=name,
            details={"known": list(self.arguments)},
        )

    def check_complete(self, given: Collection[str]) -> None:
        """Raise MISSING_ARGUMENT if a required argument is not among the short names `given`."""
        missing = [argument for argument in self.arguments.values() if argument.required and argument.name not in given]
        if missing:
            names = ", ".join(argument.name for argument in missing)
            raise failure(
                Code.MISSING_ARGUMENT,
                f"{self.alias} needs {names}, which was not given",
                argument=missing[0].name,
            )

    def with_tags(self, *names: str) -> "CapDefinition":
        """This definition with more tags on its URN, such as the name of an engine."""
        return replace(self, urn=self.urn.with_tags(*names))

    def to_plain(self) -> dict[str, Any]:
        """The record that `read_definition` reads; what has its usual value is left out."""
        plain: dict[str, Any] = {"alias": self.alias, "urn": str(self.urn), "title": self.title}
        plain["documentation"] = self.documentation
        plain["arguments"] = [_argument_to_plain(argument) for argument in self.arguments.values()]
        plain["outputs"] = [_output_to_plain(output) for output in self.outputs.values()]
        return plain

    def _argument_by_media(self, text: str) -> ArgumentDefinition | None:
        if not text.lower().startswith("media:"):
            return None
        try:
            media = MediaUrn.parse(text)
        except UrnError:
            return None
        return next((argument for argument in self.arguments.values() if argument.media == media), None)


def read_definition(fields: Fields) -> CapDefinition:
    """The definition in a record, checked. Raises MANIFEST_DRIFT."""
    urn = _cap_urn(fields)
    alias = fields.text("alias")
    _check_name(fields, alias)
    arguments = [_read_argument(record, urn) for record in fields.records("arguments")]
    outputs = [_read_output(record, urn) for record in fields.records("outputs")]
    definition = CapDefinition(
        alias=alias,
        urn=urn,
        title=fields.text("title"),
        documentation=fields.text("documentation"),
        arguments={argument.name: argument for argument in arguments},
        outputs={output.name: output for output in outputs},
    )
    fields.finish()
    _check_unique(fields, "argument", [argument.name for argument in arguments])
    _check_unique(fields, "argument's media URN", [str(argument.media) for argument in arguments])
    _check_unique(fields, "command-line option", [argument.cli for argument in arguments if argument.cli != "position"])
    _check_unique(fields, "output", [output.name for output in outputs])
    _check_sides(fields, definition)
    return definition


def _read_argument(fields: Fields, urn: CapUrn) -> ArgumentDefinition:
    is_main = fields.flag("is_main")
    argument = ArgumentDefinition(
        name=fields.text("name"),
        media=_media(fields, urn.input if is_main else None),
        documentation=fields.text("documentation"),
        required=fields.flag("required"),
        default=fields.anything("default"),
        is_main=is_main,
        is_instance=fields.flag("is_instance"),
        is_stream=fields.flag("is_stream"),
        is_sequence=fields.flag("is_sequence"),
        minimum=fields.number("minimum"),
        maximum=fields.number("maximum"),
        choices=tuple(fields.items("choices")),
        cli=fields.text("cli", ""),
    )
    fields.finish()
    _check_argument(fields, argument)
    return argument if argument.default is None else replace(argument, default=check_value(argument, argument.default))


def _check_argument(fields: Fields, argument: ArgumentDefinition) -> None:
    _check_name(fields, argument.name)
    if argument.required and argument.has_default:
        fields.refuse("an argument that is required has no default")
    if argument.is_instance and (argument.is_stream or argument.is_sequence):
        fields.refuse("an instance argument is read before routing, so it is neither a stream nor a sequence")
    if argument.has_default and (argument.is_stream or argument.is_sequence):
        fields.refuse("a stream or sequence has no default")
    if (argument.minimum is not None or argument.maximum is not None) and argument.kind not in _NUMBERS:
        fields.refuse(f"minimum and maximum are for numbers, and {argument.media} is {argument.kind}")
    if argument.minimum is not None and argument.maximum is not None and argument.minimum > argument.maximum:
        fields.refuse("minimum is above maximum")
    if argument.choices and argument.kind not in (*_NUMBERS, ValueKind.TEXT):
        fields.refuse(f"choices are for text and numbers, and {argument.media} is {argument.kind}")
    if argument.cli != "position" and not _OPTION.fullmatch(argument.cli):
        fields.refuse(f"cli: found {argument.cli!r}, expected 'position' or an option such as '--{argument.name}'")
    for value in (*argument.choices, *([argument.default] if argument.has_default else [])):
        try:
            check_value(argument, value)
        except CartdeckError as error:
            fields.refuse(f"the default and the choices must be values that the argument takes; {error}")


def _read_output(fields: Fields, urn: CapUrn) -> OutputDefinition:
    name = fields.text("name", "")
    output = OutputDefinition(
        name=name,
        media=_media(fields, None if name else urn.output),
        documentation=fields.text("documentation"),
        is_sequence=fields.flag("is_sequence"),
    )
    fields.finish()
    if name:
        _check_name(fields, name)
    return output


def _check_sides(fields: Fields, definition: CapDefinition) -> None:
    mains = [argument for argument in definition.arguments.values() if argument.is_main]
    if len(mains) != (0 if definition.urn.input.is_void else 1):
        fields.refuse(f"a cap whose input is {definition.urn.input} has {0 if mains else 1} main argument (is_main)")
    if (definition.main_output is None) != definition.urn.output.is_void:
        wanted = "no main output" if definition.urn.output.is_void else "a main output"
        fields.refuse(f"a cap whose output is {definition.urn.output} has {wanted}")


def _check_name(fields: Fields, name: str) -> None:
    if not _NAME.fullmatch(name):
        fields.refuse(f"found the name {name!r}, expected small letters, digits and single hyphens")


def _check_unique(fields: Fields, what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            fields.refuse(f"the {what} {name!r} is there twice")


def _cap_urn(fields: Fields) -> CapUrn:
    try:
        return CapUrn.parse(fields.text("urn"))
    except UrnError as error:
        fields.refuse(f"urn: {error}")


def _media(fields: Fields, side: MediaUrn | None) -> MediaUrn:
    """The record's media URN; for the main argument and output it is the cap's own and may be left out."""
    try:
        media = MediaUrn.parse(fields.text("media", None if side is None else str(side)))
    except UrnError as error:
        fields.refuse(f"media: {error}")
    if side is not None and media != side:
        fields.refuse(f"media: found {media}, expected {side} as in the cap's URN (or leave it out)")
    return media


def _argument_to_plain(argument: ArgumentDefinition) -> dict[str, Any]:
    plain: dict[str, Any] = {"name": argument.name, "media": str(argument.media), "cli": argument.cli}
    plain["documentation"] = argument.documentation
    for flag in ("required", "is_main", "is_instance", "is_stream", "is_sequence"):
        if getattr(argument, flag):
            plain[flag] = True
    for key in ("default", "minimum", "maximum"):
        if getattr(argument, key) is not None:
            plain[key] = getattr(argument, key)
    if argument.choices:
        plain["choices"] = list(argument.choices)
    return plain


def _output_to_plain(output: OutputDefinition) -> dict[str, Any]:
    plain: dict[str, Any] = {"media": str(output.media), "documentation": output.documentation}
    if output.name:
        plain["name"] = output.name
    if output.is_sequence:
        plain["is_sequence"] = True
    return plain
