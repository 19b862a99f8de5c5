"""Owns cutting a text into tokens as the engine does it, in time by the text's length, on a stack that is deep enough.

It does not know models' files, nor what a text is for. The engine's tokenizer changes nothing of a vocabulary, so any
thread may cut.

The engine parts a text at its special tokens, the longest ones first, and counts its way along all parts for each that
it finds: 20 s for half a megabyte of them. So a long text is parted here, in the same order, and the engine gets the
parts. Many vocabularies of its kind BPE are read with `std::regex`, which calls itself several times for each character
of a word: at some 20,000 letters in a row the stack of a thread is full and the process ends. So a text with a long run
gets a thread with a stack for it.
"""

import ctypes
import math
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from cartdeck_protocol.errors import Code, failure

SHORT_CHARACTERS: Final = 4_000
"""The engine gets a text up to this length as it is: what it takes is below a few milliseconds."""

LONGEST_RUN: Final = 200_000
"""Characters in a row that the splitter of a BPE vocabulary may take as one: white space, or what has none in it."""
LONGEST_NUMBER: Final = 5_000
"""Digits in a row where each is followed by a look at all that come; of several rows, the root of their squares."""
_SHALLOW_RUN: Final = 1_000
_STACK_BYTES_A_CHARACTER: Final = 2_048
_LEAST_STACK_BYTES: Final = 8 << 20

_BPE, _WORD_PIECE = 2, 3  # LLAMA_VOCAB_TYPE_BPE, …_WPM
_JOINS_WORDS: Final = frozenset({"exaone-moe"})
"""Splitters (`tokenizer.ggml.pre`) that take words with one space between them as one: unicode.cpp, llama-vocab.cpp."""
_COUNTS_DIGITS: Final = frozenset({"superbpe", "tiny_aya"})
"""Those that look ahead at all digits."""
_BETWEEN_WORDS: Final = re.compile(r"[\x00-\x1f!-@\[-`{-\x7f]|  +")
_UNKNOWN, _CONTROL, _USER_DEFINED, _LSTRIP, _RSTRIP = 1, 8, 16, 128, 256  # LLAMA_TOKEN_ATTR_…
_WHITE: Final = b" \t\n\v\f\r"
"""What C's isspace takes."""

_stack_size_lock: Final = threading.Lock()

GivenUp = Callable[[], bool]


def never() -> bool:
    """For what nobody gives up."""
    return False


@dataclass(frozen=True, slots=True)
class Mark:
    """A token that stands for its name wherever that is in a text."""

    token: int
    name: bytes
    attributes: int


class Cutter:
    """Cuts texts by one vocabulary."""

    def __init__(self, native: Any, vocabulary: Any, *, splitter: str = "") -> None:
        """`native` has llama.cpp's functions, `vocabulary` is its pointer, which outlives this. `splitter` is what the
        metadata calls the way in which words are told apart."""
        self._native = native
        self._vocabulary = vocabulary
        self._splitter = splitter
        self._kind: int = native.llama_vocab_type(vocabulary)
        self._is_recursive = self._kind == _BPE
        self._parters: dict[bool, Parter] = {}

    def cut(
        self, text: str, *, reads_special: bool = True, argument: str = "text", is_given_up: GivenUp = never
    ) -> list[int]:
        """The tokens of `text`, none put at its ends. Where `reads_special`, names of special tokens are those tokens.

        Raises `BAD_ARGUMENT` for a run that is too long, `CANCELLED` once it is given up.
        """
        data = text.encode()
        if len(data) <= SHORT_CHARACTERS:
            return self._cut_part(data, reads_special, argument)
        found, seen = list[int](), dict[bytes, list[int]]()
        for part in self._parter(reads_special).parts(data):
            if isinstance(part, int):
                found.append(part)
                continue
            if part not in seen:
                if is_given_up():
                    raise failure(Code.CANCELLED, "the request was given up while its text was cut into tokens")
                seen[part] = self._cut_part(part, reads_special, argument)
            found += seen[part]
        return found

    def _cut_part(self, data: bytes, reads_special: bool, argument: str) -> list[int]:
        """The tokens of a text, on a stack of its own where that is wise."""
        if not self._is_recursive or len(data) <= _SHALLOW_RUN:
            return self._ask(data, reads_special)
        longest_run = self._check_runs(data.decode(errors="replace"), argument)
        if longest_run <= _SHALLOW_RUN:
            return self._ask(data, reads_special)
        stack_bytes = _LEAST_STACK_BYTES + longest_run * _STACK_BYTES_A_CHARACTER
        return on_own_stack(lambda: self._ask(data, reads_special), stack_bytes)

    def _check_runs(self, text: str, argument: str) -> int:
        """The longest run, which is none too long."""
        longest, limit, what = longest_run_of(text), LONGEST_RUN, "characters in a row that are one word or one space"
        if self._splitter in _JOINS_WORDS:
            longest = max(longest, *map(len, _BETWEEN_WORDS.split(text)))
        if longest <= limit and self._splitter in _COUNTS_DIGITS:
            digits = math.isqrt(sum(len(match[0]) ** 2 for match in re.finditer(r"\d{100,}", text)))
            if digits > LONGEST_NUMBER:
                longest, limit, what = digits, LONGEST_NUMBER, "digits in a row"
        if longest > limit:
            message = f"the {argument} has {longest:,} {what}; at most {limit:,} are cut into tokens by this vocabulary"
            raise failure(Code.BAD_ARGUMENT, message, argument=argument)
        return longest

    def ends(self) -> tuple[list[int], list[int]]:
        """What the metadata asks for before and behind a text."""
        both = self._ask(b"", False, adds_special=True)
        has_first = self._kind == _WORD_PIECE or self._native.llama_vocab_get_add_bos(self._vocabulary)
        return (both[:1], both[1:]) if has_first else ([], both)

    def _ask(self, data: bytes, reads_special: bool, *, adds_special: bool = False) -> list[int]:
        room = 3 * len(data) + 16  # a space that has no token of its own becomes three
        ids = (ctypes.c_int32 * room)()
        count = self._native.llama_tokenize(self._vocabulary, data, len(data), ids, room, adds_special, reads_special)
        if count < 0:
            raise failure(Code.HANDLER_FAILED, f"llama_tokenize gave {count} for {len(data):,} bytes")
        return ids[:count]

    def _parter(self, reads_special: bool) -> "Parter":
        if reads_special not in self._parters:
            wanted = _USER_DEFINED | (_UNKNOWN | _CONTROL if reads_special else 0)
            self._parters[reads_special] = Parter(self._marks(wanted, 0 if reads_special else _UNKNOWN | _CONTROL))
        return self._parters[reads_special]

    def _marks(self, wanted: int, unwanted: int) -> list[Mark]:
        native, vocabulary, found = self._native, self._vocabulary, list[Mark]()
        for token in range(native.llama_vocab_n_tokens(vocabulary)):
            attributes: int = native.llama_vocab_get_attr(vocabulary, token)
            if attributes & wanted and not attributes & unwanted:
                name = native.llama_vocab_get_text(vocabulary, token)
                if name:
                    found.append(Mark(token, name, attributes))
        return found


class Parter:
    """Parts a text at marks, in time by its length."""

    def __init__(self, marks: list[Mark]) -> None:
        self._marks = {mark.name: mark for mark in marks}
        self._lengths = sorted({len(mark.name) for mark in marks}, reverse=True)
        firsts = {mark.name[:1] for mark in marks}
        self._first = re.compile(b"[" + b"".join(map(re.escape, sorted(firsts))) + b"]") if marks else None

    def parts(self, data: bytes) -> list[bytes | int]:
        """The tokens of the marks in `data` and what is between them, in order. Of marks that overlap the longest one
        counts, of such that are equally long the first."""
        taken, claims = bytearray(len(data)), list[tuple[int, int, int]]()
        for start, mark in self._occurrences(data):
            end = start + len(mark.name)
            if taken[start] or taken[end - 1]:
                continue
            low, high = start, end
            while mark.attributes & _LSTRIP and low and not taken[low - 1] and data[low - 1] in _WHITE:
                low -= 1
            while mark.attributes & _RSTRIP and high < len(data) and not taken[high] and data[high] in _WHITE:
                high += 1
            taken[low:high] = b"\1" * (high - low)
            claims.append((low, high, mark.token))
        return _between(data, sorted(claims))

    def _occurrences(self, data: bytes) -> list[tuple[int, Mark]]:
        """Where each mark is, the longest first, each from left to right."""
        if self._first is None:
            return []
        marks, lengths, found = self._marks, self._lengths, list[tuple[int, Mark]]()
        for match in self._first.finditer(data):
            start = match.start()
            for length in lengths:
                mark = marks.get(data[start : start + length])
                if mark is not None and start + length <= len(data):
                    found.append((start, mark))
        found.sort(key=lambda one: (-len(one[1].name), one[1].token, one[0]))
        return found


def _between(data: bytes, claims: list[tuple[int, int, int]]) -> list[bytes | int]:
    found: list[bytes | int] = []
    done = 0
    for low, high, token in claims:
        if low > done:
            found.append(data[done:low])
        found.append(token)
        done = high
    if done < len(data):
        found.append(data[done:])
    return found


def longest_run_of(text: str) -> int:
    """How many characters in a row are all white space, or none of them."""
    words = max(map(len, text.split()), default=0)
    return max(words, max((len(match[0]) for match in re.finditer(r"\s{2,}", text)), default=1))


def on_own_stack(function: Callable[[], list[int]], stack_bytes: int) -> list[int]:
    """What `function()` gives or raises, run in a thread with a stack of at least so many bytes. What it does not use
    takes no memory, and its end gives back what it used. Raises `OUT_OF_MEMORY` where such a thread cannot be had."""
    outcome: Future[list[int]] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # it is raised again in the calling thread
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="deep-stack", daemon=True)
    with _stack_size_lock:
        before = threading.stack_size((stack_bytes + 0xFFFF) & ~0xFFFF)
        try:
            thread.start()
        except RuntimeError as error:
            message = f"a thread with a stack of {stack_bytes:,} bytes cannot be had, for a long word: {error}"
            raise failure(Code.OUT_OF_MEMORY, message) from None
        finally:
            threading.stack_size(before)
    return outcome.result()
