"""Owns the start of a cartridge: guard the pipes, import, serve, exit.

It does not know the protocol.
"""

import asyncio
import importlib
import os
import signal
import sys

from cartdeck_sdk.guard import FramePipes, claim_pipes, die_with_parent


def serve_package(package: str) -> None:
    """Guard the pipes, then import `package` and serve its `cartridge`. Does not return.

    A package that has no `cartridge` keeps it in its module `handlers`, so that `python -m PACKAGE manifest` need not
    import them.
    """
    die_with_parent()
    pipes = claim_pipes()
    module = importlib.import_module(package)
    if not hasattr(module, "cartridge"):
        module = importlib.import_module(f"{package}.handlers")
    _serve(module.cartridge, pipes)


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
