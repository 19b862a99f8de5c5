"""Owns what must hold between the models of a catalog, and between a model and the caps that it is for.

It does not know the file; it is given models that were each read.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from cartdeck.catalog.entry import Capability, Entry
from cartdeck.near import near_names
from cartdeck_protocol.caps import CapDefinition, check_value, load_shared_definition
from cartdeck_protocol.errors import CartdeckError

Problem = tuple[str, str]
"""The path of a key, and what is wrong with it."""

CAPS: Final[Mapping[Capability, str]] = {
    Capability.CHAT: "chat",
    Capability.COMPLETION: "generate-text",
    Capability.TOOLS: "chat",
    Capability.VISION: "chat",
    Capability.EMBEDDINGS: "embed-text",
    Capability.SPEECH: "transcribe-speech",
}
_OWN_KEYS: Final = {"model": "source", "projector": "projector", "lora": "lora", "context-size": "context_size"}
"""Arguments that have a key of their own in a catalog."""
SENT_ELSEWHERE: Final = frozenset(
    {
        "temperature", "top-p", "top-k", "min-p", "repeat-penalty", "presence-penalty", "frequency-penalty", "seed",
        "n", "logit-bias", "stop", "grammar", "deterministic", "max-tokens", "truncate", "normalize", "pooling",
        "language", "beams",
    }
)  # fmt: skip
"""Arguments that are a field of the same name in a request to another server."""


def problems(entries: Mapping[str, Entry]) -> list[Problem]:
    """All that does not fit together, in the file's order; empty for a sound catalog."""
    return [*_double_names(entries), *_fallbacks(entries), *_arguments(entries)]


def _double_names(entries: Mapping[str, Entry]) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for path, name in _all_names(entries):
        if name in owners:
            yield path, f"the name {name} is taken by {owners[name]}"
        else:
            owners[name] = path


def _all_names(entries: Mapping[str, Entry]) -> Iterator[Problem]:
    for name in entries:  # a model's own name is never what is at fault: TOML has each once
        yield f"models.{name}", name
    for name, entry in entries.items():
        yield from ((f"models.{name}.aliases", alias) for alias in entry.aliases)
        yield from ((f"models.{name}.lora.{own}", own) for own in entry.lora)


def _fallbacks(entries: Mapping[str, Entry]) -> Iterator[Problem]:
    for name, entry in entries.items():
        path = f"models.{name}.fallback"
        if entry.fallback and Capability.EMBEDDINGS in entry.capabilities:
            yield path, "a model of vectors has none: vectors of two models cannot be compared"
        for place, other in enumerate(entry.fallback):
            if other not in entries:
                near = near_names(other, entries)
                hint = f"; near it: {', '.join(near)}" if near else ""
                yield path, f"there is no model {other}{hint} (an alias or an adapter cannot stand in)"
            elif other in entry.fallback[:place]:
                yield path, f"{other} is there twice"
        if (around := _cycle_from(name, entries)) is not None:
            yield path, f"it comes back to itself: {' → '.join(around)}"


def _cycle_from(name: str, entries: Mapping[str, Entry]) -> list[str] | None:
    """A way along fallbacks from a model back to itself."""
    ways, seen = [[name]], set[str]()
    while ways:
        way = ways.pop()
        for other in entries[way[-1]].fallback if way[-1] in entries else ():
            if other == name:
                return [*way, other]
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return None


def _arguments(entries: Mapping[str, Entry]) -> Iterator[Problem]:
    for name, entry in entries.items():
        path = f"models.{name}.arguments"
        yield from argument_problems(path, entry.arguments, entry.capabilities)
        if entry.external is not None:
            strange = [argument for argument in entry.arguments if argument not in SENT_ELSEWHERE]
            yield from ((f"{path}.{argument}", "an external server cannot be asked for it") for argument in strange)


def argument_problems(path: str, arguments: Mapping[str, Any], capabilities: Iterable[Capability]) -> Iterator[Problem]:
    """What is wrong with the defaults, in the table at `path`, of a model that is for that."""
    definitions = [_definition(alias) for alias in dict.fromkeys(CAPS[one] for one in capabilities)]
    for argument, value in arguments.items():
        if argument in _OWN_KEYS:
            yield f"{path}.{argument}", f"say it by the key {_OWN_KEYS[argument]} of the model"
        elif (message := _argument_fault(argument, value, definitions)) is not None:
            yield f"{path}.{argument}", message


def _argument_fault(name: str, value: object, definitions: Iterable[CapDefinition]) -> str | None:
    known: set[str] = set()
    for definition in definitions:
        known |= definition.arguments.keys()
        if (argument := definition.arguments.get(name)) is None:
            continue
        if argument.is_main or argument.is_sequence:
            return "it is what a request gives, and has no default"
        try:
            check_value(argument, value)
        except CartdeckError as error:
            return error.message
        return None
    near = near_names(name, known)
    return "no argument of the caps that the model is for" + (f"; near it: {', '.join(near)}" if near else "")


@cache
def _definition(alias: str) -> CapDefinition:
    return load_shared_definition(alias)
