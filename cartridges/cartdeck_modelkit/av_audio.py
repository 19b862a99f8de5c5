"""Owns sound in containers that soundfile does not read (M4A, MP4, WebM, AAC), where PyAV is installed.

It does not know what listens to it. The one module that imports PyAV, which brings the codecs of FFmpeg.
"""

from collections.abc import Iterator
from io import BytesIO
from typing import Any, Final

from cartdeck_protocol.errors import CartdeckError, Code, failure

SHORTEST_LACK_S: Final = 0.5
"""So much may be missing of what a header says: encoders pad and cut."""


class ContainerSound:
    """The first sound of a container, to be read in blocks, as soundfile's files are."""

    def __init__(self, data: bytes) -> None:
        """Raises `ImportError` where PyAV is not installed, and `BAD_AUDIO` for what it cannot open or has no sound."""
        import av  # noqa: PLC0415 - an extra of its own, 35 MB

        library: Any = av  # not all of it has types
        self._errors: tuple[type[Exception], ...] = (library.FFmpegError, ValueError, IndexError)
        try:
            self._container: Any = av.open(BytesIO(data), mode="r", metadata_errors="ignore")
            streams = self._container.streams.audio
            if not streams:
                raise _bad("it holds no sound")
            stream = streams[0]
            self.samplerate = int(stream.codec_context.sample_rate)
            self.channels = int(stream.codec_context.channels)
            declared: Any = stream.duration
            whole_us = self._container.duration or 0
            self._declared_s = float(declared * stream.time_base) if declared else whole_us / 1e6
            resampler: Any = av.AudioResampler(format="fltp")
            frames: Any = self._container.decode(stream)
            self._blocks: Iterator[Any] = (block for frame in frames for block in resampler.resample(frame))
        except self._errors as error:
            raise _bad(f"it cannot be opened ({error})") from None
        self.frames = int(self._declared_s * self.samplerate)
        self._done = 0

    def read(self, _size: int, **_options: Any) -> Any:
        """[frames, channels] float32 of some more of it; nothing at the end. Raises `BAD_AUDIO` for what is damaged, or
        shorter than its header says."""
        try:
            block = next(self._blocks, None)
        except self._errors as error:
            raise _bad(f"it is damaged behind {self._done / self.samplerate:.1f} seconds ({error})") from None
        if block is None:
            self._check_length()
            return ()
        self._done += block.samples
        return block.to_ndarray().T

    def close(self) -> None:
        self._container.close()

    def _check_length(self) -> None:
        found_s = self._done / self.samplerate
        if self._done and self._declared_s - found_s > max(SHORTEST_LACK_S, self._declared_s / 50):
            raise _bad(f"it was cut off: {found_s:.1f} of {self._declared_s:.1f} seconds of its samples are there")


def _bad(what: str) -> CartdeckError:
    return failure(Code.BAD_AUDIO, f"the audio cannot be taken: {what}", argument="audio")
