"""Owns how the vectors of a text's tokens become one: what a model's file says, and what may be asked for.

It does not know the engine beyond its numbers for each way.
"""

from enum import IntEnum
from typing import Final

from cartdeck_modelkit.gguf.header import Header
from cartdeck_protocol.errors import Code, failure


class Pooling(IntEnum):
    """llama.cpp's numbers. Of NONE and RANK there is no one vector for a text."""

    NONE = 0
    MEAN = 1
    CLS = 2
    LAST = 3
    RANK = 4


USABLE: Final = (Pooling.MEAN, Pooling.CLS, Pooling.LAST)
_WHY_NOT: Final = {
    Pooling.NONE: "one vector for each token and none for the text",
    Pooling.RANK: "a score of how well a text answers a question, and no vector",
}


def own_pooling(header: Header) -> Pooling | None:
    """What the file says; the mean where it says nothing, None for a number that is not known."""
    number = header.integer(f"{header.architecture}.pooling_type")
    try:
        return Pooling.MEAN if number is None else Pooling(number)
    except ValueError:
        return None


def choose_pooling(header: Header, asked: str | None) -> Pooling:
    """What was asked for, or what the file says.

    Raises `UNSUPPORTED` where the file says one that gives no vector, `BAD_ARGUMENT` for an unknown name.
    """
    names = ", ".join(one.name.lower() for one in USABLE)
    if asked is not None:
        chosen = next((one for one in USABLE if one.name.lower() == asked), None)
        if chosen is None:
            message = f"pooling is {asked!r:.60}, expected one of {names}"
            raise failure(Code.BAD_ARGUMENT, message, argument="pooling")
        return chosen
    own = own_pooling(header)
    if own is None or own not in USABLE:
        why = "a way of pooling that is not known here" if own is None else _WHY_NOT[own]
        message = f"{header.path.name} gives {why}; ask for one of {names} if that is what you want"
        raise failure(Code.UNSUPPORTED, message, argument="pooling", details={"pooling": str(own)})
    return own
