"""Owns the cheapest assignment of sources to places, and whether it is the only one.

It does not know media URNs: it gets the cost of each pair. A place takes one source, or any number of them.
"""

from collections.abc import Mapping, Sequence

Costs = Mapping[str, int]
"""What each place would cost one source; a place that is not in it is impossible."""

_MANY = 1 << 40


def cheapest(costs: Sequence[Costs], wide: frozenset[str]) -> list[str] | None:
    """The place of each source for the smallest sum of costs; None where there is no way. `wide` places take many.

    Successive shortest paths: each source in turn takes the cheapest way in, moving others along if that pays.
    """
    placed: list[str | None] = [None] * len(costs)
    held: dict[str, set[int]] = {}
    for source in range(len(costs)):
        path = _cheapest_path(source, costs, placed, held, wide)
        if path is None:
            return None
        for mover, place in path:
            before = placed[mover]
            if before is not None:
                held[before].discard(mover)
            placed[mover] = place
            held.setdefault(place, set()).add(mover)
    return [place for place in placed if place is not None]


def _cheapest_path(
    start: int, costs: Sequence[Costs], placed: list[str | None], held: dict[str, set[int]], wide: frozenset[str]
) -> list[tuple[int, str]] | None:
    """The moves, last first, that let `start` in: (source, its new place). Bellman and Ford, as moves may gain."""
    reach: dict[str, int] = {}
    came: dict[str, tuple[int, str | None]] = {}
    waiting: list[tuple[int, str | None]] = [(start, None)]
    while waiting:
        source, origin = waiting.pop(0)
        paid = 0 if origin is None else reach[origin] - costs[source][origin]
        for place, cost in costs[source].items():
            if place != placed[source] and paid + cost < reach.get(place, _MANY):
                reach[place] = paid + cost
                came[place] = (source, origin)
                if place not in wide:
                    waiting += [(holder, place) for holder in held.get(place, ())]
    free = [place for place in reach if place in wide or not held.get(place)]
    if not free:
        return None
    place: str | None = min(free, key=lambda one: (reach[one], one))
    moves: list[tuple[int, str]] = []
    while place is not None:
        source, origin = came[place]
        moves.append((source, place))
        place = origin
    return moves


def total(costs: Sequence[Costs], places: Sequence[str]) -> int:
    return sum(cost[place] for cost, place in zip(costs, places, strict=True))


def rival(costs: Sequence[Costs], places: Sequence[str], wide: frozenset[str]) -> list[str] | None:
    """Another assignment that costs as much as the cheapest one, `places`; None where that is the only one."""
    cost = total(costs, places)
    for source, place in enumerate(places):
        if len(costs[source]) == 1:
            continue  # it can go nowhere else
        others = [*costs]
        others[source] = {one: price for one, price in costs[source].items() if one != place}
        found = cheapest(others, wide)
        if found is not None and total(costs, found) == cost:
            return found
    return None
