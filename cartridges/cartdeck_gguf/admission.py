"""Owns who may be computed: a request's prompt made ready, what cannot fit refused at once, places in the context given
out and taken back.

It does not know the order of computing. A request is let in when the cells for its prompt and for the most that its
texts may become are free, in the order they came; a smaller one may pass one that waits for more, a few times.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cartdeck_gguf.choice import Choice
from cartdeck_gguf.generation import Generation
from cartdeck_gguf.loading import native_log
from cartdeck_gguf.prefix_cache import PrefixCache, Trace
from cartdeck_gguf.prompt import Prompt
from cartdeck_gguf.track import Track
from cartdeck_protocol.errors import CartdeckError, Code, failure

if TYPE_CHECKING:
    from cartdeck_gguf.loading import LoadedModel

MOST_PASSED: Final = 16
"""How often a request that waits for cells may be passed by smaller ones."""


class _Request:
    """A generation with its prompt as tokens, and its texts, which wait for places."""

    def __init__(self, generation: Generation, prompt: Prompt, choices: list[Choice]) -> None:
        self.generation = generation
        self.prompt = prompt
        self.choices = choices
        self.sequences: list[int] = []
        self.cells = len(prompt.tokens) + len(choices) * generation.max_tokens
        self.times_passed = 0


class Admission:
    """The requests that wait, and the places of those that are let in."""

    def __init__(self, model: "LoadedModel", cache: PrefixCache) -> None:
        self._model = model
        self._cache = cache
        self._free = list(range(model.context.sequences - 1, -1, -1))
        self._waiting: list[_Request] = []
        self._seated: dict[Generation, _Request] = {}
        self._cells_in_use = 0

    def add(self, generation: Generation) -> None:
        """Makes a request ready to wait. One that cannot be answered ends with its error: `EMPTY_INPUT`,
        `CONTEXT_OVERFLOW`, `BAD_ARGUMENT`, `INVALID_GRAMMAR`."""
        native_log.begin_section(generation.log)
        try:
            if generation.is_cancelled:
                raise failure(Code.CANCELLED, "the request was given up before its turn came", phase="queue")
            prompt = self._read_prompt(generation)
            choices = self._make_choices(generation)
        except CartdeckError as error:
            if error.code is Code.CANCELLED:
                generation.finish_reason = "cancelled"
            generation.delivery.end(error)
            return
        self._waiting.append(_Request(generation, prompt, choices))

    def _read_prompt(self, generation: Generation) -> Prompt:
        model, room, prompt = self._model, self._model.context_size, generation.prompt
        if isinstance(prompt, str):
            prompt = Prompt(_tokenize(model, prompt))
        count = generation.prompt_tokens = len(prompt.tokens)
        if not count:
            raise failure(
                Code.EMPTY_INPUT,
                "the prompt is empty, and this model has no beginning-of-text token to start from",
                argument="prompt",
                phase="inference",
            )
        texts = generation.settings.texts
        if count + texts > room:
            raise overflow(f"of {count:,} tokens", room, texts=texts, tokens=count)
        generation.max_tokens = min(generation.settings.max_tokens, (room - count) // texts)
        generation.most_tokens = generation.max_tokens * texts
        return prompt

    def _make_choices(self, generation: Generation) -> list[Choice]:
        model, choices = self._model, list[Choice]()
        if generation.settings.texts > min(model.context.sequences, len(generation.seeds)):
            raise failure(
                Code.UNSUPPORTED, f"this model makes at most {model.context.sequences} texts at a time", argument="n"
            )
        try:
            for index, seed in enumerate(generation.seeds):
                constraint = None if generation.constraint is None else generation.constraint.fork()
                sampler = model.new_sampler(generation.settings, seed, constraint)
                choices.append(Choice(generation, index, model=model.model, sampler=sampler))
        except BaseException:
            for choice in choices:
                choice.close()
            raise
        return choices

    def seat(self, live: Sequence[Track]) -> list[Track]:
        """Lets in those that fit now; the first text of each, the others follow once the prompt is computed."""
        if not self._waiting:
            return []
        seated: list[Track] = []
        for request in list(self._waiting):
            if not self._fits(request):
                if request.times_passed >= MOST_PASSED:
                    break
                continue
            for other in self._waiting[: self._waiting.index(request)]:
                other.times_passed += 1
            self._waiting.remove(request)
            seated.append(self._seat(request, [*live, *seated]))
        self._tell_positions()
        return seated

    def _fits(self, request: _Request) -> bool:
        is_room = self._cells_in_use + request.cells <= self._model.context_size
        places = len(self._free) + self._cache.resident_count
        return is_room and len(request.choices) <= places

    def _seat(self, request: _Request, live: Sequence[Track]) -> Track:
        generation, prompt = request.generation, request.prompt
        generation.started_s = time.monotonic()
        traces = [track.trace for track in live]
        if not self._free:
            self._free.extend(self._cache.drop())
        trace = Trace([], sequence=self._free.pop())
        match = self._cache.find(prompt.tokens, traces, is_exact=generation.settings.deterministic)
        length = prompt.whole_length(match.length) if match is not None else 0
        if match is not None and length and self._cache.use(match.trace, length, trace.sequence):
            trace.tokens, trace.exact = prompt.tokens[:length], min(match.trace.exact, length)
            trace.exact -= trace.exact % self._model.slice_tokens
            generation.cached_tokens = generation.prompt_done = length
        self._free.extend(self._cache.park([*traces, trace]))
        request.sequences = [self._free.pop() for _ in request.choices[1:]]
        self._cells_in_use += request.cells
        self._seated[generation] = request
        return Track(request.choices[0], prompt, trace)

    def siblings(self, track: Track) -> list[Track]:
        """The other texts of a request whose prompt was just computed, each in a place that shares it; later on []."""
        request = self._seated[track.generation]
        sequences, request.sequences = request.sequences, []
        made: list[Track] = []
        for choice, sequence in zip(request.choices[1:], sequences, strict=False):
            self._model.context.copy(track.sequence, sequence, len(track.trace.tokens))
            trace = Trace(list(track.trace.tokens), track.trace.exact, sequence)
            made.append(Track(choice, track.prompt, trace))
        return made

    def leave(self, track: Track, *, is_sound: bool = True) -> None:
        """Takes back the place of a text that is over; what it has seen is kept for the next prompt."""
        trace, context = track.trace, self._model.context
        sequence, track.trace = trace.sequence, Trace([])
        if not (is_sound and context.is_divisible and self._cache.keep(trace)):
            context.forget(sequence)
            self._free.append(sequence)

    def release(self, generation: Generation) -> None:
        """Takes back the cells of a request that is over."""
        request = self._seated.pop(generation, None)
        if request is not None:
            self._cells_in_use -= request.cells
            self._free.extend(request.sequences)
            for choice in request.choices:
                choice.close()

    def drop_cancelled(self) -> None:
        """Ends the requests that wait and were given up."""
        for request in [one for one in self._waiting if one.generation.is_cancelled]:
            request.generation.finish_reason = "cancelled"
            message = "the request was given up before its turn came"
            self._end_waiting(request, failure(Code.CANCELLED, message, phase="queue"))

    def end_waiting(self, error: Exception) -> None:
        """Ends every request that waits."""
        for request in list(self._waiting):
            self._end_waiting(request, error)

    def _end_waiting(self, request: _Request, error: Exception) -> None:
        self._waiting.remove(request)
        for choice in request.choices:
            choice.close()
        request.generation.delivery.end(error)

    def drop_kept(self) -> bool:
        """Forgets what the context keeps of texts that are over; whether there was any."""
        freed = self._cache.drop()
        self._free.extend(freed)
        return bool(freed)

    def _tell_positions(self) -> None:
        running = 1 if self._seated else 0
        for request in self._seated.values():
            request.generation.position = 0
        for position, request in enumerate(self._waiting, start=running):
            if request.generation.position != position:
                request.generation.position = position
                request.generation.delivery.touch()


def _tokenize(model: "LoadedModel", text: str) -> list[int]:
    room = model.context_size
    if len(text) > room * model.vocabulary.longest_token_bytes or model.model.exceeds(text, room):
        raise overflow(f"of {len(text):,} characters", room)
    unknown = model.vocabulary.unknown_characters(text)
    if unknown:
        raise failure(
            Code.BAD_ARGUMENT,
            f"this model's vocabulary has no token for {', '.join(map(repr, unknown[:10]))} in the prompt",
            argument="prompt",
            phase="inference",
        )
    return model.model.tokenize(text)


def overflow(what: str, room: int, *, texts: int = 1, tokens: int | None = None) -> CartdeckError:
    """The error for a prompt that leaves no room in the context, in words that say what was found."""
    wanted = "one of which is for the answer" if texts == 1 else f"{texts} of which are for the answers"
    return failure(
        Code.CONTEXT_OVERFLOW,
        f"a prompt {what} does not fit a context of {room:,} tokens, {wanted}",
        argument="prompt",
        phase="inference",
        details={"prompt_tokens": tokens, "context_size": room},
    )
