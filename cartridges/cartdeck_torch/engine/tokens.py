# pyright: basic
# Of tokenizers' names many have no types.
"""Owns the way from texts to tokens: counted, cut where that is asked for, checked.

It does not know models beyond the size of their vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from cartdeck_protocol.errors import Code, failure
from cartdeck_torch.engine.loading import check_ids
from cartdeck_torch.folder import ModelFolder


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text's tokens; `is_cut` where some of them were left out."""

    ids: list[int]
    is_cut: bool


def read_tokenizer(folder: ModelFolder) -> Tokenizer:
    """The tokenizer in tokenizer.json, set to cut and pad nothing. Raises `FILE_NOT_FOUND`, `BAD_MODEL_FILE`."""
    path = folder.path / "tokenizer.json"
    if not path.is_file():
        raise failure(Code.FILE_NOT_FOUND, f"{folder.path} has no tokenizer.json", argument="model", phase="load")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise failure(Code.BAD_MODEL_FILE, f"{path} is no tokenizer: {error}", phase="load") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class TextTokens:
    """Turns texts into tokens for one model."""

    def __init__(self, folder: ModelFolder, *, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.vocabulary_size = 0
        """How many tokens the model has vectors for, once its weights are there."""
        self._tokenizer = read_tokenizer(folder)
        self._name = folder.name

    def encode(self, texts: Sequence[str], *, truncate: str) -> tuple[list[Tokens], int | None]:
        """The tokens of each text with the model's own marks around them, and None.

        `truncate` is error, start or end: what becomes of a text with more than `max_tokens`. With error the texts
        before it are given alone, and how many tokens it has.
        """
        found: list[Tokens] = []
        for text, encoding in zip(
            texts, self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=True), strict=True
        ):
            is_cut = len(encoding.ids) > self.max_tokens
            if is_cut and truncate == "error":
                return found, len(encoding.ids)
            ids = self._cut(text, truncate) if is_cut else encoding.ids
            check_ids(ids, self.vocabulary_size, name=self._name)
            found.append(Tokens(ids, is_cut))
        return found, None

    def _cut(self, text: str, truncate: str) -> list[int]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        room = self.max_tokens - self._tokenizer.num_special_tokens_to_add(is_pair=False)
        encoding.truncate(max(room, 1), direction="right" if truncate == "end" else "left")
        return self._tokenizer.post_process(encoding).ids
