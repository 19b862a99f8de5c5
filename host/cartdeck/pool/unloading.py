"""Owns the end of sessions that somebody asked for: nothing new goes in, what is open is finished, then they are gone.

It does not know why, nor what comes after them.
"""

import asyncio
from collections.abc import Iterable

from cartdeck.pool.door import Door
from cartdeck.sessions.session import Session


async def unload(doors: Iterable[Door]) -> None:
    """End the sessions behind these doors: each takes nothing new, finishes what is open, and is gone then.

    Who is cancelled meanwhile leaves them open to new calls again, unless another still waits for the same.
    """
    found = [(door, door.session) for door in doors if door.session is not None]
    for _, session in found:
        session.unloaders += 1
    try:
        await asyncio.gather(*(_unload(door, session) for door, session in found))
    finally:
        for _, session in found:
            session.unloaders -= 1


async def _unload(door: Door, session: Session) -> None:
    if door.starting is not None and door.session is session:
        await asyncio.wait([door.starting])
    await session.wait_idle()
    await asyncio.shield(session.end())
