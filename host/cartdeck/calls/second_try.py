"""Owns the second try of calls whose load ran out of memory: others are ended to make room, and it is sent again.

It does not know how much memory there is: a device of its own may have run out, of which the engine keeps no account.
"""

import logging
from collections.abc import Callable, Collection
from typing import Final

from cartdeck.pool.priority import Priority
from cartdeck.request import Request
from cartdeck.sessions.session import Session
from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_protocol.wire import Failed

_LOGGER = logging.getLogger("cartdeck.pool.memory")

LOADING_PHASES: Final = frozenset({"load", "loading"})
"""Of the error, or of the call's last progress: nothing was done yet that a second try would repeat."""

_TRIED: Final = "tried_again"
"""In the details of an OUT_OF_MEMORY that is told: whether it was."""


class SecondTry:
    """The calls that wait for others to be gone. Each call has one second try."""

    def __init__(
        self, *, make_room: Callable[[Session, Priority], Collection[Session]], enter: Callable[[Request], None]
    ) -> None:
        """`make_room(session, priority)` ends all idle instances but that one that give way to that class, and says
        which are on their way out; `enter` brings a request to its door again."""
        self._make_room = make_room
        self._enter = enter
        self._waiting: dict[Request, set[Session]] = {}

    def take(self, session: Session, event: Failed) -> bool:
        """A request at `session` failed: whether it is tried again, so that its caller hears nothing of it yet.

        It is when its load ran out of memory, nothing of its output was seen, its arguments can be sent again, and
        room can be made.
        """
        request: Request = event.exchange.owner
        leaving = set(self._make_room(session, request.priority)) if self._is_worth_it(request, event) else None
        if not leaving:
            # For those whose peer call this was: they need not try it again.
            event.error.details.setdefault(_TRIED, request.is_second_try)
            return False
        request.send_again()
        self._waiting[request] = leaving
        names = ", ".join(sorted(str(one.key) for one in leaving))
        _LOGGER.warning("%s ran out of memory; it is tried again without %s", request.title, names)
        count = "another instance is" if len(leaving) == 1 else f"{len(leaving)} other instances are"
        request.on_notice(f"out of memory: {count} ended to make room, then it is tried again", "queued")
        return True

    def _is_worth_it(self, request: Request, event: Failed) -> bool:
        error, exchange = event.error, event.exchange
        return (
            error.code is Code.OUT_OF_MEMORY
            and _TRIED not in error.details
            and (error.phase in LOADING_PHASES or request.phase in LOADING_PHASES)
            and not (request.is_answered or request.is_second_try or exchange.cancelled or exchange.total_in)
            and request.can_be_sent_again()
        )

    def on_gone(self, session: Session) -> None:
        """The process of a session is gone."""
        for request, leaving in tuple(self._waiting.items()):
            leaving.discard(session)
            if not leaving and self._waiting.pop(request, None) is not None:
                request.is_waiting = False
                try:
                    self._enter(request)
                except CartdeckError as error:
                    request.fail(error)

    def leave(self, request: Request) -> bool:
        """The request does not want to wait any more; whether it did here."""
        if self._waiting.pop(request, None) is None:
            return False
        request.is_waiting = False
        return True

    def fail_all(self, error: CartdeckError) -> None:
        waiting, self._waiting = self._waiting, {}
        for request in waiting:
            request.fail(error)
