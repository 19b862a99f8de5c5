"""Owns the estimate of tokens where another server does not count: of what was asked, and of what it said.

It does not know its tokens. A rule of thumb for English: four bytes are a token; a piece of a stream is one or more.
"""

from collections.abc import Mapping
from typing import Any, Final

from cartdeck.server.fields import as_list, as_record

_TOKEN_BYTES: Final = 4


class Estimate:
    """The count of one answer as it comes in."""

    def __init__(self) -> None:
        self._pieces = 0
        self._size_bytes = 0
        self._tokens = 0

    def add_piece(self, text: str) -> None:
        """A piece of a text, or of a call's name and arguments."""
        if text:
            self._pieces += 1
            self._size_bytes += _size_bytes(text)

    def add_tokens(self, count: int) -> None:
        """So many tokens were told with their log-probabilities."""
        self._tokens += count

    def usage(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The counts, marked as an estimate. `fields` is the request."""
        made = self._tokens or max(self._pieces, _tokens(self._size_bytes))
        return {
            "prompt_tokens": _tokens(sum(_size_bytes(one) for one in _texts(fields))),
            "completion_tokens": made,
            "cached_tokens": 0,
            "is_estimate": True,
        }


def _texts(fields: Mapping[str, Any]) -> list[str]:
    """What a request has the model read; images are not counted."""
    told = [*as_list(fields.get("prompt") or []), *as_list(fields.get("input") or [])]
    for message in fields.get("messages") or ():
        for part in as_list(as_record(message).get("content") or []):
            told.append(part if isinstance(part, str) else as_record(part).get("text"))
    return [one for one in told if isinstance(one, str)]


def _size_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _tokens(size_bytes: int) -> int:
    return -(-size_bytes // _TOKEN_BYTES)
