"""Owns the way from the bytes of tokens to text: whole code points only, and stop strings that never show.

It does not know tokens, models, nor where the text goes.
"""

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns pieces of bytes, as tokens come, into pieces of text that a reader may see at once.

    A piece never ends inside a code point. Bytes that can be no UTF-8 become U+FFFD, and so does, once, a code
    point that the end cuts off. Text that could be the beginning of a stop string is held back until it is known;
    when a stop string is complete, the text before it is given out and everything from it on is dropped.

    The stop string that is complete first wins; of several that end at the same character, the longest. So the text
    does not depend on how the bytes were cut.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        """`stop`: strings that end the text. Raises ValueError for an empty one, which would end it before it began."""
        if "" in stop:
            raise ValueError("a stop string is empty; it would end every text before its first character")
        self._stop = tuple(stop)
        self._prefix_characters = frozenset(character for text in stop for character in text[:-1])
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_cut = False
        self._held = ""
        self._given = 0
        self._stopped_by: str | None = None

    @property
    def given_characters(self) -> int:
        """How many characters were given out."""
        return self._given

    @property
    def held_characters(self) -> int:
        """How many characters are known and held back, since they could begin a stop string."""
        return len(self._held)

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text, or None while none did."""
        return self._stopped_by

    def push(self, data: bytes) -> str:
        """The text that `data` makes certain; "" when it makes none, and always after a stop string."""
        text = self._advance(self._decode(data))
        self._given += len(text)
        return text

    def _decode(self, data: bytes) -> str:
        """Most pieces are ASCII, which the decoder would take four times as long for."""
        if data.isascii() and not self._is_cut:
            return data.decode("ascii")
        text = self._decoder.decode(data)
        self._is_cut = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """The rest of the text: what was held back, and U+FFFD for a code point that never became whole."""
        text = self._advance(self._decoder.decode(b"", final=True))
        tail, self._held = self._held, ""
        text = text if self._stopped_by is not None else text + tail
        self._given += len(text)
        return text

    def _advance(self, text: str) -> str:
        if self._stopped_by is not None or not text:
            return ""
        text = self._held + text
        if not self._stop:
            return text
        found = self._first_stop(text)
        if found is not None:
            start, self._stopped_by = found
            self._held = ""
            return text[:start]
        safe = len(text) - self._length_to_hold(text)
        self._held = text[safe:]
        return text[:safe]

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        """Where the stop string that is complete first begins, and which it is."""
        best: tuple[int, int, str] | None = None
        for stop in self._stop:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _length_to_hold(self, text: str) -> int:
        """The length of the longest end of `text` that begins a stop string."""
        if text[-1] not in self._prefix_characters:
            return 0
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
