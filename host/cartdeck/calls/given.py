"""Owns the first look at what a caller hands over: that arguments are a mapping, and what its limits may be.

It does not know caps; what an argument may be is checked against its definition, in `arguments`.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from cartdeck_protocol.errors import Code, failure

LONGEST_S: Final = 1e9
"""Some thirty years. A clock of the event loop takes no number of any size."""

_NOTHING: Final[Mapping[str, Any]] = {}


def checked_arguments(found: object) -> Mapping[str, Any]:
    """The arguments of a call by name; None are none. Raises BAD_ARGUMENT for what is no mapping with text as keys."""
    if found is None:
        return _NOTHING
    if type(found) is not dict and not isinstance(found, Mapping):
        raise failure(
            Code.BAD_ARGUMENT,
            f"the arguments are {_shown(found)}; expected a mapping of names to values, such as {{'prompt': 'Hi'}}",
        )
    for name in cast("Mapping[object, Any]", found):
        if type(name) is not str and not isinstance(name, str):
            raise failure(Code.BAD_ARGUMENT, f"an argument is named {_shown(name)}; expected a name that is text")
    return cast("Mapping[str, Any]", found)


def checked_timeout(found: object) -> float | None:
    """The time limit in seconds; None is no limit. Raises BAD_ARGUMENT for what is no number above 0."""
    if found is None:
        return None
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 < found <= LONGEST_S:  # false for NaN
        return float(found)
    raise failure(
        Code.BAD_ARGUMENT,
        f"timeout_s is {_shown(found)}; expected a number of seconds above 0 and up to {LONGEST_S:.0e}, "
        "or None for no limit",
        argument="timeout_s",
    )


def checked_keep_bytes(found: object) -> int | None:
    """How many bytes of output a result keeps; None where the setting says. Raises BAD_ARGUMENT for what is no whole
    number from 0."""
    if found is None or (isinstance(found, int) and not isinstance(found, bool) and found >= 0):
        return found
    raise failure(
        Code.BAD_ARGUMENT,
        f"keep_bytes is {_shown(found)}; expected a whole number of bytes from 0, or None for the setting's",
        argument="keep_bytes",
    )


def _shown(found: object) -> str:
    if isinstance(found, int) and abs(found) > 10**60:  # Python refuses to print thousands of digits
        return "a number with too many digits to show"
    return f"{found!r:.60} ({type(found).__name__})"
