"""Owns the start of a cartridge's program: its command, environment and log.

It does not know what is said to it.
"""

import logging
import os

from cartdeck.discovery import Cartridge
from cartdeck.environment import HEARTBEAT_VARIABLE, KEEPALIVE_VARIABLE, child_environment, new_session_mark
from cartdeck.sessions.log_ring import LogRing
from cartdeck.sessions.process import Process, spawn
from cartdeck.settings import Settings


def launch(cartridge: Cartridge, settings: Settings) -> Process:
    """Start the program of `cartridge`. Its stderr goes to the logger cartdeck.cartridge.NAME, a line each, and to
    the process's ring. Raises START_FAILED."""
    logger = logging.getLogger(f"cartdeck.cartridge.{cartridge.name}")
    may_use_network = cartridge.name in settings.network
    said = settings.models.variables() if may_use_network else {}
    environment = child_environment(
        mark=new_session_mark(),
        may_use_network=may_use_network,
        durations={
            KEEPALIVE_VARIABLE: settings.health.keepalive_s,
            HEARTBEAT_VARIABLE: settings.health.heartbeat_s,
        },
        host_pid=os.getpid() if cartridge.is_child_of_host else None,
        extra=settings.pass_environment,
        source={**os.environ, **said},
    )
    log = LogRing(ring_bytes=settings.log.ring_bytes, line_bytes=settings.log.line_bytes, on_line=logger.info)
    return spawn(cartridge.command, environment=environment, log=log, pipe_bytes=settings.wire.pipe_bytes)
