"""Owns the order of steps that need each other's results, and the search for cycles in it.

It does not know plans: a graph is names and what each of them needs. Nothing recurses, so a chain may be of any length.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping


def in_order(needs: Mapping[str, Iterable[str]]) -> list[str]:
    """The names so that each comes behind what it needs; of several that could come next, the first by name.

    Names on a cycle, and those behind one, come last, by name. What is needed must be among the names.
    """
    waiting = {name: set(needed) for name, needed in needs.items()}
    readers: dict[str, list[str]] = {name: [] for name in needs}
    for name, needed in waiting.items():
        for one in needed:
            readers[one].append(name)
    ready = [name for name, needed in waiting.items() if not needed]
    heapq.heapify(ready)
    found: list[str] = []
    while ready:
        name = heapq.heappop(ready)
        found.append(name)
        for reader in readers[name]:
            waiting[reader].discard(name)
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(found) < len(waiting):
        done = set(found)
        found += sorted(name for name in waiting if name not in done)
    return found


def find_cycle(needs: Mapping[str, Iterable[str]]) -> list[str] | None:
    """One cycle as a path from a name to itself, each needing the one before it; None without a cycle."""
    return next(find_cycles(needs), None)


def find_cycles(needs: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """Cycles as `find_cycle` tells one, each of what is left without the names of those before it."""
    closed = -1
    places: dict[str, int] = {}  # of names that were met: where on the path, or closed
    for start in needs:
        if start in places:
            continue
        path, stack = [start], [iter(needs[start])]
        places[start] = 0
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                places[path.pop()] = closed
            elif following not in places:
                places[following] = len(path)
                path.append(following)
                stack.append(iter(needs[following]))
            elif (begin := places[following]) != closed:
                cycle = path[begin:]
                yield [*cycle, following][::-1]
                places.update(dict.fromkeys(cycle, closed))
                del path[begin:], stack[begin:]
