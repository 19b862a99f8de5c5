"""Owns refusing what a definition allows and a cartridge cannot do: by its name, never by leaving it out in silence.

It does not know what a cartridge can do.
"""

from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk import Request

NO_EFFECT = "has no effect on this kind of model in this cartridge; leave it out"


def refuse_given(request: Request, *names: str, why: str = NO_EFFECT) -> None:
    """Raises `UNSUPPORTED` for an argument that the caller gave, with another value than its default."""
    arguments = request.definition.arguments
    for name in names:
        if name in arguments and request.is_given(name) and request[name] != arguments[name].default:
            raise failure(Code.UNSUPPORTED, f"{name} {why}", argument=name)
