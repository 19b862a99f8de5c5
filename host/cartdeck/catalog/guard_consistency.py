"""Owns what must hold between the guards of a catalog and its models.

It does not know the file; it is given guards and models that were each read.
"""

from collections.abc import Iterator, Mapping

from cartdeck.catalog.consistency import Problem, argument_problems
from cartdeck.catalog.entry import Capability, Entry
from cartdeck.catalog.guard import Guard
from cartdeck.near import near_names

_TEXTS = frozenset({Capability.CHAT, Capability.COMPLETION, Capability.TOOLS, Capability.VISION})


def guard_problems(entries: Mapping[str, Entry], guards: Mapping[str, Guard]) -> list[Problem]:
    """All that does not fit together, in the file's order; empty for a sound catalog."""
    return [*_guarded(entries, guards), *_models_of(entries, guards), *_names(entries, guards), *_arguments(guards)]


def _guarded(entries: Mapping[str, Entry], guards: Mapping[str, Guard]) -> Iterator[Problem]:
    for name, entry in entries.items():
        path = f"models.{name}.guards"
        for place, guard in enumerate(entry.guards):
            if guard not in guards:
                yield path, f"there is no guard {guard}{_near(guard, guards)} (tables [guards.NAME] have them)"
            elif guard in entry.guards[:place]:
                yield path, f"{guard} is there twice"
        if entry.guards and (others := sorted(set(entry.capabilities) - _TEXTS)):
            yield path, f"guards read texts that are asked and answered; this model is for {', '.join(others)} too"


def _models_of(entries: Mapping[str, Entry], guards: Mapping[str, Guard]) -> Iterator[Problem]:
    for name, guard in guards.items():
        path = f"guards.{name}.model"
        if guard.model is None:
            continue
        if guard.model not in entries:
            yield path, f"there is no model {guard.model}{_near(guard.model, entries)} (an alias or an adapter is none)"
            continue
        entry = entries[guard.model]
        if entry.source is None:
            yield path, f"{guard.model} is on another server; a guard is run here, where it is kept"
        if guard.capability not in entry.capabilities:
            yield path, f"{guard.model} is not for {guard.capability}, by which the guard is asked"
        if name in entry.guards:
            yield path, f"{guard.model} names {name} among its guards: it would guard itself"
        elif (around := _around(name, entries, guards)) is not None:
            yield path, f"it comes back to itself: {' → '.join(around)}"
        elif entry.guards:
            yield path, f"{guard.model} is guarded by {', '.join(entry.guards)}; a guard's model is not guarded itself"
        for other, user in entries.items():
            if guard.model in user.fallback:
                yield f"models.{other}.fallback", f"{guard.model} is the guard {name}'s model, which clients do not see"


def _around(name: str, entries: Mapping[str, Entry], guards: Mapping[str, Guard]) -> list[str] | None:
    """A way from a guard over its model and that one's guards back to it."""
    ways, seen = [[name]], set[str]()
    while ways:
        way = ways.pop()
        guard = guards.get(way[-1])
        if guard is None or guard.model is None or guard.model not in entries:
            continue
        for other in entries[guard.model].guards:
            if other == name:
                return [*way, guard.model, other]
            if other not in seen:
                seen.add(other)
                ways.append([*way, guard.model, other])
    return None


def _names(entries: Mapping[str, Entry], guards: Mapping[str, Guard]) -> Iterator[Problem]:
    taken: dict[str, str] = {}
    for name, entry in entries.items():
        taken |= dict.fromkeys((name, *entry.aliases, *entry.lora), f"models.{name}")
    for name in guards:
        if name in taken:
            yield f"guards.{name}", f"the name {name} is taken by {taken[name]}"


def _arguments(guards: Mapping[str, Guard]) -> Iterator[Problem]:
    for name, guard in guards.items():
        yield from argument_problems(f"guards.{name}.arguments", guard.arguments, (guard.capability,))


def _near(name: str, known: Mapping[str, object]) -> str:
    near = near_names(name, known)
    return f"; near it: {', '.join(near)}" if near else ""
