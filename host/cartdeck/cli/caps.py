"""Owns `cartdeck caps`: which caps are there, who serves them, and what one of them takes and gives.

It starts no cartridge: manifests say it all.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cartdeck.cli.options import AsJson

if TYPE_CHECKING:
    from cartdeck.discovery import Cartridge, Discovery
    from cartdeck_protocol.caps import ArgumentDefinition, CapDefinition


def caps(
    cap: Annotated[
        str | None, typer.Argument(metavar="CAP", help="Explain this one: its URN or alias.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the caps, or explain one.

    Example: cartdeck caps generate-text
    """
    from cartdeck.cli.cap_names import cap_named
    from cartdeck.cli.listing import print_rows, print_text
    from cartdeck.cli.render import json_line
    from cartdeck.discovery import discover
    from cartdeck.router import Router, parse_cap
    from cartdeck.settings import load_settings

    settings = load_settings()
    found = discover(settings)
    if cap is not None:
        named = cap_named(cap, [one for cartridge in found.cartridges for one in cartridge.manifest.caps])
        route = Router(found.cartridges, settings.prefer).route(parse_cap(named), {})
        record = cap_record(route.definition, [route.cartridge])
        print_text(json_line(record) if as_json else explanation(route.definition, route.cartridge))
    elif as_json:
        print_text(json_line({"caps": [cap_record(*served) for served in caps_served(found)]}))
    else:
        rows = [
            [
                definition.alias,
                ", ".join(cartridge_label(one) for one in cartridges),
                definition.title,
                str(definition.urn),
            ]
            for definition, cartridges in caps_served(found)
        ]
        print_rows(["cap", "cartridge", "what it does", "URN"], rows)


def caps_served(found: "Discovery") -> list[tuple["CapDefinition", list["Cartridge"]]]:
    """Each cap once, in the order of the aliases, with all cartridges that serve the same URN."""
    served: dict[str, tuple[CapDefinition, list[Cartridge]]] = {}
    for cartridge in found.cartridges:
        for definition in cartridge.manifest.caps:
            served.setdefault(str(definition.urn), (definition, []))[1].append(cartridge)
    return sorted(served.values(), key=lambda one: (one[0].alias, str(one[0].urn)))


def cap_record(definition: "CapDefinition", cartridges: "list[Cartridge]") -> dict[str, Any]:
    serving = [
        {"name": one.name, "version": one.manifest.version, "is_available": one.is_available} for one in cartridges
    ]
    return {**definition.to_plain(), "cartridges": serving}


def cartridge_label(cartridge: "Cartridge") -> str:
    return cartridge.name if cartridge.is_available else f"{cartridge.name} (unavailable)"


def explanation(definition: "CapDefinition", cartridge: "Cartridge") -> str:
    """The definition as text for a person."""
    lines = [f"{definition.alias}: {definition.title}, served by {cartridge_label(cartridge)}", str(definition.urn), ""]
    lines += [definition.documentation.strip(), ""]
    for argument in definition.arguments.values():
        lines += [f"  {argument.name}  {argument_facts(argument)}", *_indented(argument.documentation)]
    for output in definition.outputs.values():
        kind = "items of " if output.is_sequence else ""
        lines += [f"  -> {output.name or 'output'}  {kind}{output.media}", *_indented(output.documentation)]
    return "\n".join(lines).strip() + "\n"


def argument_facts(argument: "ArgumentDefinition") -> str:
    """What a caller must know of the argument, in one line."""
    facts = ["required"] if argument.required else []
    if argument.has_default:
        facts.append(f"default {spelt(argument.default)}")
    if argument.minimum is not None and argument.maximum is not None:
        facts.append(f"{spelt(argument.minimum)} to {spelt(argument.maximum)}")
    elif argument.minimum is not None:
        facts.append(f"at least {spelt(argument.minimum)}")
    elif argument.maximum is not None:
        facts.append(f"at most {spelt(argument.maximum)}")
    if argument.choices:
        facts.append(" | ".join(spelt(choice) for choice in argument.choices))
    if argument.is_sequence:
        facts.append("a sequence")
    if argument.is_instance:
        facts.append("another value starts another process")
    return ", ".join(facts)


def spelt(value: Any) -> str:
    """A value as a caller would write it: text bare, whole numbers without a fraction, the rest as JSON."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _indented(text: str) -> list[str]:
    return [f"      {line}" for line in text.strip().splitlines()]
