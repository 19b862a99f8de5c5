"""Owns the search for chains of caps that lead from one kind of data to another, best first.

It does not know processes, and runs nothing.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

from cartdeck.plans.matching import distance, is_like_text
from cartdeck.plans.plan import Plan
from cartdeck.router import NO_FIT, Route, fit, model_spec
from cartdeck_protocol.caps import UNIVERSAL_CAPS, MediaUrn, ValueKind

_MOST_LOOKED_AT: Final = 20_000
_ROLE_COST: Final = 1_000
"""Of text that becomes another kind of text: it may be wanted, but an exact fit comes first."""
_REQUIRED_COST: Final = 100_000
"""Of a further argument that has to be given: a chain that runs as it is comes before one as long that does not."""
_LONGEST: Final = 6
_CONSTANTS: Final = frozenset({ValueKind.TEXT, ValueKind.INTEGER, ValueKind.NUMBER, ValueKind.BOOLEAN})


@dataclass(frozen=True, slots=True)
class Chain:
    """Caps one after the other. `cost` is how loosely each takes what comes before it, and what it needs beside."""

    routes: tuple[Route, ...]
    cost: int

    @property
    def names(self) -> list[str]:
        """What the caps are called as steps: by their alias, with a number behind it where it comes again."""
        names, count = list[str](), dict[str, int]()
        for route in self.routes:
            alias = route.definition.alias
            count[alias] = count.get(alias, 0) + 1
            names.append(alias if count[alias] == 1 else f"{alias}-{count[alias]}")
        return names

    @property
    def needs(self) -> list[str]:
        """The arguments that are still to be set, each as STEP.ARGUMENT."""
        return [f"{step}.{name}" for step, route in zip(self.names, self.routes, strict=True) for name in _needs(route)]

    def to_plan(self) -> Plan:
        """The chain as a plan from `input` to `output`."""
        plan, value = Plan(), "input"
        for number, (name, route) in enumerate(zip(self.names, self.routes, strict=True), 1):
            target = "output" if number == len(self.routes) else f"value-{number}"
            value = plan.step(name, route.urn, value, to=target)
        return plan


def find_chains(
    routes: Iterable[Route], source: MediaUrn, target: MediaUrn, *, most: int = 10, longest: int = _LONGEST
) -> list[Chain]:
    """Up to `most` chains of at most `longest` caps: fewer caps first, then the closer fits.

    Taken are caps that are available, and need beside their main input at most arguments that a constant can be given
    for. No cap and no kind of data comes twice in a chain.
    """
    usable = [route for route in routes if _is_usable(route)]
    found: list[Chain] = []
    order = count()
    waiting: list[tuple[int, int, int, tuple[MediaUrn, ...], tuple[Route, ...]]] = [(0, 0, next(order), (source,), ())]
    looked_at = 0
    while waiting and len(found) < most and looked_at < _MOST_LOOKED_AT:
        length, cost, _, medias, chain = heapq.heappop(waiting)
        looked_at += 1
        if chain and medias[-1].conforms_to(target):
            found.append(Chain(chain, cost))
            continue
        if length == longest:
            continue
        for route, price, given in _ways(usable, medias[-1]):
            if route not in chain and given not in medias:
                heapq.heappush(waiting, (length + 1, cost + price, next(order), (*medias, given), (*chain, route)))
    return found


def _is_usable(route: Route) -> bool:
    definition = route.definition
    main = definition.main_argument
    if not route.cartridge.is_available or main is None or definition.main_output is None:
        return False
    if definition.alias in UNIVERSAL_CAPS or definition.urn.effect == "none":
        return False
    return all(definition.arguments[name].kind in _CONSTANTS for name in _needs(route))


def _needs(route: Route) -> list[str]:
    """The arguments beside the main one that have no default, and the model where that is for another cartridge."""
    arguments = route.definition.arguments.values()
    needs = [one.name for one in arguments if one.required and one is not route.definition.main_argument]
    if "model" not in needs and model_spec(route.definition, {}) is not None and fit(route, {}) == NO_FIT:
        needs.append("model")
    return needs


def _ways(usable: list[Route], media: MediaUrn) -> Iterator[tuple[Route, int, MediaUrn]]:
    for route in usable:
        main, output = route.definition.main_argument, route.definition.main_output
        assert main is not None
        assert output is not None
        price = distance(media, main.media)
        if price is None and is_like_text(media, main.media):
            price = _ROLE_COST
        if price is not None:
            yield route, price + _REQUIRED_COST * len(_needs(route)), output.media
