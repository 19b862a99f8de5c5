"""Owns `cartdeck serve-peers`: what a cartridge that runs without a host starts for its peer calls.

It does not know the calls. Frames come over standard input and leave over standard output; nothing else may.
"""

import os
import sys
from fcntl import F_DUPFD_CLOEXEC, fcntl

import typer

from cartdeck_protocol.errors import Code, failure


def serve_peers() -> None:
    """Serve the peer calls of a cartridge that runs without a host. A program starts this, not a person.

    Example: python -m cartdeck_echo relay --cap cap:echo --data hello
    """
    from cartdeck.cli.running import run_interruptible
    from cartdeck.engine import Engine
    from cartdeck.peers.desk import Desk
    from cartdeck.sessions.process import Pipes

    if os.isatty(0) or os.isatty(1):
        message = "it speaks frames on standard input and output; `python -m CARTRIDGE CAP …` starts it"
        raise failure(Code.BAD_ARGUMENT, message)
    pipes = Pipes(write=fcntl(1, F_DUPFD_CLOEXEC, 3), read=fcntl(0, F_DUPFD_CLOEXEC, 3))
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)  # whatever is printed leads to the log of the one who started this
    sys.stdout = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # for the life of the process
    for descriptor in (pipes.read, pipes.write):
        os.set_blocking(descriptor, False)

    async def work() -> None:
        async with Engine() as engine:
            await Desk(engine, pipes).run()

    run_interruptible(work)
    raise typer.Exit
