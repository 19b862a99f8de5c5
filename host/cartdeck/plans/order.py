"""Owns the order of steps that need each other's results, and the search for a cycle in it.

It does not know plans: a graph is names and what each of them needs. Nothing recurses, so a chain may be of any length.
"""

import heapq
from collections.abc import Iterable, Mapping


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
    unknown, open_, closed = 0, 1, 2
    state = dict.fromkeys(needs, unknown)
    for start in needs:
        if state[start] != unknown:
            continue
        state[start] = open_
        path = [start]
        stack = [iter(needs[start])]
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                state[path.pop()] = closed
            elif state[following] == open_:
                return [*path[path.index(following) :], following][::-1]
            elif state[following] == unknown:
                state[following] = open_
                path.append(following)
                stack.append(iter(needs[following]))
    return None
