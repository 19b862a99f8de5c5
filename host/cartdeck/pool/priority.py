"""Owns the classes of sessions and requests: which gives way to which when places or memory are short.

It does not know who holds what, nor who asks.
"""

from enum import IntEnum
from typing import Final, TypeAlias

from cartdeck_protocol.errors import Code, failure


class Priority(IntEnum):
    """The class of a request, and of the session that serves it. The lowest gives way first."""

    OPPORTUNISTIC = 0
    """It is served from what nobody else needs: it never makes one of a higher class end."""
    STANDARD = 1
    CRITICAL = 2
    """The last to give way."""
    HELD = 3
    """What a server itself cannot do without, such as a guard: never evicted."""

    @property
    def word(self) -> str:
        return self.name.lower()

    def may_evict(self, other: "Priority") -> bool:
        """Whether a request of this class may make an idle session of the other one end."""
        return other is not Priority.HELD and (self is not Priority.OPPORTUNISTIC or other is Priority.OPPORTUNISTIC)


WORDS: Final = tuple(one.word for one in Priority if one is not Priority.HELD)
PriorityName: TypeAlias = Priority | str
"""A class, or one of its words."""


def priority_of(given: PriorityName) -> Priority:
    """The class that a caller names. Raises BAD_ARGUMENT."""
    if isinstance(given, Priority):
        return given
    if given in WORDS:
        return Priority[given.upper()]
    message = f"{given!r:.60} is no class; expected one of: {', '.join(WORDS)}"
    raise failure(Code.BAD_ARGUMENT, message, argument="priority")
