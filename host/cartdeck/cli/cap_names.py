"""Owns what a name of a cap on the command line means: a URN, or an alias as `cartdeck caps` lists it.

It does not know who serves a cap, nor which cartridge is chosen.
"""

from collections.abc import Sequence

from cartdeck.router import parse_cap
from cartdeck_protocol.caps import CapDefinition


def cap_named(text: str, known: Sequence[CapDefinition]) -> str:
    """The cap to ask for. An alias whose URN does not hold its name, as `identity`, becomes that URN.

    Any other alias stays as it is: several cartridges may list it, and the router chooses among them.
    Raises BAD_ARGUMENT for what is no cap.
    """
    named = [one for one in known if one.alias == text]
    if not named:
        return text
    request = parse_cap(text)
    return text if any(one.urn.serves(request) for one in named) else str(named[0].urn)
