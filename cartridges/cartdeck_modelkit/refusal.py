"""Owns refusing by name: what a definition allows and a cartridge cannot do, and an argument whose value is at fault.

It does not know what a cartridge can do.
"""

from collections.abc import Generator
from contextlib import contextmanager

from cartdeck_protocol.errors import CartdeckError, Code, ErrorClass, failure
from cartdeck_sdk import Request

NO_EFFECT = "has no effect on this kind of model in this cartridge; leave it out"


def refuse_given(request: Request, *names: str, why: str = NO_EFFECT) -> None:
    """Raises `UNSUPPORTED` for an argument that the caller gave, with another value than its default."""
    arguments = request.definition.arguments
    for name in names:
        if name in arguments and request.is_given(name) and request[name] != arguments[name].default:
            raise failure(Code.UNSUPPORTED, f"{name} {why}", argument=name)


@contextmanager
def blaming(argument: str, **details: int) -> Generator[None]:
    """Has an error of the input that is raised inside name this argument, with `details`: what is said of a file, or by
    a peer, does not know for which of them the file was named."""
    try:
        yield
    except CartdeckError as error:
        if error.error_class is ErrorClass.INPUT:
            error.argument = argument
            error.details.update(details)
        raise
