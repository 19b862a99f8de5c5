"""Owns the HTTP client for other servers: its connections, which are kept; the keys; the time it waits.

It does not know what is asked. A key is read from the environment when it is used, goes to the address that the catalog
names and to no other (no redirect is followed), and stands in no message.
"""

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from cartdeck import __version__
from cartdeck.server.external.failing import broken_off, key_problem, refused, unreachable
from cartdeck.server.external.place import Place
from cartdeck_protocol.errors import Code, failure

if TYPE_CHECKING:
    import httpx2

CONNECT_S: Final = 10.0
SILENCE_S: Final = 600.0
"""So long may another server say nothing; a prompt may take it minutes."""
KEPT_CONNECTIONS: Final = 64
KEPT_S: Final = 30.0
MOST_ERROR_BYTES: Final = 64 * 1024
HOPS_HEADER: Final = "x-cartdeck-hops"
MOST_HOPS: Final = 4
HOPS: Final[ContextVar[int]] = ContextVar("hops", default=0)
"""How many servers passed the request on before it came here: two that name each other would ask for ever."""
_HERE: Final = ("127.0.0.1", "localhost", "[::1]")


class Servers:
    """The ways to other servers. Nothing is opened, nor is the client's library loaded, before the first request."""

    def __init__(self) -> None:
        self._client: httpx2.AsyncClient | None = None
        self.stopping: list[Callable[[], None]] = []
        """What ends the calls that are open."""
        self.uncounting: set[str] = set()
        """The addresses that refuse stream_options: they are asked without."""

    def stop(self) -> None:
        """End the calls that are open, with an error that says so."""
        for end in tuple(self.stopping):
            end()

    @asynccontextmanager
    async def post(
        self, place: Place, path: str, *, data: Any = None, files: Any = None, content: bytes | None = None
    ) -> "AsyncGenerator[httpx2.Response]":
        """A request; its answer, to be read inside the block. Raises the typed error, also for what fails inside."""
        headers = self._headers(place)
        client = self._opened()
        import httpx2  # noqa: PLC0415  # only where a catalog names another server

        if content is not None:
            headers["content-type"] = "application/json"
        has_begun = False
        try:
            asked = client.build_request(
                "POST", f"{place.url}{path}", content=content, data=data, files=files, headers=headers
            )
            response = await client.send(asked, stream=True)
            try:
                if not response.is_success:
                    raise refused(place, response.status_code, dict(response.headers), await _beginning(response))
                has_begun = True
                yield response
            finally:
                await response.aclose()
        except httpx2.TimeoutException as error:
            if isinstance(error, httpx2.ReadTimeout):
                message = f"{place} said nothing for {SILENCE_S:g} s."
                raise failure(Code.STALLED, message, phase="external") from None
            raise unreachable(place, error) from None
        except httpx2.TransportError as error:
            raise (broken_off(place, error) if has_begun else unreachable(place, error)) from None
        except (httpx2.InvalidURL, httpx2.DecodingError, UnicodeError) as error:
            raise unreachable(place, error) from None

    async def close(self) -> None:
        """Close the connections that are kept."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _headers(self, place: Place) -> dict[str, str]:
        """Raises AUTH_REQUIRED for a key that is not there, BAD_ARGUMENT for a request that goes in a circle."""
        hops = HOPS.get() + 1
        if hops > MOST_HOPS:
            message = f"{place} and this server pass the request on to each other: {hops - 1} servers have had it."
            raise failure(Code.BAD_ARGUMENT, message, phase="external", argument="model")
        headers = {HOPS_HEADER: str(hops), "user-agent": f"cartdeck/{__version__}"}
        if place.key_variable is not None:
            key = os.environ.get(place.key_variable, "").strip()
            if not key or not key.isascii() or not key.isprintable():
                raise key_problem(place, "is not set" if not key else "holds characters that no key has")
            headers["authorization"] = f"Bearer {key}"
        return headers

    def _opened(self) -> "httpx2.AsyncClient":
        """Raises CARTRIDGE_UNAVAILABLE where the library is not installed."""
        if self._client is None:
            try:
                import httpx2  # noqa: PLC0415  # only where a catalog names another server
            except ImportError:
                command = "pip install 'cartdeck[server]'"
                details = {"install": [command], "remedy": f"Install it: {command}"}
                message = "To ask another server httpx2 is needed"
                raise failure(Code.CARTRIDGE_UNAVAILABLE, message, details=details) from None
            self._client = httpx2.AsyncClient(
                timeout=httpx2.Timeout(SILENCE_S, connect=CONNECT_S, pool=CONNECT_S),
                limits=httpx2.Limits(
                    max_connections=None, max_keepalive_connections=KEPT_CONNECTIONS, keepalive_expiry=KEPT_S
                ),
                mounts={f"all://{name}": None for name in _HERE},  # no proxy leads to this machine itself
                follow_redirects=False,
            )
        return self._client


def hops_of(told: str) -> int:
    """The number in a request's header; 0 for what is none."""
    return min(int(told), 1000) if told.isdecimal() and len(told) < 5 else 0


async def _beginning(response: "httpx2.Response") -> bytes:
    """So much of a refusal as is looked at."""
    data = b""
    async for piece in response.aiter_bytes():
        data += piece
        if len(data) >= MOST_ERROR_BYTES:
            break
    return data[:MOST_ERROR_BYTES]
