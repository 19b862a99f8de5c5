"""Owns how a person is told of a cap's argument that they gave as an option: by the option's name.

It does not know which options a command has, nor what caps mean by their arguments.
"""

import re
from collections.abc import Collection

from cartdeck_protocol.errors import CartdeckError, from_wire


def with_options(error: CartdeckError, options: Collection[str]) -> CartdeckError:
    """The error as those read it who know `options` alone: `--beams: found the number 99` for `beams: …`. The same
    error where its argument is none of them. Programs are told of arguments: their records stay as they are."""
    name = error.argument or ""
    option = f"--{name}"
    if option not in options:
        return error
    # The places in which messages name an argument, and no others: a name may be a plain word, too.
    places = rf"^{re.escape(name)}(?=: | is )|(?<=\bneeds ){re.escape(name)}(?=,)|(?<=\bwith ){re.escape(name)}(?=,)"
    message = re.sub(places, option, error.message)
    return from_wire({**error.to_wire(), "argument": option, "message": message})
