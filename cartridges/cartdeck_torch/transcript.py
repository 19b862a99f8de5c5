"""Owns what a request for a transcript says on its way: text, segments, how much of the recording is done.

It does not know what listens.
"""

import time

from cartdeck_modelkit.phases import SHORTEST_INTERVAL_S, keeping_alive
from cartdeck_protocol.progress import INFERENCE
from cartdeck_sdk import Output
from cartdeck_torch.job import Job
from cartdeck_torch.speech import Transcription


async def write_transcript(job: Job, asked: Transcription, output: Output, *, with_segments: bool) -> None:
    """Writes what the job says until it is over; raises what it raised. Giving up ends the job.

    Progress counts seconds of the recording.
    """
    last_s = float("-inf")

    def repeat() -> None:
        if job.position:
            output.progress(INFERENCE.base, f"Waiting: {job.position} before this one", phase="queue")
            return
        done_s, total_s = asked.done_s, asked.duration_s
        message = f"Transcribing: {done_s:.1f} of {total_s:.1f} seconds"
        fraction = INFERENCE.at(done_s / total_s if total_s else 0.0)
        output.progress(fraction, message, phase="inference", work=round(done_s, 3), total=round(total_s, 3))

    try:
        async with keeping_alive(repeat):
            repeat()
            async for text in job.pieces():
                if with_segments:
                    for segment in job.take():
                        await output.stream("segments").item(segment.record())
                if text:
                    await output.write(text)
                now = time.monotonic()
                if now - last_s >= SHORTEST_INTERVAL_S:
                    last_s = now
                    repeat()
    finally:
        job.cancel()
