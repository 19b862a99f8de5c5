"""Owns the question to the host before something large is loaded: may this process hold so much memory?

It does not know how the host makes room, nor what is loaded.
"""

import json
from dataclasses import dataclass
from typing import Any, cast

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
