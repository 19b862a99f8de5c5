"""Owns HTTP with a hub: requests, redirects, the token, and what huggingface_hub knows of addresses and headers.

It does not know retries, files on disk or what a model is. The one module that imports huggingface_hub and its HTTP
library, so it is imported in worker threads alone. The token goes to the endpoint's own origin and nowhere else: a
redirect is followed here, step by step, and leaves it behind when it leads away.
"""
# pyright: basic
# huggingface_hub leaves types out, and the end of Xet transfers is not among its public names.

import json
import logging
import platform
import socket
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urljoin, urlsplit

import httpcore2
import httpx2
from huggingface_hub import __version__ as hub_version
from huggingface_hub import constants, get_token, hf_hub_url
from huggingface_hub.file_download import xet_get
from huggingface_hub.utils import XetFileData

from cartdeck_models.hub.digest import MOST_PIECES
from cartdeck_models.hub.refusal import Refusal, host_of
from cartdeck_models.settings import HubSettings
from cartdeck_protocol.errors import Code, failure

MOST_REDIRECTS = 10
MOST_JSON_BYTES = 64 * 1024 * 1024
CONNECT_LIMIT_S = 10.0
PIECE_BYTES = 1024 * 1024
LASTING_PIECES = MOST_PIECES + 2
"""A piece keeps its content until so many further ones, less one, have come: as long as it may wait to be hashed."""
LONGEST_PIECE_S = 0.1
LEAST_DIRECT_BYTES = 1024 * 1024
"""Answers from this size on are read from the connection itself, which is closed afterwards."""
USER_AGENT = f"cartdeck; hf_hub/{hub_version}; python/{platform.python_version()}"
"""Ours, since the library asks the hub a question of its own to make one."""
READ_BYTES = 256 * 1024
"""What is read from a connection at once. The library's 64 KiB cost three times the calls for each byte of content."""
_DEFAULT_PORTS = {"http": 80, "https": 443}

logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each address, and those of storage hold signatures
logging.getLogger("httpcore2").setLevel(logging.WARNING)
if hasattr(httpcore2.HTTP11Connection, "READ_NUM_BYTES"):  # its only knob; without it all works, a little slower
    httpcore2.HTTP11Connection.READ_NUM_BYTES = READ_BYTES  # pyright: ignore[reportAttributeAccessIssue]  # their constant


class RefusedError(Exception):
    """The hub answered, with no success."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.host} answers {refusal.status}")
        self.refusal = refusal


class BrokenError(Exception):
    """The connection failed: it was not made (`was_made` is False), brought nothing in time, or was cut."""

    def __init__(self, host: str, reason: str, *, was_made: bool, is_quiet: bool = False) -> None:
        super().__init__(f"{host}: {reason}")
        self.host = host
        self.reason = reason
        self.was_made = was_made
        self.is_quiet = is_quiet


class StrangeAnswerError(Exception):
    """The answer is a success in form, and not what a hub answers."""


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """An open answer. `first` is where its bytes begin in the file; `end` where they end, `size` the file's, if told.

    `url` is where it came from in the end.
    """

    url: str
    status: int
    first: int
    end: int | None
    size: int | None
    _response: httpx2.Response

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The bytes as they come, at most 1 MiB or a tenth of a second at once; each piece lasts as `LASTING_PIECES`
        says. Raises BrokenError."""
        with _foreign_errors(self.url):
            pieces, source = self._response.iter_raw(), self._socket
            length = self._response.headers.get("content-length", "")
            if source is None or not length.isdigit() or int(length) < LEAST_DIRECT_BYTES:
                yield from pieces
                return
            first = next(pieces, b"")  # all that the library has read so far
            yield first
            yield from _received(source, int(length) - len(first))

    def shut(self) -> None:
        """Wake whoever reads, from another thread: the connection is shut and then fails there."""
        source = self._socket
        if source is not None:
            with suppress(OSError):  # it was closed already
                source.shutdown(socket.SHUT_RDWR)

    @property
    def _socket(self) -> socket.socket | None:
        stream = self._response.extensions.get("network_stream")
        found = None if stream is None else stream.get_extra_info("socket")
        return found if isinstance(found, socket.socket) else None


def _received(source: socket.socket, size: int) -> Iterator[memoryview]:
    """The next `size` bytes of a connection, past the HTTP library: it takes twice the time of all else together.

    Raises OSError, and httpx2.RemoteProtocolError for an end that comes too soon.
    """
    buffers = cycle([memoryview(bytearray(PIECE_BYTES)) for _ in range(LASTING_PIECES)])
    while size > 0:
        held, begun_s, buffer = 0, time.monotonic(), next(buffers)
        error: Exception | None = None
        while held < min(PIECE_BYTES, size) and time.monotonic() - begun_s < LONGEST_PIECE_S:
            try:
                got = source.recv_into(buffer[held : min(PIECE_BYTES, size)])
            except OSError as found:
                error = found
                break
            if got == 0:
                error = httpx2.RemoteProtocolError("it ends too soon")
                break
            held += got
        size -= held
        if held:
            yield buffer[:held]
        if error is not None:
            raise error


class HubClient:
    """Requests to the hub of `settings`. Its methods may be called from several threads at once."""

    def __init__(self, settings: HubSettings) -> None:
        self.endpoint = settings.endpoint
        self._origin = _origin_of(settings.endpoint)
        self._settings = settings
        self._clients: dict[bool, httpx2.Client] = {}
        self._lock = threading.Lock()
        self._authorization: str | None = None
        self.renew_token()

    def renew_token(self) -> None:
        """Take the token that is set now: it may have come, or changed, since this process started.

        Raises AUTH_REQUIRED for one that cannot be had, or that is none.
        """
        try:
            token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
        except Exception as error:  # a file that cannot be read, a server of tokens that refuses, …
            raise failure(
                Code.AUTH_REQUIRED,
                f"The hub token cannot be had ({type(error).__name__}). Set HF_TOKEN, or log in again with "
                "`hf auth login`.",
            ) from None
        if token is not None and not (token.isascii() and token.isprintable()):
            raise failure(
                Code.AUTH_REQUIRED, "The hub token holds characters that no token has. Set HF_TOKEN to a valid one."
            )
        self._authorization = None if token is None else f"Bearer {token}"

    @property
    def has_token(self) -> bool:
        return self._authorization is not None

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()

    def _client_for(self, url: str) -> httpx2.Client:
        """The client for `url`'s scheme. Reading the certificates for TLS takes long: only where it is needed."""
        is_tls = urlsplit(url).scheme == "https"
        with self._lock:
            if is_tls not in self._clients:
                quiet_s = self._settings.quiet_limit_s
                self._clients[is_tls] = httpx2.Client(
                    verify=is_tls,
                    headers={"user-agent": USER_AGENT, "accept-encoding": "identity"},
                    follow_redirects=False,
                    timeout=httpx2.Timeout(quiet_s, connect=min(CONNECT_LIMIT_S, quiet_s)),
                    limits=httpx2.Limits(
                        max_connections=None, max_keepalive_connections=2 * self._settings.connections
                    ),
                )
            return self._clients[is_tls]

    def file_url(self, repository: str, commit: str, path: str) -> str:
        return hf_hub_url(repository, path, revision=commit, endpoint=self.endpoint)

    def api_url(self, repository: str, *parts: str, query: str = "") -> str:
        quoted = "/".join(quote(part, safe="") for part in parts)
        return f"{self.endpoint}/api/models/{repository}/{quoted}" + (f"?{query}" if query else "")

    def get_json(self, url: str) -> tuple[Any, str | None]:
        """The JSON at `url`, and the address of the next page. Raises RefusedError, BrokenError, StrangeAnswerError."""
        with self._opened(url, {}) as response, _foreign_errors(url):
            data = bytearray()
            for piece in response.iter_bytes():
                data += piece
                if len(data) > MOST_JSON_BYTES:
                    raise StrangeAnswerError(f"{host_of(url)} answers with more than {MOST_JSON_BYTES} bytes of JSON")
            try:
                value = json.loads(data)
            except ValueError:
                raise StrangeAnswerError(f"{host_of(url)} answers with something that is no JSON") from None
            following = response.links.get("next", {}).get("url")
        if following is None:
            return value, None
        following = urljoin(url, following)
        if _origin_of(following) != self._origin:
            raise StrangeAnswerError(f"{host_of(url)} continues its listing on {host_of(following)}")
        return value, following

    def check_xet(self, repository: str, commit: str) -> None:
        """Raises RefusedError or BrokenError where the hub gives no access to its Xet storage."""
        with self._opened(self._xet_route(repository, commit), {}) as response, _foreign_errors(str(response.url)):
            response.read()

    def fetch_by_xet(self, repository: str, commit: str, *, xet_hash: str, size: int, target: Path) -> None:
        """Write the content to `target` through the library for Xet. Blocks, also for ever; `stop_xet` ends it.

        Raises whatever that library raises.
        """
        headers = {"user-agent": USER_AGENT}
        if self._authorization is not None:
            headers["authorization"] = self._authorization
        xet_get(
            incomplete_path=target,
            xet_file_data=XetFileData(xet_hash, self._xet_route(repository, commit)),
            headers=headers,
            expected_size=size,
            tqdm_class=cast("Any", _SilentBar),
        )

    @staticmethod
    def stop_xet() -> None:
        """End all transfers through Xet in this process: the library knows no way to end one of them."""
        from huggingface_hub.utils import _xet  # noqa: PLC0415 - not public: where it is gone, they end by themselves

        with suppress(AttributeError):
            _xet.abort_xet_session()

    def _xet_route(self, repository: str, commit: str) -> str:
        return self.api_url(repository, "xet-read-token", commit)

    @contextmanager
    def opened(self, url: str, *, first: int = 0, end: int | None = None) -> Generator[Body]:
        """The bytes [first, end) at `url`, or all of them where the server does not do ranges: see `Body.first`.

        Raises RefusedError, BrokenError, StrangeAnswerError.
        """
        is_range = first > 0 or end is not None
        wanted = {"range": f"bytes={first}-" + ("" if end is None else str(end - 1))} if is_range else {}
        with self._opened(url, wanted) as response:
            yield _body(response)

    @contextmanager
    def _opened(self, url: str, headers: dict[str, str]) -> Generator[httpx2.Response]:
        for _ in range(MOST_REDIRECTS):
            with self._sent(url, headers) as response:
                if not response.has_redirect_location:
                    if response.status_code not in (200, 206):
                        raise RefusedError(_refusal(response))
                    yield response
                    return
                url = urljoin(url, response.headers["location"])
                if urlsplit(url).scheme not in ("http", "https"):
                    raise StrangeAnswerError(f"{host_of(str(response.url))} redirects to something that is not HTTP")
        raise StrangeAnswerError(f"{host_of(url)} redirects more than {MOST_REDIRECTS} times")

    @contextmanager
    def _sent(self, url: str, headers: dict[str, str]) -> Generator[httpx2.Response]:
        own = {"authorization": self._authorization} if self._authorization and _origin_of(url) == self._origin else {}
        with _foreign_errors(url):
            client = self._client_for(url)
            request = client.build_request("GET", url, headers={**headers, **own})
            response = client.send(request, stream=True)
        try:
            yield response
        finally:
            response.close()


class _SilentBar:
    """What the library for Xet takes for a progress bar; bytes on disk are what counts here."""

    def __init__(self, *_: object, **how: Any) -> None:
        self.n = 0
        self.total: float | None = how.get("total")
        self.desc = ""

    def __enter__(self) -> "_SilentBar":
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, *_: object) -> None: ...

    def refresh(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def set_description(self, *_: object, **__: object) -> None: ...

    set_description_str = set_postfix_str = set_description


@contextmanager
def _foreign_errors(url: str) -> Generator[None]:
    """The one place where the HTTP library's errors become ours. Their text is not shown: it may hold an address."""
    host = host_of(url)
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError, httpx2.UnsupportedProtocol) as error:
        raise BrokenError(host, _reason(error), was_made=False) from None
    except (httpx2.TimeoutException, TimeoutError):
        raise BrokenError(host, "it sends nothing", was_made=True, is_quiet=True) from None
    except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError) as error:
        raise BrokenError(host, _reason(error), was_made=True) from None


def _reason(error: Exception) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "no connection in time"
    if isinstance(error, httpx2.ConnectError):
        return str(error) or "no connection"
    return {"ReadError": "the connection was reset", "RemoteProtocolError": "the connection was cut"}.get(
        type(error).__name__, type(error).__name__
    )


def _refusal(response: httpx2.Response) -> Refusal:
    return Refusal(
        response.status_code, str(response.url), {name.lower(): value for name, value in response.headers.items()}
    )


def _body(response: httpx2.Response) -> Body:
    first, end, size = 0, None, None
    if response.status_code == 206:
        first, end, size = _content_range(response)
    elif response.headers.get("content-length", "").isdigit() and "content-encoding" not in response.headers:
        size = end = int(response.headers["content-length"])
    return Body(str(response.url), response.status_code, first, end, size, response)


def _content_range(response: httpx2.Response) -> tuple[int, int, int | None]:
    """`bytes 0-99/1000` as (0, 100, 1000)."""
    unit, _, rest = response.headers.get("content-range", "").partition(" ")
    span, _, size = rest.partition("/")
    first, _, last = span.partition("-")
    if unit != "bytes" or not first.isdigit() or not last.isdigit():
        raise StrangeAnswerError(f"{host_of(str(response.url))} answers 206 and does not say which bytes")
    return int(first), int(last) + 1, int(size) if size.isdigit() else None


def _origin_of(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
