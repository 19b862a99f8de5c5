"""Owns a text as its tokens come, with what is told of each token: no more of either than a reader may see.

It does not know how a token is drawn, nor where text and records go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cartdeck_modelkit.text_stream import TextStream

_NOWHERE: Final = 2**62
"""Where the token ends that completes a stop string: beyond what is given out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token that was drawn, with its `logprob`, and the likeliest ones at its place as (id, text, logprob)."""

    id: int
    data: bytes
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()

    def as_event(self, index: int) -> dict[str, Any]:
        """The token as it travels on the output `events`, of the text `index`."""
        return {
            "type": "token",
            "index": index,
            "id": self.id,
            "text": self.data.decode("utf-8", errors="replace"),
            "bytes": list(self.data),
            "logprob": self.logprob,
            "top": [{"id": token, "text": text, "logprob": logprob} for token, text, logprob in self.top],
        }


class ToldText:
    """A text that grows by tokens. Records of tokens that reach into a stop string are never given out, those of tokens
    that may yet do so are held back with their text."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        """`stop` as `TextStream` takes it."""
        self._stream = TextStream(stop)
        self._held: list[tuple[int, TokenRecord]] = []

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text, or None while none did."""
        return self._stream.stopped_by

    def push(self, data: bytes, record: TokenRecord | None = None) -> tuple[str, list[TokenRecord]]:
        """What the bytes of one more token make certain, of the text and of the records."""
        stream = self._stream
        text = stream.push(data)
        if record is not None:
            is_stopped = stream.stopped_by is not None
            end = _NOWHERE if is_stopped else stream.given_characters + stream.held_characters
            self._held.append((end, record))
        return text, [] if stream.held_characters else self._release()

    def finish(self) -> tuple[str, list[TokenRecord]]:
        """The rest of both."""
        text = self._stream.finish()
        return text, self._release()

    def _release(self) -> list[TokenRecord]:
        held, self._held = self._held, []
        if self._stream.stopped_by is None:
            return [record for _, record in held]
        return [record for end, record in held if end <= self._stream.given_characters]
