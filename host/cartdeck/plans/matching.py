"""Owns which argument of a cap each source of a step goes to: the cheapest assignment of media URNs, if it is unique.

It does not know routes, sequences or processes.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from cartdeck.plans.assignment import cheapest, rival
from cartdeck.plans.fault import plan_fault
from cartdeck.plans.graph import Step
from cartdeck_protocol.caps import ArgumentDefinition, CapDefinition, MediaUrn, ValueKind
from cartdeck_protocol.caps.argument import kind_of
from cartdeck_protocol.errors import CartdeckError

_ROLE_COST = 10_000
"""Of text that is no such text by its tags, as the main input: a transcript as a prompt. Dearer than any distance."""
_NAMED_COST, _MAIN_COST, _REQUIRED_COST = 0, 1, 100
"""Of an input that declares no media: to the argument of its name, the main one, another that is required."""

_SHOWN = 6
"""So many arguments are named in a message."""

_NAMING_TAGS = frozenset({"model-spec", "file-path", "cap-urn"})


@dataclass(frozen=True, slots=True)
class Source:
    """A value on its way into a step. `media` is None for an input that declares none."""

    name: str
    media: MediaUrn | None


@lru_cache(maxsize=4096)
def _text_of(media: MediaUrn) -> str:
    """`prose` for text as such, `name` for text that names a model or a file, "" for numbers, JSON and bytes."""
    if kind_of(media) is not ValueKind.TEXT:
        return ""
    return "name" if _NAMING_TAGS & media.tags.keys() else "prose"


def is_like_text(one: MediaUrn, other: MediaUrn) -> bool:
    """Whether one may stand for the other as text: a transcript for a prompt, a path for a model, but no text for a
    path."""
    return _text_of(one) != "" and _text_of(one) == _text_of(other)


@lru_cache(maxsize=16_384)
def distance(source: MediaUrn, argument: MediaUrn) -> int | None:
    """How much more `source` says than `argument` asks for; None where it is something else."""
    if not source.conforms_to(argument):
        return None
    return max(0, source.specificity - argument.specificity)


def match(step: Step, definition: CapDefinition, sources: Sequence[Source]) -> list[ArgumentDefinition]:
    """The argument for each source. Raises BAD_PLAN, with the candidates, where there is no way or no single best."""
    free = _free(step, definition)
    costs = [_costs(source, free) for source in sources]
    for number, cost in enumerate(costs):
        if not cost:
            raise _no_match(step, definition, sources[number], number, free)
    wide = frozenset(one.name for one in free if one.is_sequence)
    places = cheapest(costs, wide)
    if places is None:
        raise _no_room(step, definition, sources, costs)
    other = rival(costs, places, wide)
    if other is not None:
        raise _no_single_best(step, definition, sources, (places, other))
    return [definition.arguments[place] for place in places]


def misfits(
    step: Step, definition: CapDefinition, sources: Sequence[Source], *, unknown: Collection[str]
) -> list[CartdeckError]:
    """A fault for each source that fits no argument whatever the others are, but for those of which it is unknown what
    they are."""
    free = _free(step, definition)
    return [
        _no_match(step, definition, source, number, free)
        for number, source in enumerate(sources)
        if source.name not in unknown and not _costs(source, free)
    ]


def _free(step: Step, definition: CapDefinition) -> list[ArgumentDefinition]:
    return [one for one in definition.arguments.values() if one.name not in step.constants]


def _costs(source: Source, free: Sequence[ArgumentDefinition]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in free:
        cost = _cost_of_input(source.name, one) if source.media is None else _cost(source.media, one)
        if cost is not None:
            found[one.name] = cost
    return found


def _cost(media: MediaUrn, argument: ArgumentDefinition) -> int | None:
    found = distance(media, argument.media)
    if found is None and argument.is_main and is_like_text(media, argument.media):
        return _ROLE_COST
    return found


def _cost_of_input(name: str, argument: ArgumentDefinition) -> int | None:
    if name == argument.name:
        return _NAMED_COST
    if argument.is_main:
        return _MAIN_COST
    return _REQUIRED_COST if argument.required else None


def titled(step: Step, definition: CapDefinition) -> str:
    """A step in a message: its name, and that of its cap where it is another."""
    return step.name if step.name == definition.alias else f"{step.name} ({definition.alias})"


def described(arguments: Sequence[ArgumentDefinition]) -> list[str]:
    return [f"{one.name} {one.media}" + (" (a sequence)" if one.is_sequence else "") for one in arguments]


def _no_match(
    step: Step, definition: CapDefinition, source: Source, number: int, free: Sequence[ArgumentDefinition]
) -> CartdeckError:
    candidates = described(free)
    what = f"{source.name}, which declares no media," if source.media is None else f"{source.name} ({source.media})"
    takes = f"it takes {', '.join(candidates[:_SHOWN])}" if candidates else "it takes none besides its constants"
    if len(candidates) > _SHOWN:
        takes += f" and {len(candidates) - _SHOWN} more, which `cartdeck caps {definition.alias}` lists"
    message = f"{what} fits no argument of {titled(step, definition)}; {takes}"
    return plan_fault(message, step.place(f"source {number}"), candidates=candidates)


def _no_room(
    step: Step, definition: CapDefinition, sources: Sequence[Source], costs: Sequence[Mapping[str, int]]
) -> CartdeckError:
    candidates = [f"{source.name}: {' or '.join(cost)}" for source, cost in zip(sources, costs, strict=True)]
    message = f"the sources of {titled(step, definition)} do not fit beside each other; {'; '.join(candidates)}"
    return plan_fault(message, step.place("source 0"), candidates=candidates)


def _no_single_best(
    step: Step, definition: CapDefinition, sources: Sequence[Source], ways: tuple[list[str], list[str]]
) -> CartdeckError:
    candidates = [", ".join(f"{s.name} as {place}" for s, place in zip(sources, way, strict=True)) for way in ways]
    number = next(i for i, (one, other) in enumerate(zip(*ways, strict=True)) if one != other)
    message = f"two ways into {titled(step, definition)} are equally good: {candidates[0]}; or {candidates[1]}"
    undeclared = [source.name for source in sources if source.media is None]
    if undeclared:
        medias = definition.arguments[ways[0][number]].media
        message += f". Declare what an input is, such as `{undeclared[-1]} {medias}`"
    return plan_fault(message, step.place(f"source {number}"), candidates=candidates)
