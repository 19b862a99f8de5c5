"""Owns what a server is told at its start: where it listens, who may ask, and every limit of a request.

It does not know how a limit is enforced; each is explained where it is declared, and README.md has the table.
"""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cartdeck_protocol.errors import Code, failure

KIB: Final = 1024
MIB: Final = 1024 * KIB
SHORTEST_KEY: Final = 8


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may be. Beyond a size is 413, beyond a count 400."""

    json_bytes: int = 32 * MIB
    """Of a JSON body, images as data URIs among it."""
    upload_bytes: int = 256 * MIB
    """Of a multipart body."""
    inputs: int = 2048
    """Texts to embed, or prompts to complete, in one request."""
    images: int = 16
    """Images of one dialogue."""
    audio_s: float = 4 * 3600.0
    """Seconds of a recording."""
    head_bytes: int = 64 * KIB
    """Of a request's line and headers, as far as they do not come at once: 431."""
    head_s: float = 60.0
    """From a connection, or the first byte of a further request, until the head is there: 408."""
    body_s: float = 60.0
    """How long a body may pause on its way: 408."""
    call_s: float | None = None
    """How long a call may take, waiting included; None is no limit of the server's own."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How one server runs."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0 lets the system choose."""
    keys: tuple[str, ...] = ()
    """Whoever asks must show one of these as a bearer token; none asks for no key."""
    origins: tuple[str, ...] = ()
    """Web pages of these origins may ask (CORS); "*" are all."""
    hosts: tuple[str, ...] = ()
    """Further names in the Host header that a server on loopback answers to."""
    comment_s: float = 15.0
    """A stream that has nothing to say sends a comment so often, which keeps proxies awake."""
    look_s: float = 1.0
    """How often a catalog is looked at: whether it changed, and which models are to be held or may go."""
    grace_s: float = 10.0
    """How long open requests may go on after the server was asked to stop."""
    allow_unguarded: bool = False
    """Caps and plans are run, and specs are names, also where models of the catalog have guards."""
    time_zone: str | None = None
    """Of the catalog's windows; None is that of this machine."""
    requests: int = 1024
    """Requests that are open at once; the next one is 503."""
    limits: RequestLimits = field(default_factory=RequestLimits)

    @property
    def is_local(self) -> bool:
        """Whether nobody outside of this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check(self) -> None:
        """Raises BAD_ARGUMENT for a server that the network could use without a key."""
        if not self.is_local and not self.keys:
            message = (
                f"{self.host} can be reached from other machines, and no key is asked for. Give --api-key-file FILE, "
                "or listen on 127.0.0.1."
            )
            raise failure(Code.BAD_ARGUMENT, message, argument="--host")


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys in a file, one a line; empty lines and those that begin with # are passed over.

    Raises FILE_NOT_FOUND, or BAD_ARGUMENT for a file without a key, with one that anybody could guess, or with one that
    no header can carry.
    """
    try:
        lines = path.expanduser().read_text("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"The key file {path} cannot be read: {reason}."
        raise failure(Code.FILE_NOT_FOUND, message, argument="--api-key-file") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys:
        raise failure(Code.BAD_ARGUMENT, f"The key file {path} holds no key.", argument="--api-key-file")
    if short := [number for number, key in enumerate(keys, 1) if len(key) < SHORTEST_KEY]:
        message = f"The key {short[0]} in {path} has fewer than {SHORTEST_KEY} characters."
        raise failure(Code.BAD_ARGUMENT, message, argument="--api-key-file")
    if odd := [number for number, key in enumerate(keys, 1) if not (key.isascii() and key.isprintable())]:
        message = f"The key {odd[0]} in {path} has characters that no header can carry; expected printable ASCII."
        raise failure(Code.BAD_ARGUMENT, message, argument="--api-key-file")
    return keys
