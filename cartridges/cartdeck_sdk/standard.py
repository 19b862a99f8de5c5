"""Owns the two caps that every cartridge serves: identity, which proves the road, and discard.

It does not know the cartridge.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from cartdeck_sdk.output import Output
from cartdeck_sdk.request import Request


async def identity(request: Request, output: Output) -> None:
    """The bytes that came, unchanged."""
    async for chunk in request.stream("data"):
        await output.write(chunk)


async def discard(request: Request, output: Output) -> None:
    """Takes everything, answers nothing."""
    async for _ in request.stream("data"):
        pass
    output.finish()


STANDARD_HANDLERS: Final[dict[str, Callable[[Request, Output], Awaitable[None]]]] = {
    "identity": identity,
    "discard": discard,
}
