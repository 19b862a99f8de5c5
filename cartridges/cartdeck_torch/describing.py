"""Owns one text on its way: what was asked, what is counted, how it ended.

It does not know what makes it. The counts are read by another thread while it is made.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from cartdeck_modelkit.phases import InferenceReporter, keeping_alive
from cartdeck_modelkit.provenance import FinishReason, Provenance
from cartdeck_protocol.progress import INFERENCE
from cartdeck_sdk import Output
from cartdeck_torch.job import Job

Write = Callable[[str, list[Any]], Awaitable[None]]


@dataclass(slots=True)
class Description:
    """A text of at most `max_tokens` that is being made; `most_tokens` is what there is room for."""

    prompt: str | None
    max_tokens: int
    most_tokens: int = 0
    prompt_tokens: int = 0
    prompt_done: int = 0
    completion_tokens: int = 0
    finish_reason: FinishReason | None = None

    def note(self, provenance: Provenance) -> None:
        """Puts the counts into the record."""
        provenance.finish_reason = self.finish_reason
        provenance.usage.prompt_tokens = self.prompt_tokens
        provenance.usage.completion_tokens = self.completion_tokens


async def pass_on(job: Job, description: Description, output: Output, *, what: str, write: Write | None = None) -> None:
    """Writes what the job says, with its progress, until it is over; raises what it raised. Giving up ends the job.

    `write(text, items)` takes what it says and puts; without it the text goes to the main output.
    """
    reporter: InferenceReporter | None = None

    def say() -> None:
        nonlocal reporter
        if job.position:
            message = f"Waiting: {job.position} before this one"
            output.progress(INFERENCE.base, message, phase="queue")
        elif description.prompt_done < description.prompt_tokens:
            done, total = description.prompt_done, description.prompt_tokens
            output.progress(INFERENCE.base, "Reading the prompt", phase="prompt", work=done, total=total)
        elif description.most_tokens:
            if reporter is None:
                reporter = InferenceReporter(output.progress, what, total=description.most_tokens)
                reporter.start()
            reporter.advance(description.completion_tokens)

    def repeat() -> None:
        if reporter is not None:
            reporter.repeat()
        else:
            output.progress(INFERENCE.base, what, phase="inference")

    try:
        async with keeping_alive(repeat):
            say()
            async for text in job.pieces():
                say()
                if write is not None:
                    await write(text, job.take())
                elif text:
                    await output.write(text)
    finally:
        job.cancel()
