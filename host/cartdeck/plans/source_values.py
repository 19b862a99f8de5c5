"""Owns how the sources of a step become arguments: whole where they are there, as streams where they are coming.

It does not know calls, nor items of a mapped step.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from cartdeck.plans.convert import Absent, as_item, as_value, can_stream
from cartdeck.plans.flow import Flow
from cartdeck.plans.spool import END, NOTHING, Reader
from cartdeck.plans.step_run import Missing
from cartdeck_protocol.caps import ArgumentDefinition

_WHOLE_BYTES: Final = 256 * 1024
"""A value up to this is handed over whole; a larger one streams."""
_WHOLE_ITEMS: Final = 64


class Taken:
    """One source of one argument, read by one step."""

    __slots__ = ("argument", "flow", "loops", "reader")

    def __init__(self, argument: ArgumentDefinition, flow: Flow, loops: int, *, keeps: bool) -> None:
        self.argument = argument
        self.flow = flow
        self.loops = loops
        self.reader = flow.reader(keeps=keeps)

    def close(self) -> None:
        self.reader.close()


def short(taken: Taken) -> Any:
    """The value of a source that is there, in one piece; NOTHING for any other."""
    flow = taken.flow
    if flow.absent is None and flow.spool.is_ended and flow.spool.count == 1:
        return as_value(taken.reader.take(), taken.argument)
    return NOTHING


async def scalar(taken: Taken, *, is_forked: bool = False) -> Any:
    """The value of a source as an argument: itself, or an async iterator of its pieces. Raises Missing."""
    flow, argument = taken.flow, taken.argument
    if flow.absent is not None:
        raise Missing(flow.absent)
    reader = taken.reader.fork() if is_forked else taken.reader
    spool = flow.spool
    if not spool.is_ended and can_stream(argument):
        return _pieces(reader, closes=is_forked)
    if not spool.is_ended:
        entries = await reader.rest()
    elif spool.count <= 1 or spool.put_bytes <= _WHOLE_BYTES or not can_stream(argument):
        entries = _now(reader)
    else:
        return _pieces(reader, closes=is_forked)
    if is_forked:
        reader.close()
    if flow.absent is not None:
        raise Missing(flow.absent)
    return as_value(joined(entries), argument)


def joined(entries: Sequence[Any]) -> Any:
    """The pieces of a value as one."""
    if len(entries) == 1:
        return entries[0]
    return b"".join(entry.encode() if isinstance(entry, str) else bytes(entry) for entry in entries)


def _now(reader: Reader) -> list[Any]:
    found: list[Any] = []
    while (entry := reader.take()) is not END:
        found.append(entry)
    return found


async def _pieces(reader: Reader, *, closes: bool) -> AsyncIterator[Any]:
    try:
        async for entry in reader.entries():
            yield entry
    finally:
        if closes:
            reader.close()


async def sequence(argument: ArgumentDefinition, sources: Sequence[Taken], *, is_forked: bool = False) -> Any:
    """The items of all sources, one source after the other: a list if they are few, else an async iterator.

    A single value is one item; what is absent is left out.
    """
    if all(one.flow.is_ended for one in sources):
        count = sum(1 if one.flow.depth == 0 else one.flow.spool.count for one in sources)
        if count <= _WHOLE_ITEMS and sum(one.flow.spool.put_bytes for one in sources) <= _WHOLE_BYTES:
            return [item async for item in _items(argument, sources, is_forked=is_forked)]
    return _items(argument, sources, is_forked=is_forked)


async def _items(argument: ArgumentDefinition, sources: Sequence[Taken], *, is_forked: bool) -> AsyncIterator[Any]:
    for taken in sources:
        if taken.flow.absent is not None:
            continue
        reader = taken.reader.fork() if is_forked else taken.reader
        if taken.flow.depth == 0:
            entries = await reader.rest()
            if taken.flow.absent is None:
                yield as_item(joined(entries), argument)
        else:
            async for entry in reader.entries():
                if not isinstance(entry, Absent):
                    yield as_item(entry, argument)
        if is_forked:
            reader.close()
