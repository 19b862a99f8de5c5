"""Owns the computing of many texts side by side: who is computed next, and in which call of the engine.

It does not know requests' handlers, nor how tokens become text. In each round every text that can go on gets one token,
all of them in one call; a prompt is computed slice by slice, in calls of its own, the prompts in turns, and takes most
of the time while others wait for tokens, not all of it. A text whose reader is behind is left out.

There are two lanes. Texts that must come out the same under load have a context to themselves, one after another:
numbers depend, in their last bits, on what else a call carries and on where in the context a sequence's cells are.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cartdeck_gguf.admission import make_choices, read_prompt
from cartdeck_gguf.generation import Generation
from cartdeck_gguf.lane import Lane, Party, check_texts
from cartdeck_gguf.loading import native_log
from cartdeck_gguf.track import Track
from cartdeck_protocol.errors import CartdeckError, Code, failure

if TYPE_CHECKING:
    from cartdeck_gguf.context import Context
    from cartdeck_gguf.loading import LoadedModel

READING_SHARE: Final = 0.75
"""The part of the time that prompts take while texts wait for tokens."""

_LOOK_S: Final = 1.0
"""How often a text is looked at whose reader takes nothing."""

Part = tuple[Track, list[int], int]
"""Tokens of a text in a call, with the row of what comes of them."""


_NOBODY: Final[frozenset[Generation]] = frozenset()


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
        self._shared = self._new_lane(model.context)
        self._apart: Lane | None = None
        self._live: list[Track] = []
        self._open_texts: dict[Generation, int] = {}
        self._lock = threading.Lock()
        self._inbox: deque[Generation] = deque()
        self._in_call: frozenset[Generation] = _NOBODY
        self._calling: Context | None = None
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
                context = self._calling
                is_alone = len(self._in_call) == 1
                # of a recurrent model a call that is broken off leaves half a state to the others in it
                if generation in self._in_call and context is not None and (is_alone or context.is_divisible):
                    context.flag.set()

    # the owner's thread

    def step(self) -> float | None:
        """One round. In how many seconds the next one is wanted; None: when something was submitted, cancelled or
        read."""
        try:
            return self._round()
        except Exception as error:  # a mistake of ours: every request hears of it, and the thread lives on
            for generation in list(self._open_texts):
                self._end(generation, error, is_sound=False)
            return 0.0

    def _round(self) -> float | None:
        self._take_inbox()
        if self._has_cancelled:
            self._drop_cancelled()
        if len(self._live) == 1 and self._live[0].can_draw and not any(lane.has_waiting for lane in self.lanes):
            self._read_s = self._drawn_s = 0.0
            self._compute(self._live[:])  # what most rounds are, without the looks at others
            return 0.0
        for lane in self.lanes:
            if lane.has_waiting:
                self._live.extend(lane.seat([track for track in self._live if self._lane_of(track) is lane]))
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

    @property
    def is_lone(self) -> bool:
        """Whether one text is computed and no other."""
        return len(self._live) == 1

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The context that texts share, and the one apart once it was asked for."""
        return (self._shared,) if self._apart is None else (self._shared, self._apart)

    def _lane_of(self, track: Track) -> Lane:
        is_apart = track.generation.settings.deterministic
        return self._apart if is_apart and self._apart is not None else self._shared

    def _new_lane(self, context: "Context") -> Lane:
        model = self._model
        return Lane(
            context,
            context_size=model.context_size,
            slice_tokens=model.slice_tokens,
            parked_bytes=model.parked_bytes,
        )

    def _take_inbox(self) -> None:
        while self._inbox:
            with self._lock:
                generation = self._inbox.popleft()
            native_log.begin_section(generation.log)
            try:
                self._receive(generation)
            except Exception as error:  # one that is a mistake of ours too: nobody else would end this request
                self._end(generation, error)
            native_log.begin_section(self._hear)

    def _receive(self, generation: Generation) -> None:
        """Puts a request into its lane. Raises what `read_prompt` and `make_choices` raise, `CANCELLED`,
        `OUT_OF_MEMORY` where the context apart cannot be had, `UNSUPPORTED`."""
        if generation.is_cancelled:
            raise _cancelled(generation)
        prompt = read_prompt(generation, self._model)
        if not generation.settings.deterministic:
            lane = self._shared
            check_texts(generation, lane.context)
        else:
            lane = self._apart = self._apart or self._new_lane(self._model.apart())
        choices = make_choices(generation, self._model)
        self._open_texts[generation] = len(choices)
        for texts in [choices] if lane is self._shared else [[one] for one in choices]:
            lane.wait(Party(generation, prompt, texts))

    def _hear(self, level: str, line: str) -> None:
        """A line of the engine's goes to the requests that it is computing for."""
        for generation in self._in_call:
            generation.log(level, line)

    def _drop_cancelled(self) -> None:
        self._has_cancelled = False
        for generation in [one for one in self._open_texts if one.is_cancelled]:
            self._end(generation, _cancelled(generation))

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
        lane = self._lane_of(track)
        lane.catch_up(track, [one for one in self._live if self._lane_of(one) is lane])
        part = track.next_part(self._model.slice_tokens)
        if part.insert is not None:
            is_done = self._compute_insert(track, part.start)
        else:
            is_done = self._compute([track], part.tokens)
        self._read_s += time.monotonic() - started
        return is_done

    def _draw_round(self) -> bool:
        """Computes one token of each text that can go on, those of a lane in one call."""
        started, is_done = time.monotonic(), False
        for lane in self.lanes:
            live = [track for track in self._live if self._lane_of(track) is lane]
            self.stats.left_out += sum(1 for track in live if track.is_left_out)
            able = [track for track in live if track.can_draw]
            if able:
                is_done = self._compute(able) or is_done
        self._drawn_s += time.monotonic() - started
        return is_done

    def _compute(self, tracks: list[Track], prompt: list[int] | None = None) -> bool:
        """Computes one token of one or more texts of a lane in one call, or the next of one's `prompt`, and draws from
        what comes of it. Whether it was done."""
        context, stats = self._lane_of(tracks[0]).context, self.stats
        is_shared = len(tracks) > 1
        generations = frozenset([track.generation for track in tracks]) if is_shared else tracks[0].alone
        if not self._begin_call(context, generations):
            return False
        context.start_batch()
        parts: list[Part] = []
        for track in tracks:
            trace, tokens = track.trace, prompt or track.pending
            parts.append((track, tokens, context.add(trace.sequence, tokens, len(trace.tokens))))
        try:
            decoded = context.compute()
        except CartdeckError as error:
            for generation in generations:
                self._end(generation, error, is_sound=False)
            return True
        finally:
            self._end_call()
        if decoded is not decoded.DONE:
            for track in tracks:
                context.forget(track.sequence, len(track.trace.tokens))
            if decoded is decoded.NO_ROOM:
                self._make_room(tracks[-1])
            return decoded is decoded.NO_ROOM
        stats.calls += 1
        stats.shared_calls += is_shared
        stats.most_sequences = max(stats.most_sequences, len(parts))
        for track, tokens, row in parts:
            stats.tokens += len(tokens)
            track.generation.is_batched |= is_shared
            self._advance(track, tokens, row)
        return True

    def _begin_call(self, context: "Context", generations: frozenset[Generation]) -> bool:
        """Whether the call is still wanted. From now on a cancel of one of them breaks it off."""
        with self._lock:
            if any(generation.is_cancelled for generation in generations):
                return False
            context.flag.clear()
            self._in_call, self._calling = generations, context
            return True

    def _end_call(self) -> None:
        # without the lock: a cancel that still sees the call sets a flag that the next call clears
        self._in_call, self._calling = _NOBODY, None

    def _advance(self, track: Track, tokens: list[int], row: int) -> None:
        """Takes in that tokens were computed; draws the next one when the prompt is whole."""
        if track.sequence < 0:
            return  # another text of the same request failed in this round
        was_reading = track.is_reading
        track.computed(tokens, self._model.slice_tokens)
        if was_reading and track.is_reading:
            track.generation.delivery.touch()
            return
        lane = self._lane_of(track)
        try:
            siblings = lane.siblings(track) if was_reading else []
            self._live.extend(siblings)
            for one in (*siblings, track):
                one.draw(lane.context, row)
                if one.choice.finish_reason is not None:
                    self._leave(one)
        except CartdeckError as error:
            self._end(track.generation, error, is_sound=False)

    def _compute_insert(self, track: Track, start: int) -> bool:
        generation, context = track.generation, self._lane_of(track).context
        if not self._begin_call(context, frozenset((generation,))):
            return False
        try:
            track.compute_insert(context, start)
        except CartdeckError as error:
            self._end(generation, _cancelled(generation) if generation.is_cancelled else error, is_sound=False)
        finally:
            self._end_call()
        generation.delivery.touch()
        return True

    def _make_room(self, track: Track) -> None:
        """The engine found no cell although they were counted: what is kept goes first, then the text ends here."""
        if self._lane_of(track).drop_kept():
            return
        if track.is_reading:
            message = f"there is no room for the rest of a prompt of {track.generation.prompt_tokens:,} tokens"
            self._end(track.generation, failure(Code.CONTEXT_OVERFLOW, message, argument="prompt", phase="prompt"))
        else:
            track.choice.finish("length")
            self._leave(track)

    def _look_at_stalled(self) -> float:
        for track in list(self._live):
            try:
                track.generation.delivery.raise_if_stalled()
            except CartdeckError as error:
                self._end(track.generation, error)
        return _LOOK_S

    def _leave(self, track: Track) -> None:
        """Gives up the place of a text that has its end; with the last one the request is over."""
        generation = track.generation
        if track.choice.index == 0:
            generation.finish_reason = track.choice.finish_reason
        self._live.remove(track)
        self._lane_of(track).leave(track)
        self._open_texts[generation] -= 1
        if not self._open_texts[generation]:
            del self._open_texts[generation]
            generation.delivery.end()

    def _end(self, generation: Generation, error: Exception, *, is_sound: bool = True) -> None:
        """Ends a request before its time; what was computed is kept if it is sound."""
        for track in [one for one in self._live if one.generation is generation]:
            self._live.remove(track)
            self._lane_of(track).leave(track, is_sound=is_sound)
        for lane in self.lanes:
            lane.abandon(generation)
        self._open_texts.pop(generation, None)
        if isinstance(error, CartdeckError) and error.code is Code.CANCELLED:
            generation.finish_reason = "cancelled"
        generation.delivery.end(error)


def _cancelled(generation: Generation) -> CartdeckError:
    if generation.started_s is None:
        return failure(Code.CANCELLED, "the request was given up before its turn came", phase="queue")
    count = generation.completion_tokens
    return failure(Code.CANCELLED, f"given up by the caller after {count} tokens", phase="inference")
