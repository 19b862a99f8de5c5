"""Owns the help that a cartridge's command line gives, made from its definitions alone.

It does not know how words are read.
"""

import textwrap
from collections.abc import Iterator
from typing import Final

from cartdeck_protocol.caps import UNIVERSAL_CAPS, ArgumentDefinition, CapDefinition, Manifest, describe_value

_WIDTH: Final = 100
_OWN_OPTIONS: Final = (
    ("--arg NAME=VALUE", "any argument by its name; may be repeated"),
    ("--output NAME", "write this output instead of the main one"),
    ("-q, --quiet", "show no progress and no log"),
    ("-v, --verbose", "show the log of the process and of its libraries too"),
)


def overview(package: str, manifest: Manifest) -> str:
    """What the cartridge is and serves."""
    caps = [cap for cap in manifest.caps if cap.alias not in UNIVERSAL_CAPS]
    widest = max(len("manifest"), *(len(cap.alias) for cap in manifest.caps))
    lines = [f"{manifest.title} {manifest.version}", *_wrapped(manifest.description, ""), ""]
    lines.append(f"usage: python -m {package} CAP [arguments] | manifest")
    lines.append("")
    lines += [f"  {cap.alias:<{widest}}  {cap.title}" for cap in caps]
    lines += [f"  {'manifest':<{widest}}  Print caps, arguments and defaults as JSON.", ""]
    lines.append(f"python -m {package} CAP --help shows the arguments of one.")
    return "\n".join(lines) + "\n"


def cap_help(package: str, definition: CapDefinition) -> str:
    """How one cap is called."""
    main = definition.main_argument
    shown = "" if main is None else f" {_metavar(main)}" if main.required else f" [{_metavar(main)}]"
    lines = [f"usage: python -m {package} {definition.alias}{shown} [options]", ""]
    lines += [*_wrapped(definition.documentation, ""), ""]
    for argument in definition.arguments.values():
        lines += _argument_lines(argument)
    for name, text in _OWN_OPTIONS:
        lines += [f"  {name}", *_wrapped(text, "      ")]
    if definition.outputs:
        lines += ["", "outputs:"]
        for output in definition.outputs.values():
            what = "a sequence of items, as JSON lines" if output.is_sequence else str(output.media)
            lines += [f"  {output.name or '(main)'}: {what}", *_wrapped(output.documentation, "      ")]
    lines += ["", "A value is a text, @FILE for what a file holds, or @- for standard input."]
    return "\n".join(lines) + "\n"


def _argument_lines(argument: ArgumentDefinition) -> Iterator[str]:
    option = _metavar(argument) if argument.cli == "position" else f"{argument.cli} {_metavar(argument)}"
    facts = [describe_value(argument)]
    if argument.required:
        facts.append("required")
    elif argument.has_default:
        facts.append(f"default {argument.default}")
    if argument.is_sequence:
        facts.append("may be repeated")
    yield f"  {option}  ({', '.join(facts)})"
    yield from _wrapped(argument.documentation, "      ")


def _metavar(argument: ArgumentDefinition) -> str:
    return argument.name.upper()


def _wrapped(text: str, indent: str) -> list[str]:
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        lines += textwrap.wrap(paragraph, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    return lines
