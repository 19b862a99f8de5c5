"""Owns what a hub's refusal means: status and headers become a typed error that says what to do next.

It does not know how the request was sent. A hub's own words are shown without any token, and cut at 300 characters.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from time import time
from typing import Any
from urllib.parse import urlsplit

from cartdeck_protocol.errors import CartdeckError, Code, failure

PHASE = "download"
LONGEST_WORDS = 300
_DISABLED = "Access to this resource is disabled."
_BAD_CREDENTIALS = "Invalid credentials in Authorization header"
_SECRET = re.compile(r"(?:hf_|api_org_|Bearer\s+)[A-Za-z0-9._-]{4,}")
_RESET = re.compile(r"\br\s*=\s*0\b.*?\bt\s*=\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, for a message: of which hub, with a token or not."""

    endpoint: str
    repository: str
    revision: str = "main"
    path: str | None = None
    has_token: bool = False

    @property
    def what(self) -> str:
        return f"{self.repository}: {self.path}" if self.path else self.repository

    @property
    def host(self) -> str:
        return host_of(self.endpoint)

    @property
    def page(self) -> str:
        """Where a person reads about the repository, and accepts its licence."""
        return f"{shown_url(self.endpoint)}/{self.repository}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is no success: its status, and its headers by lower-case name."""

    status: int
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def code(self) -> str:
        return self.headers.get("x-error-code", "")

    @property
    def words(self) -> str:
        """What the hub says about it; nothing secret, and not much."""
        text = _SECRET.sub("…", self.headers.get("x-error-message", "")).strip()
        return text if len(text) <= LONGEST_WORDS else text[:LONGEST_WORDS] + "…"

    @property
    def host(self) -> str:
        return host_of(self.url)

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status in (408, 425, 429, 500, 502, 503, 504)

    @property
    def is_rate_limit(self) -> bool:
        return self.status == 429 or (self.status == 503 and "retry-after" in self.headers)

    @property
    def retry_after_s(self) -> float | None:
        """How long the hub asks to wait: `RateLimit` of an exhausted window, else `Retry-After` in either form."""
        reset = _RESET.search(self.headers.get("ratelimit", "")) if self.status == 429 else None
        if reset is not None:
            return float(reset[1])
        text = self.headers.get("retry-after", "").strip()
        if text.isascii() and text.isdigit():
            return float(text)
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - time())
        except (ValueError, TypeError, OverflowError):
            return None


def host_of(url: str) -> str:
    """The host of `url`, with its port where it names one: what a person can check. No credentials, no path."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an unreadable address"
    return f"{parts.hostname or '?'}{port}"


def shown_url(url: str) -> str:
    """`url` without credentials and query, which may hold secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{host_of(url)}{parts.path}"


def refused(refusal: Refusal, asked: Asked) -> CartdeckError:
    """The typed error for a refusal that waiting does not mend."""
    says = f" It says: {refusal.words}" if refusal.words else ""
    details = {"status": refusal.status, "host": refusal.host, "repository": asked.repository}
    return (
        _gated(refusal, asked, details)
        or _unknown_thing(refusal, asked, details, says)
        or _denied(refusal, asked, details, says)
        or _unwell(refusal, asked, details, says)
    )


def _gated(refusal: Refusal, asked: Asked, details: dict[str, Any]) -> CartdeckError | None:
    if refusal.code != "GatedRepo":
        return None
    details = {**details, "page": asked.page}
    if refusal.status == 401 or not asked.has_token:
        return failure(
            Code.GATED,
            f"{asked.repository} is gated: only an account with access may fetch it, and "
            + ("the hub does not accept the token." if asked.has_token else "no hub token is set.")
            + f" Ask for access on {asked.page}, then set HF_TOKEN to that account's token.",
            argument="model",
            details=details,
        )
    return failure(
        Code.GATED_NOT_ACCEPTED,
        f"{asked.repository} is gated, and the account of the hub token has not got access. "
        f"Accept the licence (or ask for access) on {asked.page} with that account, then try again.",
        argument="model",
        details=details,
    )


def _unknown_thing(refusal: Refusal, asked: Asked, details: dict[str, Any], says: str) -> CartdeckError | None:
    if refusal.code == "RevisionNotFound":
        return failure(
            Code.REVISION_NOT_FOUND,
            f"{asked.repository} has no revision {asked.revision!r} (a branch, a tag or a commit).",
            argument="model",
            details=details,
        )
    if refusal.code == "EntryNotFound" or (refusal.status == 404 and asked.path and refusal.code != "RepoNotFound"):
        return failure(
            Code.FILE_NOT_FOUND,
            f"{asked.repository} has no file {asked.path!r} at revision {asked.revision}.",
            argument="model",
            details=details,
        )
    if refusal.status in (404, 410) or refusal.headers.get("x-error-message") == _DISABLED:
        hidden = "the token's account may not see it" if asked.has_token else "it is private, and no hub token is set"
        return failure(
            Code.MODEL_NOT_FOUND,
            f"{refusal.host} has no repository {asked.repository}, or {hidden}.{says}",
            argument="model",
            details=details,
        )
    return None


def _denied(refusal: Refusal, asked: Asked, details: dict[str, Any], says: str) -> CartdeckError | None:
    if refusal.status not in (401, 403):
        return None
    if refusal.status == 401 and not asked.has_token:
        message = (
            f"{refusal.host} asks who wants {asked.repository}: it is private, or there is no repository of that name. "
            "Check the name, or set HF_TOKEN to the token of an account that may see it."
        )
    elif refusal.status == 401 or refusal.words == _BAD_CREDENTIALS:
        message = (
            f"{refusal.host} does not accept the hub token: it is expired or mistyped, or {asked.repository} is not for"
            " its account. Set HF_TOKEN to a valid one, or unset it for what is public."
        )
    else:
        message = f"{refusal.host} forbids {asked.what}.{says} Check what the token may do, or use another account's."
    return failure(Code.AUTH_REQUIRED, message, argument="model", details=details)


def _unwell(refusal: Refusal, asked: Asked, details: dict[str, Any], says: str) -> CartdeckError:
    if refusal.status == 429:
        wait = refusal.retry_after_s
        return failure(
            Code.RATE_LIMITED,
            f"{refusal.host} allows no more requests for now (429), also after waiting."
            + (f" It asks to wait {wait:g} s." if wait is not None else " Try again in a few minutes.")
            + ("" if asked.has_token else " With a hub token its limits are higher."),
            phase=PHASE,
            details={**details, "retry_after_s": wait},
        )
    if refusal.status >= 500 or refusal.status in (407, 408, 425):
        why = "the proxy asks for credentials" if refusal.status == 407 else "it is not well"
        return failure(
            Code.ENDPOINT_UNREACHABLE,
            f"{refusal.host} answers {refusal.status} for {asked.what}: {why}.{says} Try again later.",
            phase=PHASE,
            details=details,
        )
    return failure(
        Code.ENDPOINT_UNREACHABLE,
        f"{refusal.host} answers {refusal.status} for {asked.what}, which a hub does not.{says} "
        "Check HF_ENDPOINT, and what is between here and there.",
        phase=PHASE,
        details=details,
    )
