"""Owns the start of a cartridge's program: its command, environment, limits and log.

It does not know what is said to it.
"""

import contextlib
import logging
import os
import resource
import shutil
from pathlib import Path

import anyio.to_thread

from cartdeck.cartridge_file import Limits
from cartdeck.discovery import Cartridge
from cartdeck.environment import HEARTBEAT_VARIABLE, KEEPALIVE_VARIABLE, child_environment, new_session_mark
from cartdeck.sessions.leftover import private_folder
from cartdeck.sessions.log_ring import LogRing
from cartdeck.sessions.network_cut import network_cut
from cartdeck.sessions.process import Process, spawn
from cartdeck.settings import Settings
from cartdeck_protocol.errors import CartdeckError, Code, failure


async def prepare(cartridge: Cartridge) -> None:
    """Raises HASH_MISMATCH where what was installed is not what is there now. Others start without a wait."""
    if cartridge.file is not None and cartridge.file.installed is not None:
        await anyio.to_thread.run_sync(cartridge.verify)


def launch(cartridge: Cartridge, settings: Settings) -> Process:
    """Start the program of `cartridge`. Its stderr goes to the logger cartdeck.cartridge.NAME, a line each, and to
    the process's ring. Raises START_FAILED."""
    logger = logging.getLogger(f"cartdeck.cartridge.{cartridge.name}")
    environment = environment_of(cartridge, settings)
    folder = _private_folder(settings)
    if folder is not None:
        environment.update({name: str(folder) for name in ("TMPDIR", "TEMP", "TMP")})
    log = LogRing(ring_bytes=settings.log.ring_bytes, line_bytes=settings.log.line_bytes, on_line=logger.info)
    try:
        process = spawn(
            (*_without_network(cartridge, settings), *cartridge.command),
            environment=environment,
            log=log,
            pipe_bytes=settings.wire.pipe_bytes,
            folder=None if cartridge.file is None else cartridge.file.working_directory,
        )
    except CartdeckError:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    process.private_folder = folder
    _limit(process.pid, limits_of(cartridge, settings))
    return process


def environment_of(cartridge: Cartridge, settings: Settings) -> dict[str, str]:
    """The whole environment of one process of `cartridge`, with a mark of its own."""
    file = cartridge.file
    may_use_network = cartridge.name in settings.network
    said = settings.models.variables() if may_use_network else {}
    return child_environment(
        mark=new_session_mark(),
        may_use_network=may_use_network,
        asks_for_network=_asks_for_network(cartridge),
        durations={
            KEEPALIVE_VARIABLE: settings.health.keepalive_s,
            HEARTBEAT_VARIABLE: settings.health.heartbeat_s,
        },
        host_pid=os.getpid() if cartridge.is_child_of_host else None,
        extra=(*settings.pass_environment, *(() if file is None else file.environment)),
        source={**os.environ, **said},
    )


def limits_of(cartridge: Cartridge, settings: Settings) -> Limits:
    """What one process may take: as the settings say, else as the cartridge's file does."""
    own = Limits() if cartridge.file is None else cartridge.file.limits
    said = settings.limits.get(cartridge.name)
    if said is None:
        return own
    return Limits(
        memory_bytes=said.memory_bytes or own.memory_bytes,
        open_files=said.open_files or own.open_files,
        niceness=said.niceness or own.niceness,
    )


def memory_excess(cartridge: Cartridge, settings: Settings, process: Process | None) -> CartdeckError | None:
    """The error for the callers of a process that holds more memory than its limit; None while it does not."""
    limit = limits_of(cartridge, settings).memory_bytes
    held = process.rss_bytes() if limit and process is not None else None
    if held is None or held <= limit:
        return None
    message = (
        f"{cartridge.name} holds {held / 1e6:.0f} MB, more than its limit of {limit / 1e6:.0f} MB, so its process was "
        f"ended; the limit is limits.{cartridge.name}.memory_bytes in the settings, or that of its cartridge.toml"
    )
    return failure(Code.OUT_OF_MEMORY, message, details={"rss_bytes": held, "limit_bytes": limit})


def _without_network(cartridge: Cartridge, settings: Settings) -> tuple[str, ...]:
    may = cartridge.name in settings.network or _asks_for_network(cartridge)
    return () if may or settings.isolation.network == "off" else network_cut().prefix


def _asks_for_network(cartridge: Cartridge) -> bool:
    return cartridge.manifest.network or (cartridge.file is not None and cartridge.file.network)


def _private_folder(settings: Settings) -> Path | None:
    """None also where none can be made: a full disk is the trouble of who writes to it."""
    with contextlib.suppress(OSError):
        return private_folder() if settings.isolation.private_folder else None
    return None


def _limit(pid: int, limits: Limits) -> None:
    """Set from outside, in the moment after the start: the program has not read its first line then, and no wrapper
    process costs time. One that is gone already says so by its exit."""
    with contextlib.suppress(OSError, ValueError):
        if limits.niceness:
            os.setpriority(os.PRIO_PGRP, pid, os.getpriority(os.PRIO_PROCESS, 0) + limits.niceness)
    with contextlib.suppress(OSError, ValueError):
        if limits.open_files and hasattr(resource, "prlimit"):  # Linux
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (limits.open_files, limits.open_files))
