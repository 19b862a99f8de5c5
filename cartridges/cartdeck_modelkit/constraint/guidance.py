"""Owns the making of constraints by llguidance: a vocabulary made ready once, then schemas and grammars on it.

It does not know what a token is drawn with. llguidance holds to a schema exactly, or says which keyword it cannot do:
so what it cannot do is refused before a token is made. The one module that imports it.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from cartdeck_modelkit.constraint.schema_limits import check_schema, refused
from cartdeck_modelkit.constraint.token_table import TokenTable
from cartdeck_protocol.errors import CartdeckError, Code, failure

LONGEST_REASON: Final = 300
_UNIMPLEMENTED = re.compile(r'Unimplemented keys: \["([^"]+)"|^(\w+) constraints are not supported')

Refusal = Callable[[str], CartdeckError]

# Between two parts of a JSON value: enough for a new line and nine steps of four. JSON sets no bound, and small models
# fill what is left of their tokens with it.
_WHITE_SPACE: Final = r"[\x20\x0A\x0D\x09]{1,40}"


class _Tokens:
    """A `TokenTable` under the names that llguidance asks for."""

    def __init__(self, table: TokenTable) -> None:
        self.tokens = list(table.pieces)
        self.special_token_ids = sorted({*table.special, *table.end})
        for token in self.special_token_ids:  # two without a name would be one, where a grammar asks for either
            self.tokens[token] = self.tokens[token] or f"<{token}>".encode()
        self.eos_token_id = table.end[0]
        self.bos_token_id = None
        self._tokenize = table.tokenize

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # it tries bytes first
            raise TypeError("text is wanted")
        return self._tokenize(text)


class ConstraintMaker:
    """Makes constraints on the texts of one vocabulary. Making one is safe on any thread, beside others."""

    def __init__(self, table: TokenTable) -> None:
        """Takes a good part of a second for a large vocabulary: for a worker thread."""
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(table)),
            n_vocab=len(table.pieces),
            eos_token=list(table.end),
            slices=LLTokenizer.json_slices(),
        )
        self._limits = LLParserLimits(verbose_errors=False)

    def from_json_schema(self, schema: Any) -> "GuidanceConstraint":
        """A text that is one JSON value which the schema allows.

        Raises `UNSUPPORTED_SCHEMA` for what `check_schema` refuses, a keyword that cannot be held to (named), a schema
        that is too complex and one that no value meets.
        """
        text = check_schema(schema)
        grammar = LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": _WHITE_SPACE})
        return self._new(grammar, _schema_refused)

    def from_lark(self, grammar: str) -> "GuidanceConstraint":
        """A text by a grammar in llguidance's Lark notation: for grammars that we write ourselves.

        Raises `INVALID_GRAMMAR`.
        """
        return self._new(LLMatcher.grammar_from_lark(grammar), _grammar_refused)

    def _new(self, grammar: str, refusal: Refusal) -> "GuidanceConstraint":
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        constraint = GuidanceConstraint(matcher, refusal)
        constraint.raise_error()
        start = constraint.fork()
        start.mask()
        if start.is_complete:
            raise refusal("no text meets it")
        return constraint


class GuidanceConstraint:
    """A `Constraint` that llguidance holds."""

    def __init__(self, matcher: LLMatcher, refusal: Refusal) -> None:
        self._matcher = matcher
        self._refusal = refusal

    @property
    def is_complete(self) -> bool:
        return self._matcher.is_stopped()

    def mask(self) -> bytes:
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            self.raise_error()
        return mask

    def accept(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            self.raise_error()

    def fork(self) -> "GuidanceConstraint":
        return GuidanceConstraint(self._matcher.deep_copy(), self._refusal)

    def raise_error(self) -> None:
        """Raises what the matcher has to complain of, if anything."""
        if self._matcher.is_error():
            raise self._refusal(self._matcher.get_error())


def _schema_refused(reason: str) -> CartdeckError:
    found = _UNIMPLEMENTED.search(reason)
    if found is not None:
        keyword = found[1] or found[2]
        return refused(f"the keyword {keyword!r} is not supported here", keyword=keyword)
    if "NoExtension" in reason:
        return refused("no value meets it")
    return refused(_first_lines(reason))


def _grammar_refused(reason: str) -> CartdeckError:
    return failure(Code.INVALID_GRAMMAR, f"the grammar cannot be used: {_first_lines(reason)}", argument="grammar")


def _first_lines(reason: str) -> str:
    """The reason without the engine's own traces, on one line."""
    lines = reason.partition("<backtrace>")[0].partition("<state>")[0].split("\n")
    return " ".join(line.strip() for line in lines if line.strip())[:LONGEST_REASON] or "no reason is given"
