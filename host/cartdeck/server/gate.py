"""Owns what every request passes first: the key, the page that it comes from, the number of open ones; and what is
counted and logged of it.

It does not know the paths' meaning. Plain ASGI: a wrapper that reads responses would hide from endpoints that their
client went away.
"""

import hmac
import ipaddress
import re
import time
from collections.abc import Callable
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cartdeck.server.external.servers import HOPS, HOPS_HEADER, hops_of
from cartdeck.server.json_response import error_response
from cartdeck.server.options import ServerOptions
from cartdeck.server.refusal import CLIENT_GONE, Refused
from cartdeck.server.service import Service
from cartdeck_protocol.errors import CartdeckError, ErrorClass

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/"})
"""For whoever watches the server, and the page: they say nothing but whether it works, and ask for no key."""
OPEN_FOLDER: Final = "/page/"
"""The page's files."""
_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]@/?#\s]*))(?::[0-9]*)?")
AccessLog = Callable[[dict[str, Any]], None]


class Gate:
    """Wraps an application."""

    def __init__(self, app: ASGIApp, service: Service, *, log: AccessLog | None = None) -> None:
        self._app = app
        self._service = service
        self._log = log
        self._keys = [key.encode() for key in service.options.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        service, metrics = self._service, self._service.metrics
        passage = Passage(scope, send, service)
        service.open_requests += 1
        metrics.open.inc()
        try:
            await self._pass(scope, passage, receive)
        finally:
            service.open_requests -= 1
            metrics.open.dec()
            passage.count()
            if self._log is not None:
                self._log(passage.record())

    async def _pass(self, scope: Scope, passage: "Passage", receive: Receive) -> None:
        try:
            self._check(scope)
        except (CartdeckError, Refused) as error:
            await error_response(error)(scope, receive, passage.send)
            return
        HOPS.set(hops_of(Headers(scope=scope).get(HOPS_HEADER, "")))
        await self._app(scope, passage.receiver(receive), passage.send)

    def _check(self, scope: Scope) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        check_page(headers, self._service.options)
        if path in OPEN_PATHS or path.startswith(OPEN_FOLDER):
            return
        if self._keys and scope["method"] != "OPTIONS":
            self._check_key(headers)
        if scope["method"] == "POST":  # who only looks is let in: a full server is what one wants to look at
            self._service.check_open()

    def _check_key(self, headers: Headers) -> None:
        """Raises Refused 401. Each key is compared in constant time, and all of them are."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        shown = given.strip().encode() if scheme.lower() == "bearer" else b""
        if not sum(hmac.compare_digest(shown, key) for key in self._keys):
            message = "The API key is wrong." if shown else "An API key is needed, as `Authorization: Bearer KEY`."
            raise Refused(
                401, "INVALID_API_KEY", message, error_class=ErrorClass.USER.value,
                headers=(("www-authenticate", "Bearer"),),
            )  # fmt: skip  # one thought


def check_page(headers: Headers, options: ServerOptions) -> None:
    """Raises Refused 403 for a request that a web page makes without leave.

    A browser sends the page's origin along; the server's own page has the server's. A page whose own name leads to this
    machine (DNS rebinding) is found by the name that it was asked under, in Host.
    """
    origin, host = headers.get("origin"), headers.get("host", "")
    is_own = origin is not None and bool(host) and origin in (f"http://{host}", f"https://{host}")
    if origin is not None and not is_own and origin not in options.origins and "*" not in options.origins:
        message = f"Web pages of {origin[:200]} may not ask here; --allow-origin lets them."
        raise Refused(403, "FORBIDDEN_ORIGIN", message, error_class=ErrorClass.USER.value)
    if options.is_local and not options.keys and not _is_local_name(host, options.hosts):
        message = f"This server is not known as {headers['host'][:200]}; --allow-host makes it so."
        raise Refused(403, "FORBIDDEN_HOST", message, error_class=ErrorClass.USER.value)


def _is_local_name(host: str, further: tuple[str, ...]) -> bool:
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found["name"] or found["v6"] or ""
    if not name or name.lower() in ("localhost", *further) or name.lower().endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True  # an address is no name that somebody else could point here


class Passage:
    """One request on its way through: what it was, and what became of it."""

    def __init__(self, scope: Scope, send: Send, service: Service) -> None:
        self._scope = scope
        self._send = send
        self._service = service
        self._began_s = time.monotonic()
        self._status = CLIENT_GONE
        self._sent_bytes = 0
        self._received_bytes = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif message["type"] == "http.response.body":
            self._sent_bytes += len(message.get("body", b""))
        await self._send(message)

    def receiver(self, receive: Receive) -> Receive:
        async def counted() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                self._received_bytes += len(message.get("body", b""))
            return message

        return counted

    @property
    def path(self) -> str:
        """The route's path, so that the figures of paths with names in them stay few."""
        route = self._scope.get("route")
        return str(getattr(route, "path", None) or "other")

    def count(self) -> None:
        metrics = self._service.metrics
        metrics.requests.labels(self.path, str(self._status)).inc()
        metrics.seconds.labels(self.path).observe(time.monotonic() - self._began_s)
        metrics.received.inc(self._received_bytes)
        metrics.sent.inc(self._sent_bytes)

    def record(self) -> dict[str, Any]:
        """What a log says of it."""
        client = self._scope.get("client")
        return {
            "method": self._scope["method"],
            "path": self._scope["path"],
            "status": self._status,
            "seconds": round(time.monotonic() - self._began_s, 4),
            "received_bytes": self._received_bytes,
            "sent_bytes": self._sent_bytes,
            "client": None if client is None else client[0],
        }
