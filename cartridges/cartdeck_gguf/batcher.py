"""Owns the computing of many texts side by side: who is computed next, and in which call of the engine.

It does not know requests' handlers, nor how tokens become text. In each round every text that can go on gets one token,
all of them in one call; a prompt is computed slice by slice, in calls of its own, the prompts in turns, and takes most
of the time while others wait for tokens, not all of it. A text whose reader is behind is left out.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cartdeck_gguf.admission import Admission
from cartdeck_gguf.generation import Generation
from cartdeck_gguf.loading import native_log
from cartdeck_gguf.prefix_cache import PrefixCache
from cartdeck_gguf.track import Track
from cartdeck_protocol.errors import CartdeckError, Code, failure

if TYPE_CHECKING:
    from cartdeck_gguf.loading import LoadedModel

READING_SHARE: Final = 0.75
"""The part of the time that prompts take while texts wait for tokens."""

_LOOK_S: Final = 1.0
"""How often a text is looked at whose reader takes nothing."""


@dataclass(slots=True)
class Stats:
    """What the engine was called for since the model was loaded."""

    calls: int = 0
    tokens: int = 0
    shared_calls: int = 0
    """Calls that carried tokens of several sequences."""
    most_sequences: int = 0
    """In one call."""
    left_out: int = 0
    """How often a text was left out of a round because its reader was behind."""


class Batcher:
    """All texts that a model is asked for. `submit` and `cancel` are for any thread, `step` for the owner's alone."""

    def __init__(self, model: "LoadedModel") -> None:
        self.stats = Stats()
        self._model = model
        self._context = model.context
        self._cache = PrefixCache(model.context, slice_tokens=model.slice_tokens)
        self._admission = Admission(model, self._cache)
        self._live: list[Track] = []
        self._lock = threading.Lock()
        self._inbox: deque[Generation] = deque()
        self._in_call: frozenset[Generation] = frozenset()
        self._has_cancelled = False
        self._read_s = self._drawn_s = 0.0

    # any thread

    def submit(self, generation: Generation) -> None:
        """Takes a request; the owner's thread is to be woken."""
        with self._lock:
            self._inbox.append(generation)

    def cancel(self, generation: Generation) -> None:
        """Gives a request up: a call that is computing its tokens is broken off, and done again for the others."""
        with self._lock:
            if not generation.delivery.is_over:
                generation.is_cancelled = self._has_cancelled = True
                if generation in self._in_call:
                    self._context.flag.set()

    # the owner's thread

    def step(self) -> float | None:
        """One round. In how many seconds the next one is wanted; None: when something was submitted, cancelled or
        read."""
        try:
            return self._round()
        except Exception as error:  # a mistake of ours: every request hears of it, and the thread lives on
            self._fail_all(error)
            return 0.0

    def _round(self) -> float | None:
        self._take_inbox()
        if self._has_cancelled:
            self._drop_cancelled()
        self._live.extend(self._admission.seat(self._live))
        if not self._live:
            return None
        is_done = self._read_one_prompt() if self._reading_is_due() else False
        is_done = self._draw_round() or is_done
        if is_done or self._has_cancelled:
            return 0.0
        if any(track.is_reading for track in self._live):
            self._read_s = self._drawn_s = 0.0  # nobody can be drawn for: the next round reads
            return 0.0
        return self._look_at_stalled()

    def _take_inbox(self) -> None:
        while self._inbox:
            with self._lock:
                generation = self._inbox.popleft()
            self._admission.add(generation)
            native_log.begin_section(self._hear)

    def _hear(self, level: str, line: str) -> None:
        """A line of the engine's goes to the requests that it is computing for."""
        for generation in self._in_call:
            generation.log(level, line)

    def _drop_cancelled(self) -> None:
        self._has_cancelled = False
        for track in self._live:
            if track.generation.is_cancelled:
                self._end(track.generation, _cancelled(track.generation))
        self._live = [track for track in self._live if track.sequence >= 0]
        self._admission.drop_cancelled()

    def _reading_is_due(self) -> bool:
        """Whether a prompt may be computed now: always while no text waits for tokens."""
        reading = any(track.is_reading for track in self._live)
        if not reading or not any(track.can_draw for track in self._live):
            self._read_s = self._drawn_s = 0.0
            return reading
        return self._read_s * (1 - READING_SHARE) <= self._drawn_s * READING_SHARE

    def _read_one_prompt(self) -> bool:
        """Computes the next slice of the prompt that waited longest for one."""
        track = min((one for one in self._live if one.is_reading), key=lambda one: one.read_at)
        started = time.monotonic()
        track.read_at = started
        part = track.next_part(self._model.slice_tokens)
        if part.insert is not None:
            is_done = self._compute_insert(track, part.insert, part.start)
        else:
            is_done = self._compute([(track, part.tokens, part.start)])
        self._read_s += time.monotonic() - started
        return is_done

    def _draw_round(self) -> bool:
        """Computes one token of each text that can go on, in one call; in a call each for those that want their own."""
        ready = [track for track in self._live if track.can_draw]
        self.stats.left_out += sum(1 for track in self._live if track.is_left_out)
        if not ready:
            return False
        started = time.monotonic()
        shared = [track for track in ready if not track.generation.settings.deterministic]
        calls = [[track] for track in ready if track.generation.settings.deterministic]
        is_done = False
        for call in [shared, *calls] if shared else calls:
            parts = [(track, track.pending_tokens, len(track.trace.tokens)) for track in call if track.sequence >= 0]
            is_done = (bool(parts) and self._compute(parts)) or is_done
        self._drawn_s += time.monotonic() - started
        return is_done

    def _compute(self, parts: list[tuple[Track, list[int], int]]) -> bool:
        """Computes tokens of one or more texts in one call, and draws from what comes of it. Whether it was done."""
        context, stats = self._context, self.stats
        with self._lock:
            if any(track.generation.is_cancelled for track, _, _ in parts):
                return False
            context.flag.clear()
            self._in_call = frozenset(track.generation for track, _, _ in parts)
        context.start_batch()
        rows = [context.add(track.sequence, tokens, start) for track, tokens, start in parts]
        try:
            decoded = context.compute()
        except CartdeckError as error:
            for track, _, _ in parts:
                self._end(track.generation, error, is_sound=False)
            return True
        finally:
            with self._lock:
                self._in_call = frozenset()
        if decoded is not decoded.DONE:
            for track, _, start in parts:
                context.forget(track.sequence, start) if start else context.forget(track.sequence)
            if decoded is decoded.NO_ROOM:
                self._make_room(parts[-1][0])
            return decoded is decoded.NO_ROOM
        stats.calls += 1
        stats.tokens += sum(len(tokens) for _, tokens, _ in parts)
        stats.most_sequences = max(stats.most_sequences, len(parts))
        is_shared = len(parts) > 1
        stats.shared_calls += is_shared
        for (track, tokens, _), row in zip(parts, rows, strict=True):
            track.generation.is_batched |= is_shared
            self._advance(track, tokens, row)
        return True

    def _advance(self, track: Track, tokens: list[int], row: int) -> None:
        """Takes in that tokens were computed; draws the next one when the prompt is whole."""
        if track.sequence < 0:
            return  # another text of the same request failed in this round
        track.computed(tokens, self._model.slice_tokens)
        if track.is_reading:
            track.generation.delivery.touch()
            return
        try:
            for one in self._admission.siblings(track):
                self._live.append(one)
                one.draw(self._context, row)
                self._leave_if_over(one)
            track.draw(self._context, row)
        except CartdeckError as error:
            self._end(track.generation, error, is_sound=False)
            return
        self._leave_if_over(track)

    def _compute_insert(self, track: Track, insert: object, start: int) -> bool:
        generation = track.generation
        with self._lock:
            if generation.is_cancelled:
                return False
            self._context.flag.clear()
            self._in_call = frozenset((generation,))
        try:
            track.compute_insert(self._context, start)
        except CartdeckError as error:
            self._end(generation, _cancelled(generation) if generation.is_cancelled else error, is_sound=False)
        finally:
            with self._lock:
                self._in_call = frozenset()
        generation.delivery.touch()
        return True

    def _make_room(self, track: Track) -> None:
        """The engine found no cell although they were counted: what is kept goes first, then the text ends here."""
        if self._admission.drop_kept():
            return
        if track.is_reading:
            message = f"there is no room for the rest of a prompt of {track.generation.prompt_tokens:,} tokens"
            self._end(track.generation, failure(Code.CONTEXT_OVERFLOW, message, argument="prompt", phase="prompt"))
        else:
            track.choice.finish("length")
            self._leave_if_over(track)

    def _look_at_stalled(self) -> float:
        for track in list(self._live):
            try:
                track.generation.delivery.raise_if_stalled()
            except CartdeckError as error:
                self._end(track.generation, error)
        return _LOOK_S

    def _leave_if_over(self, track: Track) -> None:
        """Gives up the place of a text that has its end; with the last one the request is over."""
        if track.choice.finish_reason is None:
            return
        generation = track.generation
        if track.choice.index == 0:
            generation.finish_reason = track.choice.finish_reason
        self._live.remove(track)
        self._admission.leave(track)
        if not any(one.generation is generation for one in self._live):
            self._admission.release(generation)
            generation.delivery.end()

    def _end(self, generation: Generation, error: Exception, *, is_sound: bool = True) -> None:
        """Ends a request before its time; what was computed is kept if it is sound."""
        for track in [one for one in self._live if one.generation is generation]:
            self._live.remove(track)
            self._admission.leave(track, is_sound=is_sound)
        self._admission.release(generation)
        if isinstance(error, CartdeckError) and error.code is Code.CANCELLED:
            generation.finish_reason = "cancelled"
        generation.delivery.end(error)

    def _fail_all(self, error: Exception) -> None:
        for generation in {track.generation for track in self._live}:
            self._end(generation, error, is_sound=False)
        self._admission.end_waiting(error)


def _cancelled(generation: Generation) -> CartdeckError:
    count = generation.completion_tokens
    return failure(Code.CANCELLED, f"given up by the caller after {count} tokens", phase="inference")
