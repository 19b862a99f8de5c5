"""Owns what a request says of its text on its way: its place in the queue, the prompt, the tokens.

It does not know how the text is made; it looks at the counts.
"""

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace

from cartdeck_gguf.generation import Generation, LogLine, Piece
from cartdeck_gguf.instance import Instance
from cartdeck_gguf.short_way import ShortWay
from cartdeck_modelkit.phases import SHORTEST_INTERVAL_S, InferenceReporter, keeping_alive
from cartdeck_protocol.progress import INFERENCE
from cartdeck_sdk import Output


async def follow(
    instance: Instance, generation: Generation, output: Output, *, is_plain: bool = False
) -> AsyncGenerator[Piece]:
    """Has the texts made; their pieces as they come, several that came at once as one. Progress and the engine's lines
    are told on the way. Raises what `Instance.generate` raises.

    `is_plain`: each piece is written to the main output before the next is asked for. Those of a lone text then go
    there by themselves behind the first one, and do not come here.
    """
    reporter = GenerationReporter(output, generation)
    way = ShortWay(generation, output, is_alone=lambda: instance.batcher.is_lone)
    async with keeping_alive(reporter.repeat), aclosing(instance.generate(generation)) as batches:
        reporter.report()
        try:
            async for items in batches:
                reporter.report()
                for item in items:
                    if isinstance(item, LogLine):
                        output.log(item.level, item.text)
                pieces = merged(item for item in items if isinstance(item, Piece))
                for piece in pieces:
                    yield piece
                if is_plain and pieces:
                    way.open()
        finally:
            way.close()


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """The same with fewer pieces: those of one text that follow each other become one."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last is None or last.index != piece.index:
            found.append(piece)
        else:
            found[-1] = replace(piece, text=last.text + piece.text, records=[*last.records, *piece.records])
    return found


class GenerationReporter:
    """Turns the counts of a generation into progress: waiting, reading the prompt, generating."""

    def __init__(self, output: Output, generation: Generation) -> None:
        self._output = output
        self._generation = generation
        self._first_position = 0
        self._last: tuple[str, int, int] | None = None
        self._last_s = float("-inf")
        self._tokens: InferenceReporter | None = None

    def report(self) -> None:
        """Says where the text stands, if that is news."""
        self._say(is_repeat=False)

    def repeat(self) -> None:
        """Says where the text stands, news or not: that the call is alive."""
        self._say(is_repeat=True)

    def _say(self, *, is_repeat: bool) -> None:
        generation, position = self._generation, self._generation.position
        self._first_position = max(self._first_position, position)
        if position:
            done, total = self._first_position - position, self._first_position
            self._count("queue", f"Waiting: {position} before this one", done, total, is_repeat=is_repeat)
        elif not generation.prompt_tokens or generation.prompt_done < generation.prompt_tokens:
            done, total = generation.prompt_done, generation.prompt_tokens
            self._count("prompt", "Reading the prompt", done, total, is_repeat=is_repeat)
        elif self._tokens is None:
            self._tokens = InferenceReporter(self._output.progress, "Generating", total=generation.most_tokens)
            self._tokens.start()
        elif is_repeat:
            self._tokens.repeat()
        else:
            self._tokens.advance(generation.completion_tokens)

    def _count(self, phase: str, message: str, done: int, total: int, *, is_repeat: bool) -> None:
        now, state, last = time.monotonic(), (phase, done, total), self._last
        is_due = phase == "queue" or now - self._last_s >= SHORTEST_INTERVAL_S
        if is_repeat or last is None or total != last[2] or (state != last and is_due):
            self._last, self._last_s = state, now
            is_counted = total > 0  # the tokens of a prompt are not counted before its turn
            work, whole = (done, total) if is_counted else (None, None)
            self._output.progress(INFERENCE.base, message, phase=phase, work=work, total=whole)
