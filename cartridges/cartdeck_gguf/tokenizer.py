"""Owns a model's tokens by themselves: text to ids, ids to text, and what each id stands for.

It does not know requests. Making a tokenizer imports the engine, a quarter of a second: not on the event loop.
"""

import ctypes
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cartdeck_gguf.loading import import_engine, native_log
from cartdeck_gguf.model_kind import check_is_model
from cartdeck_gguf.shards import read_model
from cartdeck_gguf.soundness import check_sound
from cartdeck_gguf.vocabulary import Vocabulary, read_vocabulary
from cartdeck_modelkit.refusal import blaming
from cartdeck_protocol.errors import Code, failure

if TYPE_CHECKING:
    from cartdeck_gguf import llama

LONGEST_TEXT_CHARACTERS: Final = 16_000_000
LONGEST_WITH_SPECIAL: Final = 1_000_000
"""Where special tokens are read, each of them may be a part of its own."""

_KINDS: Final = {1: "unknown", 2: "unused", 4: "normal", 8: "control", 16: "user-defined", 32: "byte"}
_UNUSED: Final = 2


def open_tokenizer(path: Path) -> "Tokenizer":
    """The vocabulary of the model at `path`, loaded without its weights.

    Raises what `read_model`, `check_sound` and `read_vocabulary` raise, and `BAD_MODEL_FILE` for what is no model.
    """
    with blaming("model"):
        headers = read_model(path)
        check_is_model(headers[0], wanted="a model with a vocabulary")
        check_sound(headers[0])
        vocabulary = read_vocabulary(headers[0])
    engine = import_engine()
    native_log.begin_section()
    return Tokenizer(engine.Model(headers[0].path, log=native_log, has_weights=False), vocabulary)


class Tokenizer:
    """The vocabulary of a model in memory; for one thread at a time."""

    def __init__(self, model: "llama.Model", vocabulary: Vocabulary) -> None:
        """`vocabulary` is what `read_vocabulary` knows of the model's file."""
        self.engine_version: str = import_engine().VERSION
        self._native: Any = import_engine().NATIVE
        self._model = model
        self._vocabulary = vocabulary
        self._handle: Any = model.vocabulary

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return self._model.vocabulary_size

    def encode(self, text: str, *, adds_special: bool = True, reads_special: bool = True) -> list[int]:
        """The ids of `text`. `adds_special` puts what the metadata asks for at its ends, one beginning-of-text token at
        most; `reads_special` takes the name of a special token in the text for that token.

        Raises `BAD_ARGUMENT` for characters that the vocabulary cannot express, and for a text too long to be cut.
        """
        self.check(text, reads_special=reads_special)
        cutter, native, handle = self._model.cutter, self._native, self._handle
        found = cutter.cut(text, reads_special=reads_special)
        if adds_special:
            before, behind = cutter.ends()
            found = [*before, *found, *behind]
        bos = native.llama_vocab_bos(handle)
        if adds_special and len(found) > 1 and found[0] == found[1] == bos and native.llama_vocab_get_add_bos(handle):
            del found[0]  # the text began with it already
        return found

    def check(self, text: str, *, reads_special: bool = True) -> None:
        """Raises what `encode` raises: the engine would not come back from such a text, or not soon."""
        most = LONGEST_WITH_SPECIAL if reads_special else LONGEST_TEXT_CHARACTERS
        if len(text) > most:
            raise failure(
                Code.BAD_ARGUMENT,
                f"the text has {len(text):,} characters, and at most {most:,} are cut at once"
                + (" where special tokens are read" if reads_special else ""),
                argument="text",
            )
        unknown = self._vocabulary.unknown_characters(text)
        if unknown:
            named = ", ".join(map(repr, unknown[:10]))
            raise failure(Code.BAD_ARGUMENT, f"this vocabulary has no token for {named}", argument="text")

    def decode(self, ids: Sequence[Any], *, shows_special: bool = False) -> str:
        """The text of `ids`, U+FFFD for bytes that are no UTF-8. Special tokens show by their names, or not at all.

        Raises `BAD_ARGUMENT` with the index of an id that the vocabulary does not have.
        """
        for index, one in enumerate(ids):
            if type(one) is not int or not 0 <= one < self.size:
                raise failure(
                    Code.BAD_ARGUMENT,
                    f"the id at index {index} is {one!r:.60}, expected a whole number from 0 to {self.size - 1}",
                    argument="ids",
                    details={"index": index},
                )
        if not ids:
            return ""
        given = (ctypes.c_int32 * len(ids))(*ids)
        room = 8 * len(ids) + 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            size = self._native.llama_detokenize(self._handle, given, len(ids), buffer, room, False, shows_special)
            if size >= 0:
                return buffer.raw[:size].decode("utf-8", errors="replace")
            room = -size

    def records(self, ids: Iterable[int]) -> list[dict[str, Any]]:
        """What each token is: `id`, `text`, `bytes`, `kind`, `score`."""
        return [self._record(one) for one in ids]

    def _record(self, token: int) -> dict[str, Any]:
        kind = int(self._native.llama_vocab_get_attr(self._handle, token)) & 0x3F
        data = self._bytes_of(token, is_unused=bool(kind & _UNUSED))
        return {
            "id": token,
            "text": data.decode("utf-8", errors="replace"),
            "bytes": data,
            "kind": next((name for flag, name in _KINDS.items() if kind & flag), "normal"),
            "score": float(self._native.llama_vocab_get_score(self._handle, token)),
        }

    def _bytes_of(self, token: int, *, is_unused: bool) -> bytes:
        """What the token stands for in a text; of an unused one, which stands for nothing, its name."""
        if is_unused:
            return bytes(self._native.llama_vocab_get_text(self._handle, token) or b"")
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            size = self._native.llama_token_to_piece(self._handle, token, buffer, room, 0, True)
            if size >= 0:
                return buffer.raw[:size]
            room = -size

    def close(self) -> None:
        """Frees the model that it was made for."""
        self._model.close()
