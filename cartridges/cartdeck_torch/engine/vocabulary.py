# pyright: basic
# Of tokenizers' names many have no types.
"""Owns the bytes that each token of a language model stands for, and constraints on them.

It does not know the model. Bytes are found by the tokenizer's own kind: characters that stand for bytes (GPT-2), or
marks for spaces and bytes (SentencePiece).
"""

import re
from typing import Any

from tokenizers import Tokenizer

from cartdeck_modelkit.constraint.token_table import TokenTable
from cartdeck_protocol.errors import Code, failure

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"


class PieceTable:
    """The vocabulary of one model."""

    def __init__(self, tokenizer: Tokenizer, size: int, ends: set[int]) -> None:
        self.size = size
        self.ends = frozenset(ends)
        """Tokens that end a text."""
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self._bytes = _byte_letters() if _is_byte_level(tokenizer) else None
        self._maker: Any = None

    def piece(self, token: int) -> bytes:
        """The bytes of a token; none of one that is special."""
        added = self._added.get(token)
        if added is not None:
            return b"" if added.special else str(added.content).encode()
        return self._piece_of(self._tokenizer.id_to_token(token))

    def maker(self, argument: str) -> Any:
        """What makes constraints on this vocabulary, half a second for the first who asks. Raises `UNSUPPORTED` where
        they are not installed or the model has no token for the end, naming the `argument` that wanted one."""
        if self._maker is None:
            self._maker = self._new_maker(argument)
        return self._maker

    def _new_maker(self, argument: str) -> Any:
        try:
            from cartdeck_modelkit.constraint.guidance import ConstraintMaker  # noqa: PLC0415 - heavy, seldom needed
        except ImportError as error:
            raise failure(Code.UNSUPPORTED, f"{argument} needs llguidance: {error}", argument=argument) from None
        if not self.ends:
            message = f"{argument} needs a model with a token for the end of a text"
            raise failure(Code.UNSUPPORTED, message, argument=argument)
        special = [token for token, added in self._added.items() if added.special]
        pieces = [self.piece(token) for token in range(self.size)]
        for token in special:
            pieces[token] = str(self._added[token].content).encode()
        return ConstraintMaker(
            TokenTable(
                pieces=pieces,
                special=special,
                end=sorted(self.ends),
                tokenize=lambda text: self._tokenizer.encode(text, add_special_tokens=False).ids,
            )
        )

    def _piece_of(self, text: str | None) -> bytes:
        if text is None:
            return b""
        if self._bytes is not None:
            return bytes(self._bytes.get(one, 63) for one in text)
        found = _BYTE.fullmatch(text)
        return bytes([int(found[1], 16)]) if found else text.replace(_SPACE, " ").encode()


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    return '"ByteLevel"' in tokenizer.to_str(pretty=False).rpartition('"model"')[0] or tokenizer.decoder is None


def _byte_letters() -> dict[str, int]:
    """The letter that stands for each byte in GPT-2's vocabulary: itself where it can be seen, else one from 256 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in seen}
    hidden = [byte for byte in range(256) if byte not in set(seen)]
    return letters | {chr(256 + place): byte for place, byte in enumerate(hidden)}
