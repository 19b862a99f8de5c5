"""Owns one context and who is computed in it: a request's prompt made ready, what cannot fit refused at once, places
given out and taken back.

It does not know the order of computing. A request is let in when the cells for its prompt and for the most that its
texts may become are free, in the order they came; a smaller one may pass one that waits for more, a few times.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from cartdeck_gguf.choice import Choice
from cartdeck_gguf.generation import Generation
from cartdeck_gguf.prefix_cache import PrefixCache, Trace, Wanted, common_length
from cartdeck_gguf.prompt import Prompt
from cartdeck_gguf.track import Track
from cartdeck_protocol.errors import Code, failure

if TYPE_CHECKING:
    from cartdeck_gguf.context import Context

MOST_PASSED: Final = 16
"""How often a request that waits for cells may be passed by smaller ones."""

LEAST_SHARED: Final = 8
"""So many tokens another prompt must be ahead by, to be followed."""


class Party:
    """Texts of one request that are let in together: they share their prompt's cells."""

    def __init__(self, generation: Generation, prompt: Prompt, choices: list[Choice]) -> None:
        self.generation = generation
        self.prompt = prompt
        self.choices = choices
        self.sequences: list[int] = []
        """For the texts that follow the first once the prompt is computed."""
        self.cells = len(prompt.tokens) + len(choices) * generation.max_tokens
        self.times_passed = 0

    def close(self) -> None:
        for choice in self.choices:
            choice.close()


class Lane:
    """A context, the parties that wait for it, and those that have places in it."""

    def __init__(self, context: "Context", *, context_size: int, slice_tokens: int, parked_bytes: int) -> None:
        self.context = context
        self._size = context_size
        self._slice = slice_tokens
        self._cache = PrefixCache(context, slice_tokens=slice_tokens, parked_bytes=parked_bytes)
        self._free = list(range(context.sequences - 1, -1, -1))
        self._waiting: list[Party] = []
        self._seated: dict[Choice, Party] = {}
        self.cells_in_use = 0
        """What those that have places may come to need, all together."""

    @property
    def free_places(self) -> int:
        """How many sequences of the context nobody is computed in."""
        return len(self._free) + self._cache.resident_count

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def wait(self, party: Party) -> None:
        """Puts a party at the end of those that wait."""
        self._waiting.append(party)

    def seat(self, live: Sequence[Track]) -> list[Track]:
        """Lets in those that fit now: the first text of each. `live` are the texts in this context."""
        seated: list[Track] = []
        for party in list(self._waiting):
            if not self._fits(party):
                if party.times_passed >= MOST_PASSED:
                    break
                continue
            for other in self._waiting[: self._waiting.index(party)]:
                other.times_passed += 1
            self._waiting.remove(party)
            seated.append(self._seat(party, [track.trace for track in (*live, *seated)]))
        self._tell_positions()
        return seated

    def _fits(self, party: Party) -> bool:
        is_room = self.cells_in_use + party.cells <= self._size
        return is_room and len(party.choices) <= self.free_places

    def _seat(self, party: Party, live: Sequence[Trace]) -> Track:
        generation, choice = party.generation, party.choices[0]
        if generation.started_s is None:
            generation.started_s = time.monotonic()
        trace = self._begin(party.prompt, live, wanted=_wanted(generation))
        if choice.index == 0:
            generation.cached_tokens = generation.prompt_done = len(trace.tokens)
        party.sequences = [self._free.pop() for _ in party.choices[1:]]
        self.cells_in_use += party.cells
        self._seated.update(dict.fromkeys(party.choices, party))
        return Track(choice, party.prompt, trace)

    def _begin(self, prompt: Prompt, live: Sequence[Trace], *, wanted: Wanted) -> Trace:
        """A sequence that has seen as much of the prompt as can be had. What else the context kept leaves it first: a
        sequence is exact where its cells are in order from the first one on."""
        match = self._cache.find(prompt.tokens, live, wanted=wanted)
        length = 0 if match is None else prompt.whole_length(match.length)
        source = match.trace if match is not None and length else None
        taken = None if source is None else self._cache.take(source, length)
        self._free.extend(self._cache.park(live))
        if taken is not None:
            return taken
        if not live:
            self.context.clear()
        trace = Trace([], sequence=self._free.pop())
        if source is not None and self._cache.copy(source, length, trace.sequence):
            trace.tokens, trace.exact = source.tokens[:length], min(source.exact, length - length % self._slice)
        return trace

    def catch_up(self, track: Track, live: Sequence[Track]) -> None:
        """Lets a prompt take over what another text, `live` or just over, has seen of the same tokens by now: of
        requests that came at once and begin alike, what they share is computed once."""
        trace, prompt, generation = track.trace, track.prompt, track.generation
        if generation.settings.deterministic or not self.context.is_divisible:
            return
        have, most = len(trace.tokens), len(prompt.tokens) - 1
        others = [one.trace for one in live if one is not track] + list(self._cache.resident)
        if not others:
            return
        lengths = [min(common_length(other.tokens, prompt.tokens), most) for other in others]
        source, length = others[lengths.index(max(lengths))], prompt.whole_length(max(lengths))
        # what a sliding window dropped cannot be had
        if length - have >= LEAST_SHARED and self.context.is_whole(source.sequence, len(source.tokens)):
            self.context.copy(source.sequence, trace.sequence, length, start=have)
            trace.tokens.extend(prompt.tokens[have:length])
            if track.choice.index == 0:
                generation.cached_tokens += length - have
            generation.prompt_done = max(generation.prompt_done, length)

    def siblings(self, track: Track) -> list[Track]:
        """The other texts of a party whose prompt was just computed, each in a place that shares it; later on []."""
        party = self._seated[track.choice]
        sequences, party.sequences = party.sequences, []
        made: list[Track] = []
        for choice, sequence in zip(party.choices[1:] if sequences else [], sequences, strict=True):
            self.context.copy(track.sequence, sequence, len(track.trace.tokens))
            trace = Trace(list(track.trace.tokens), track.trace.exact, sequence)
            made.append(Track(choice, track.prompt, trace))
        return made

    def leave(self, track: Track, *, is_sound: bool = True) -> None:
        """Takes back the place of a text that is over; what it has seen is kept for the next prompt."""
        trace, context, choice = track.trace, self.context, track.choice
        track.trace = Trace([])
        if not (is_sound and context.is_divisible and self._cache.keep(trace)):
            context.forget(trace.sequence)
            self._free.append(trace.sequence)
        party = self._seated.pop(choice)
        choice.close()
        if party not in self._seated.values():
            self.cells_in_use -= party.cells

    def abandon(self, generation: Generation) -> None:
        """Takes back what is held for texts of a request that never began."""
        for choice, party in list(self._seated.items()):
            if choice.generation is generation:
                self._free.extend(party.sequences)
                party.sequences = []
                del self._seated[choice]
                choice.close()
                if party not in self._seated.values():
                    self.cells_in_use -= party.cells
        for party in [one for one in self._waiting if one.generation is generation]:
            self._waiting.remove(party)
            party.close()

    def waiting(self, is_wanted: Callable[[Generation], bool]) -> list[Generation]:
        """Those of the requests that wait."""
        return [party.generation for party in self._waiting if is_wanted(party.generation)]

    def drop_kept(self) -> bool:
        """Forgets what the context keeps of texts that are over; whether there was any."""
        freed = self._cache.drop()
        self._free.extend(freed)
        return bool(freed)

    def _tell_positions(self) -> None:
        running = 1 if self._seated else 0
        for choice in self._seated:
            choice.generation.position = 0
        for position, party in enumerate(self._waiting, start=running):
            generation = party.generation
            if generation.position != position and generation.started_s is None:
                generation.position = position
                generation.delivery.touch()


def _wanted(generation: Generation) -> Wanted:
    settings = generation.settings
    if settings.deterministic:
        return Wanted.EXACT
    return Wanted.SAME_TEXT if settings.is_repeatable else Wanted.ALL


def check_texts(generation: Generation, context: "Context") -> None:
    """Raises `UNSUPPORTED` for more texts at a time than a context has sequences."""
    if generation.settings.texts > context.sequences:
        raise failure(
            Code.UNSUPPORTED, f"this model makes at most {context.sequences} texts of one prompt", argument="n"
        )
