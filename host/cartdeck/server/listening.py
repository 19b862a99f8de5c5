"""Owns a server's life: the socket, the engine, uvicorn, and the end that a signal asks for.

It does not know what is served. A stop first takes no new requests, lets the open ones go on for `grace_s`, then ends
the engine, by which those that are left end with an error that says so.
"""

import asyncio
import errno
import gc
import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from cartdeck.engine import Engine
from cartdeck.server.app import make_app
from cartdeck.server.connection import connections
from cartdeck.server.gate import AccessLog
from cartdeck.server.models.directory import ModelDirectory
from cartdeck.server.options import ServerOptions
from cartdeck.server.service import Service
from cartdeck_protocol.errors import Code, failure

BACKLOG: Final = 2048
IDLE_S: Final = 75.0
"""A connection without a request is closed after this; longer than the proxies' usual 60."""
LAST_S: Final = 5.0
"""From the engine's end until connections are cut."""


def listen(options: ServerOptions) -> socket.socket:
    """The socket that the server listens on. Raises BAD_ARGUMENT for a host or port that cannot be had."""
    options.check()
    place = f"{options.host}:{options.port}"
    try:
        found = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except (OSError, UnicodeError) as error:
        message = f"The host {options.host} is not known: {getattr(error, 'strerror', None) or error}."
        raise failure(Code.BAD_ARGUMENT, message, argument="--host") from None
    family, _, _, _, address = found[0]
    # With its protocol named: asyncio turns Nagle's delay off for such sockets alone, and it would be 40 ms a request.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            message = f"{place} is in use by another process; name another --port, or 0 for any that is free."
        else:
            message = f"{place} cannot be listened on: {error.strerror}."
        raise failure(Code.BAD_ARGUMENT, message, argument="--port") from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """Where the server is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpServer:
    """One server on an engine that is open. `stop()` begins its end, `run()` returns when it is over."""

    def __init__(
        self,
        engine: Engine,
        directory: ModelDirectory,
        options: ServerOptions,
        *,
        log: AccessLog | None = None,
    ) -> None:
        self.service = Service(engine, directory, options)
        config = uvicorn.Config(
            make_app(self.service, log=log),
            loop="none",
            lifespan="off",
            http=connections(options.limits),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=int(IDLE_S),
            timeout_graceful_shutdown=int(options.grace_s + LAST_S) + 1,
        )
        self._server = uvicorn.Server(config)
        self._ending: asyncio.Task[None] | None = None

    async def run(self, listener: socket.socket, *, on_ready: Callable[[], None]) -> None:
        """Serve until `stop()`. `on_ready` is called when connections are taken."""
        config = self._server.config
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[listener])
        gc.collect()
        gc.freeze()  # what was imported lives as long as the server: walking it would hold all requests up for 45 ms
        on_ready()
        try:
            await self._server.main_loop()
        finally:
            self.stop()
            await self._server.shutdown(sockets=[listener])
            if self._ending is not None:
                self._ending.cancel()
            await self.service.servers.close()

    def stop(self) -> None:
        """Take no new requests, and end when the open ones have ended, or by force after the grace."""
        self._server.should_exit = True
        if not self.service.is_stopping:
            self.service.is_stopping = True
            self._ending = asyncio.get_running_loop().create_task(self._end_rest())

    async def _end_rest(self) -> None:
        await asyncio.sleep(self.service.options.grace_s)
        await self.service.close()
