"""Owns turning the bytes of an audio file into samples: one channel, at the rate that a model wants, or a clear error.

It does not know what listens to them. The format is found by the content alone. The one module that imports soundfile,
soxr and numpy; they are imported when there is audio.
"""

import struct
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from cartdeck_protocol.errors import CartdeckError, Code, failure

LONGEST_S: Final = 4 * 3600.0
"""Four hours at 16 kHz are 0.9 GB of samples."""
LOWEST_RATE_HZ: Final = 1000
"""Below it nothing is speech, and a few bytes of a header that lies would become hours of samples."""
HIGHEST_RATE_HZ: Final = 768_000
MOST_CHANNELS: Final = 64
_BLOCK_FRAMES: Final = 1 << 18
_SLACK_S: Final = 0.5
_UNKNOWN_SIZES: Final = frozenset({0, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x7FFF_FFFF - 36, 0xFFFF_FFFF - 36})
"""What programs that write into a pipe put where the size belongs."""


@dataclass(frozen=True, slots=True)
class Audio:
    """`samples` are little-endian float32 of one channel, -1 to 1, `rate_hz` of them a second."""

    samples: bytes
    rate_hz: int
    source_rate_hz: int
    source_channels: int

    @property
    def duration_s(self) -> float:
        return len(self.samples) / 4 / self.rate_hz


class _Bytes(BytesIO):
    """A damaged file may send its reader before the beginning: soundfile would print a traceback for it."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        try:
            return super().seek(offset, whence)
        except ValueError:
            return self.tell()


def decode_audio(data: bytes, *, rate_hz: int, argument: str = "audio") -> Audio:
    """The audio in `data`, its channels' mean, resampled to `rate_hz`. For a worker thread: an hour takes seconds.

    Raises `EMPTY_INPUT` for a file without samples, `BAD_AUDIO` for what is no audio of a known format, is damaged,
    shorter than its header says, or too long.
    """
    if not data:
        raise failure(Code.EMPTY_INPUT, "the audio has no bytes", argument=argument)
    refused = _named_container(data)
    if refused is not None:
        return _read_container(data, refused, rate_hz, argument)
    _check_wav(data, argument)
    import soundfile  # noqa: PLC0415 - only when there is audio  # pyright: ignore[reportMissingTypeStubs]  # none

    try:
        with soundfile.SoundFile(_Bytes(data)) as file:
            audio = _read(file, rate_hz, argument)
            if _tells_length(data):
                _check_length(audio, file.frames / file.samplerate, argument)
            return audio
    except CartdeckError:
        raise
    except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
        start = data[:12].hex(" ")
        reason = str(getattr(error, "error_string", error)).strip().rstrip(".")  # without the object that was opened
        raise _bad(f"it cannot be read ({reason}; its bytes begin with {start})", argument) from None


def _read_container(data: bytes, name: str, rate_hz: int, argument: str) -> Audio:
    from cartdeck_modelkit.av_audio import ContainerSound  # noqa: PLC0415 - seldom needed

    try:
        sound = ContainerSound(data)
    except ImportError:
        known = "WAV, FLAC, Ogg, MP3, AIFF and CAF"
        message = f"it is {name}, which is read where PyAV is installed (pip install 'cartdeck[av]'); or convert it to"
        raise _bad(f"{message} one of {known}", argument) from None
    try:
        return _read(sound, rate_hz, argument)
    finally:
        sound.close()


def _read(file: Any, rate_hz: int, argument: str) -> Audio:
    import numpy as np  # noqa: PLC0415 - as above
    import soxr  # noqa: PLC0415 - as above  # pyright: ignore[reportMissingTypeStubs]  # it has none

    source_hz, channels = int(file.samplerate), int(file.channels)
    if not LOWEST_RATE_HZ <= source_hz <= HIGHEST_RATE_HZ or not 0 < channels <= MOST_CHANNELS:
        raise _bad(f"it has {channels} channels of {source_hz:,} Hz", argument)
    if file.frames > LONGEST_S * source_hz and file.frames < 1 << 62:
        hours = file.frames / source_hz / 3600
        raise _bad(f"it is {hours:.1f} hours long, and at most {LONGEST_S / 3600:.0f} are taken", argument)
    resampler: Any = soxr.ResampleStream(source_hz, rate_hz, 1, dtype="float32", quality="HQ")
    parts: list[Any] = []
    frames = 0
    while len(block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
        frames += len(block)
        if frames > LONGEST_S * source_hz:
            raise _bad(f"it is longer than {LONGEST_S / 3600:.0f} hours", argument)
        one = np.ascontiguousarray(block.mean(axis=1) if channels > 1 else block[:, 0])
        parts.append(one if source_hz == rate_hz else resampler.resample_chunk(one))
    if not frames:
        raise failure(Code.EMPTY_INPUT, "the audio file has a header and no samples", argument=argument)
    if source_hz != rate_hz:
        parts.append(resampler.resample_chunk(np.zeros(0, np.float32), last=True))
    samples = np.nan_to_num(np.concatenate(parts), copy=False).clip(-1.0, 1.0)
    return Audio(samples.astype("<f4", copy=False).tobytes(), rate_hz, source_hz, channels)


def _named_container(data: bytes) -> str | None:
    """The name of a container that soundfile does not read."""
    brand = data[8:12]
    if data[4:8] == b"ftyp":
        return "an M4A file" if brand.startswith(b"M4A") else "an MP4 file"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "a WebM file" if b"webm" in data[:64] else "a Matroska file"
    if data[:2] in (b"\xff\xf1", b"\xff\xf9"):
        return "an AAC file"
    if data[:4] == b"\x30\x26\xb2\x75":
        return "a WMA file"
    return None


def _check_wav(data: bytes, argument: str) -> None:
    """libsndfile reads a WAV file that was cut off as a shorter one, and says nothing."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return
    place, bytes_a_second = 12, 0
    while place + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, place)
        if name == b"fmt " and size >= 12 and place + 20 <= len(data):
            bytes_a_second = struct.unpack_from("<I", data, place + 16)[0]
        if name == b"data":
            found = len(data) - place - 8
            if size not in _UNKNOWN_SIZES and found < size:
                there = f"{found:,} of {size:,} bytes"
                if bytes_a_second:
                    there = f"{found / bytes_a_second:.1f} of {size / bytes_a_second:.1f} seconds"
                raise _bad(f"it was cut off: {there} of its samples are there", argument)
            return
        place += 8 + size + size % 2


def _tells_length(data: bytes) -> bool:
    """Whether it is an MP3 file whose first frame says how many there are, as encoders write it."""
    start = 0
    if data[:3] == b"ID3" and len(data) > 10:
        start = 10 + sum(byte << 7 * place for place, byte in enumerate(reversed(data[6:10])))
    head = data[start : start + 64]
    return head[:1] == b"\xff" and (b"Xing" in head or b"Info" in head)


def _check_length(audio: Audio, whole_s: float, argument: str) -> None:
    """The decoder says nothing of a file that was cut off either."""
    if audio.duration_s < whole_s - _SLACK_S:
        raise _bad(f"it was cut off: {audio.duration_s:.1f} of {whole_s:.1f} seconds are there", argument)


def _bad(what: str, argument: str) -> CartdeckError:
    return failure(Code.BAD_AUDIO, f"the audio cannot be taken: {what}", argument=argument)
