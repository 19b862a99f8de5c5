"""Owns the question to the host before something large is loaded: may this process hold so much memory?

It does not know how the host makes room, nor what is loaded.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, cast

from cartdeck_modelkit.machine import resident_memory_bytes
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.progress import LOADING
from cartdeck_sdk import Request


@dataclass(frozen=True, slots=True)
class Reservation:
    """What the host granted, in bytes. None where the host sets no limit."""

    granted_bytes: int
    budget_bytes: int | None = None
    """What all instances may hold together."""
    free_bytes: int | None = None
    """What is left of it beside this grant."""


async def reserve_memory(request: Request, size_bytes: int) -> Reservation | None:
    """Have the host grant this process `size_bytes` of memory in all, for what it is about to load.

    The host ends instances that nobody uses, and waits while others are busy; the caller sees what it waits for. It
    replaces what was granted before; 0 gives that back and asks how much there is. None from a host that keeps no
    account of memory: then the load goes on without. Raises `INSUFFICIENT_MEMORY` with `need`, `free` and `holders`,
    and `PEER_DEADLOCK` where the own chain of calls holds what is missing.
    """
    span = (LOADING.base, LOADING.base)
    try:
        answer = await request.peer.call("cap:reserve-memory", {"bytes": size_bytes}).collect(forward_progress=span)
    except CartdeckError as error:
        if error.code is Code.NO_SUCH_CAP:
            return None
        raise
    try:
        record = cast("dict[str, Any]", json.loads(answer.data))
        return Reservation(record["granted_bytes"], record["budget_bytes"], record["free_bytes"])
    except (ValueError, KeyError, TypeError) as error:
        message = f"the host answered a question for memory with what is no grant: {answer.data[:200]!r}"
        raise failure(Code.HANDLER_FAILED, message, phase="load") from error


class Holdings:
    """What a process holds, in parts that come and go each for itself: the host is asked for all of them together, and
    for what the process itself took when it asked first."""

    def __init__(self) -> None:
        self._parts: dict[str, int] = {}
        self._bare_bytes = 0
        self._turn = asyncio.Lock()

    def size_of(self, part: str) -> int:
        """What was granted for a part, in bytes; 0 for one that was not asked for."""
        return self._parts.get(part, 0)

    async def hold(self, request: Request, part: str, size_bytes: int) -> Reservation | None:
        """Have the host grant `size_bytes` for a part, beside the others; it replaces what the part had. 0 gives that
        back and asks how much there is. Raises what `reserve_memory` raises; then everything is as it was."""
        async with self._turn:
            self._bare_bytes = self._bare_bytes or resident_memory_bytes()
            wanted = {**self._parts, part: size_bytes}
            total = sum(wanted.values())
            granted = await reserve_memory(request, total + self._bare_bytes if total else 0)
            self._parts = wanted
            return granted
