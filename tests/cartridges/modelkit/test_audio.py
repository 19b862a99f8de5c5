"""Audio of any rate and number of channels becomes samples at one rate; what cannot be read is named."""

import contextlib
import io
import sys
from typing import Any

import pytest

np = pytest.importorskip("numpy")
soundfile = pytest.importorskip("soundfile", reason="the extra torch is not installed")

from cartdeck_modelkit.audio import Audio, decode_audio  # noqa: E402 - after what it needs is known to be there
from cartdeck_protocol.errors import CartdeckError, Code  # noqa: E402 - the same


def tone(hz: float, *, rate_hz: int, seconds: float = 1.0, channels: int = 1) -> Any:
    wave = 0.5 * np.sin(2 * np.pi * hz * np.arange(int(rate_hz * seconds)) / rate_hz).astype(np.float32)
    return wave if channels == 1 else np.stack([wave] * channels, axis=1)


def as_file(samples: Any, rate_hz: int, kind: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format=kind)
    return file.getvalue()


def strongest_hz(audio: Audio) -> float:
    samples = np.frombuffer(audio.samples, "<f4")
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax() * audio.rate_hz / len(samples))


def error_of(data: bytes) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        decode_audio(data, rate_hz=16000)
    return caught.value


@pytest.mark.parametrize("rate_hz", [8000, 12000, 16000, 44100, 48000])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_tone_keeps_its_pitch_at_every_rate(rate_hz: int, channels: int) -> None:
    audio = decode_audio(as_file(tone(1000, rate_hz=rate_hz, channels=channels), rate_hz), rate_hz=16000)
    assert strongest_hz(audio) == pytest.approx(1000, rel=0.01)
    assert audio.duration_s == pytest.approx(1.0, abs=0.002)
    assert (audio.source_rate_hz, audio.source_channels) == (rate_hz, channels)
    middle = np.frombuffer(audio.samples, "<f4")[4000:12000]
    assert np.abs(middle).max() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "MP3", "AIFF", "CAF"])
def test_the_usual_containers_are_read(kind: str) -> None:
    audio = decode_audio(as_file(tone(440, rate_hz=44100), 44100, kind), rate_hz=16000)
    assert strongest_hz(audio) == pytest.approx(440, rel=0.01)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\0\0\0\x20ftypM4A \0\0\0\0", "M4A"),
        (b"\0\0\0\x20ftypisom\0\0\0\0", "MP4"),
        (b"\x1a\x45\xdf\xa3\x01\0\0\0webm", "WebM"),
        (b"\x1a\x45\xdf\xa3\x01\0\0\0matroska", "Matroska"),
        (b"\xff\xf1\x50\x80", "AAC"),
    ],
)
def test_containers_that_are_not_read_are_refused_by_name(
    data: bytes, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)  # as where PyAV is not installed
    error = error_of(data + b"\0" * 100)
    assert error.code is Code.BAD_AUDIO
    assert name in error.message
    assert "cartdeck[av]" in error.message


def in_container(form: str, codec: str, *, length_s: float = 2.0, sound: bool = True) -> bytes:
    """A tone of 440 Hz, two channels at 48 kHz."""
    av = pytest.importorskip("av")
    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=48_000, layout="stereo") if sound else container.add_stream("mpeg4")
        if sound:
            wave = tone(440, rate_hz=48_000, seconds=length_s, channels=2).T
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(wave), format="fltp", layout="stereo")
            frame.sample_rate = 48_000
            container.mux(stream.encode(frame))
        else:
            stream.width = stream.height = 32
            container.mux(stream.encode(av.VideoFrame(32, 32, "yuv420p")))
        container.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.parametrize(("form", "codec"), [("ipod", "aac"), ("mp4", "aac"), ("webm", "libopus"), ("adts", "aac")])
def test_containers_are_read_where_their_library_is_there(form: str, codec: str) -> None:
    audio = decode_audio(in_container(form, codec), rate_hz=16_000)
    assert (audio.source_rate_hz, audio.source_channels) == (48_000, 2)
    assert audio.duration_s == pytest.approx(2.0, abs=0.1)
    assert strongest_hz(audio) == pytest.approx(440, rel=0.01)


def test_an_mp3_file_that_is_shorter_than_its_first_frame_says_is_named() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(3 * 16000, np.float32), 16000, format="MP3")
    data = file.getvalue()
    tagged = b"ID3\x04\x00\x00\x00\x00\x00\x10" + bytes(16) + data
    for whole in (data, tagged):
        assert decode_audio(whole, rate_hz=16000).duration_s == pytest.approx(3, abs=0.2)
        with pytest.raises(CartdeckError, match=r"it was cut off: 1\.\d of 3\.\d seconds are there") as caught:
            decode_audio(whole[: len(whole) // 2], rate_hz=16000)
        assert caught.value.code is Code.BAD_AUDIO


def test_a_container_without_sound_or_cut_off_says_so() -> None:
    assert "no sound" in error_of(in_container("mp4", "aac", sound=False)).message
    whole = in_container("matroska", "libopus", length_s=8)
    for data in (whole[: len(whole) // 2], in_container("mp4", "aac")[:4000]):
        assert error_of(data).code is Code.BAD_AUDIO


def test_no_bytes_and_no_samples_are_empty() -> None:
    assert error_of(b"").code is Code.EMPTY_INPUT
    assert error_of(as_file(np.zeros(0, np.float32), 16000)).code is Code.EMPTY_INPUT


@pytest.mark.parametrize(("place", "value"), [(22, b"\xff\xff"), (24, bytes([1, 0, 0, 0])), (24, b"\xff" * 4)])
def test_a_header_of_channels_or_a_rate_that_nothing_has_is_refused(place: int, value: bytes) -> None:
    data = as_file(np.zeros(16000, np.float32), 16000)
    assert error_of(data[:place] + value + data[place + len(value) :]).code is Code.BAD_AUDIO


def test_a_damaged_file_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    data = as_file(tone(440, rate_hz=16000), 16000, "RF64")
    for place in range(16, 40):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        with contextlib.suppress(CartdeckError):
            decode_audio(bytes(damaged), rate_hz=16000)
    assert "Traceback" not in capfd.readouterr().err


def test_samples_without_a_header_are_no_audio() -> None:
    error = error_of(tone(440, rate_hz=16000).tobytes())
    assert error.code is Code.BAD_AUDIO
    assert "BytesIO" not in error.message


def test_a_file_that_is_shorter_than_its_header_says_is_named() -> None:
    whole = as_file(tone(440, rate_hz=16000, seconds=4), 16000)
    error = error_of(whole[: len(whole) // 2])
    assert error.code is Code.BAD_AUDIO
    assert "2.0 of 4.0 seconds" in error.message
    piped = bytearray(whole)
    place = whole.index(b"data") + 4
    piped[place : place + 4] = b"\xff\xff\xff\xff"
    assert decode_audio(bytes(piped), rate_hz=16000).duration_s == pytest.approx(4, abs=0.01)


@pytest.mark.parametrize("frames", [1, 160])
def test_a_moment_of_audio_is_enough(frames: int) -> None:
    audio = decode_audio(as_file(np.full(frames, 0.25, np.float32), 44100), rate_hz=16000)
    assert np.isfinite(np.frombuffer(audio.samples, "<f4")).all()
