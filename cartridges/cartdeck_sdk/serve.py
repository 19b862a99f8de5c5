"""Owns the start of a cartridge: guard the pipes, import, serve, exit.

It does not know the protocol.
"""

import asyncio
import importlib
import os
import signal
import sys
from types import ModuleType

from cartdeck_sdk.guard import FramePipes, claim_pipes, die_with_parent


def serve_package(package: str) -> None:
    """Guard the pipes, then import `package` and serve its `cartridge`. Does not return.

    A package that has no `cartridge` keeps it in its module `handlers`, so that `python -m PACKAGE manifest` need not
    import them. CARTRIDGE_UNAVAILABLE where there is no such package, or nothing in it to serve.
    """
    die_with_parent()
    pipes = claim_pipes()
    module = _imported(package, f"no package {package} is installed in this Python")
    if not hasattr(module, "cartridge"):
        nothing = f"the package {package} has neither a `cartridge` nor a module `handlers` that has one"
        module = _imported(f"{package}.handlers", nothing)
        if not hasattr(module, "cartridge"):
            raise _lacking(nothing)
    _serve(module.cartridge, pipes)


def _imported(name: str, if_absent: str) -> ModuleType:
    """The module `name`. What it imports itself and does not find is its own fault, and raised as it is."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise _lacking(if_absent) from None


def _lacking(message: str) -> Exception:
    from cartdeck_protocol.errors import Code, failure  # noqa: PLC0415  # after the guard, and only where it fails

    return failure(Code.CARTRIDGE_UNAVAILABLE, message)


def serve(cartridge: object) -> None:
    """For a cartridge with a command of its own: guard the pipes now and serve. Does not return."""
    die_with_parent()
    _serve(cartridge, claim_pipes())


def _serve(cartridge: object, pipes: FramePipes) -> None:
    from cartdeck_sdk.cartridge import Cartridge  # noqa: PLC0415  # after the guard: nothing is imported before it
    from cartdeck_sdk.service import Service  # noqa: PLC0415  # the same

    if not isinstance(cartridge, Cartridge):
        raise TypeError(f"`cartridge` must be a cartdeck_sdk.Cartridge, found {type(cartridge).__name__}")
    cartridge.check_complete()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's; the host closes the pipe or sends TERM

    async def run() -> int:
        return await Service(cartridge, pipes).run()

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    code = loop.run_until_complete(run())
    # worker threads may still be inside a native call: leave without waiting for them
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
