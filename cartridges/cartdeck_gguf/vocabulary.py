"""Owns what must be known of a model's vocabulary before the engine is trusted with it.

It does not know the engine. Each check stands before an exception that llama.cpp lets out into C, where it ends the
process: a token twice, a character for which a SentencePiece vocabulary has neither a token nor its bytes, or spaces
that reach a lookup which asserts that there are none.
"""

from dataclasses import dataclass
from typing import Final

from cartdeck_gguf.soundness import unsound
from cartdeck_modelkit.gguf.header import Header
from cartdeck_protocol.errors import Code, failure

TOKENS_KEY: Final = "tokenizer.ggml.tokens"
_SENTENCE_PIECE: Final = "llama"
_BYTE_PAIRS: Final = "gpt2"
_WHITESPACE: Final = "whitespace"
_SPACE: Final = "\u2581"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`characters` are those with a token of their own, kept only when some of the 256 bytes, `missing_bytes`, have
    none to fall back on."""

    longest_token_bytes: int
    missing_bytes: frozenset[int] = frozenset()
    characters: frozenset[str] = frozenset()

    def unknown_characters(self, text: str) -> list[str]:
        """The characters of `text` that the vocabulary cannot express, in order of their code points."""
        if not self.missing_bytes:
            return []
        wanted = set(text.replace(" ", _SPACE)) | {_SPACE}
        return sorted(one for one in wanted - self.characters if not self.missing_bytes.isdisjoint(one.encode()))


def check_vocabulary(header: Header) -> Vocabulary:
    """The vocabulary of a model that makes text. Raises what `read_vocabulary` raises, and `UNSUPPORTED` for the kind
    that embedding models have."""
    if header.text("tokenizer.ggml.model") == "bert":
        raise failure(
            Code.UNSUPPORTED,
            f"{header.path.name} has the vocabulary of an embedding model (WordPiece), which makes no text",
            argument="model",
        )
    return read_vocabulary(header)


def read_vocabulary(header: Header) -> Vocabulary:
    """Reads every token. Raises `BAD_MODEL_FILE` for a vocabulary with a token twice or without any."""
    kind = header.text("tokenizer.ggml.model")
    tokens = header.strings(TOKENS_KEY)
    if not tokens or kind in (None, "no_vocab", "none"):
        raise unsound(header, "it has no vocabulary")
    if kind == _BYTE_PAIRS and header.text("tokenizer.ggml.pre") == _WHITESPACE:
        raise unsound(header, f"its vocabulary is of the kind {kind}, with the splitter of the kind {_WHITESPACE}")
    known = set(tokens)
    if len(known) < len(tokens):
        raise unsound(header, f"{len(tokens) - len(known):,} tokens of its vocabulary are there twice")
    longest = max(map(len, tokens))
    missing = _missing_bytes(known) if kind == _SENTENCE_PIECE else frozenset[int]()
    if not missing:
        return Vocabulary(longest)
    texts = (token.decode("utf-8", errors="replace") for token in tokens)
    return Vocabulary(longest, missing, frozenset(text for text in texts if len(text) == 1))


def _missing_bytes(known: set[bytes]) -> frozenset[int]:
    return frozenset(byte for byte in range(256) if b"<0x%02X>" % byte not in known and bytes((byte,)) not in known)
