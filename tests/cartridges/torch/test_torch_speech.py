"""Speech: written down where somebody speaks, with times that are right, and nothing where nobody does."""

import asyncio
import io
import itertools
import json
import re
import sys
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from cartdeck import Data, Engine, Progress
from cartdeck_modelkit.audio import decode_audio
from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_torch.folder import read_folder
from cartdeck_torch.job import Job
from cartdeck_torch.settings import LoadSettings
from cartdeck_torch.speech import Part, Segment, Transcription, Window, next_window, split_marks

# The first of them fetches a model and converts it, once for a machine.
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated:DeprecationWarning"),  # the voice detector is one
]

AUDIO = Path(__file__).resolve().parents[2] / "data" / "audio"
WithEngine = Callable[[Callable[[Engine], Awaitable[Any]]], Any]
CAP = "cap:transcribe-speech;torch"
FOX = "The quick brown fox jumps over the lazy dog."
RATE = 16000


def fox() -> Any:
    samples, rate_hz = soundfile.read(AUDIO / "quick_brown_fox.flac", dtype="float32")
    assert rate_hz == RATE
    return samples


def as_file(samples: Any, rate_hz: int = RATE, kind: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format=kind)
    return file.getvalue()


def silence(seconds: float) -> Any:
    return np.zeros(int(seconds * RATE), np.float32)


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


class Heard:
    """What a call gave."""

    def __init__(self, events: list[Any]) -> None:
        self.text = b"".join(one.value for one in events if isinstance(one, Data) and one.output == "").decode()
        self.segments = [one.value for one in events if isinstance(one, Data) and one.output == "segments"]
        self.segments = [json.loads(one) if isinstance(one, bytes | str) else one for one in self.segments]
        self.steps = [one for one in events if isinstance(one, Progress)]
        self.provenance = events[-1].provenance


async def hear(engine: Engine, model: Path, audio: bytes, **changes: Any) -> Heard:
    arguments = {"model": str(model), "audio": audio, "threads": 1, **changes}
    async with engine.call(CAP, arguments) as call:
        return Heard([event async for event in call])


def open_transcriber(path: Path) -> Any:
    from cartdeck_torch.engine.models import open_model
    from cartdeck_torch.engine.torch_device import open_device

    device = open_device("cpu", threads=1)
    return open_model(read_folder(path), LoadSettings(threads=1), device, report=lambda _: None)


@pytest.fixture(scope="module")
def transcriber(whisper_tiny: Path) -> Any:
    return open_transcriber(whisper_tiny)


def test_a_sentence_is_written_down_with_its_times(with_engine: WithEngine, whisper_tiny: Path) -> None:
    async def use(engine: Engine) -> None:
        heard = await hear(engine, whisper_tiny, (AUDIO / "quick_brown_fox.flac").read_bytes())
        assert heard.text == FOX
        (segment,) = heard.segments
        assert segment["text"] == FOX
        assert 0 <= segment["start_s"] < 0.5
        assert 2.2 < segment["end_s"] <= 2.9
        assert segment["tokens"]
        assert -1 < segment["avg_logprob"] < 0
        assert 0 <= segment["no_speech_prob"] < 0.5
        assert (segment["temperature"], segment["window_start_s"]) == (0, pytest.approx(0, abs=0.5))
        assert 0.7 < segment["compression_ratio"] < 1
        assert heard.provenance["finish_reason"] == "stop"
        assert heard.provenance["settings"]["language"] == "en"
        assert heard.provenance["settings"]["audio_s"] == pytest.approx(2.889, abs=0.01)
        inference = [step for step in heard.steps if step.phase == "inference"]
        assert inference[-1].total == pytest.approx(2.889, abs=0.01)
        plain = await hear(engine, whisper_tiny, (AUDIO / "quick_brown_fox.flac").read_bytes(), timestamps=False)
        assert (plain.text, plain.segments) == (FOX, [])
        searched = await hear(engine, whisper_tiny, (AUDIO / "quick_brown_fox.flac").read_bytes(), beams=2)
        assert words_of(searched.text) == words_of(FOX)

    with_engine(use)


def test_rate_channels_and_container_do_not_matter(with_engine: WithEngine, whisper_tiny: Path) -> None:
    import soxr

    async def use(engine: Engine) -> None:
        high = soxr.resample(fox(), RATE, 48000)
        heard = await hear(engine, whisper_tiny, as_file(np.stack([high, high], axis=1), 48000, "OGG"))
        assert words_of(heard.text) == words_of(FOX)

    with_engine(use)


def test_speech_after_a_long_silence_begins_when_it_does(with_engine: WithEngine, whisper_tiny: Path) -> None:
    async def use(engine: Engine) -> None:
        heard = await hear(engine, whisper_tiny, as_file(np.concatenate([silence(20), fox()])))
        assert words_of(heard.text) == words_of(FOX)
        assert heard.segments[0]["start_s"] == pytest.approx(20.0, abs=0.5)

    with_engine(use)


def test_where_nobody_speaks_nothing_is_written(with_engine: WithEngine, whisper_tiny: Path) -> None:
    dice = np.random.default_rng(0)
    seconds = np.arange(5 * RATE) / RATE
    clicks = np.zeros(5 * RATE, np.float32)
    clicks[:: RATE // 3] = 0.9
    sounds = {
        "zeros": silence(5),
        "hum": 0.2 * np.sin(2 * np.pi * 50 * seconds),
        "tone": 0.5 * np.sin(2 * np.pi * 1000 * seconds),
        "noise": 0.1 * dice.standard_normal(5 * RATE),
        "clicks": clicks,
        "one sample": np.array([0.5]),
        "a moment": np.full(160, 0.1),
    }

    async def use(engine: Engine) -> None:
        await hear(engine, whisper_tiny, as_file(fox()))
        for name, samples in sounds.items():
            started = time.monotonic()
            heard = await hear(engine, whisper_tiny, as_file(samples.astype(np.float32)))
            assert (name, heard.text, heard.segments) == (name, "", [])
            assert time.monotonic() - started < 30  # below half a second on a machine that does nothing else
        for empty in (b"", as_file(silence(0))):
            with pytest.raises(CartdeckError) as caught:
                await hear(engine, whisper_tiny, empty)
            assert caught.value.code is Code.EMPTY_INPUT

    with_engine(use)


def test_nothing_is_lost_behind_the_thirtieth_second(with_engine: WithEngine, whisper_tiny: Path) -> None:
    """Sentences at the beginning, around the thirtieth second, and late; and at the very end of about thirty."""
    starts = (0.0, 27.5, 31.0, 71.0)
    audio = np.zeros(75 * RATE, np.float32)
    for start_s in starts:
        audio[int(start_s * RATE) :][: len(fox())] = fox()

    async def use(engine: Engine) -> None:
        heard = await hear(engine, whisper_tiny, as_file(audio))
        assert words_of(heard.text).count("fox") == 4
        begins = [segment["start_s"] for segment in heard.segments if "quick" in segment["text"].lower()]
        assert begins == pytest.approx(starts, abs=1.0)
        ends = [segment["end_s"] for segment in heard.segments]
        assert all(one <= other for one, other in itertools.pairwise(ends))
        assert ends[-1] <= 75
        assert heard.provenance["settings"]["audio_s"] == pytest.approx(75)
        assert "  " not in heard.text
        for length_s in (29.9, 30.0, 30.1):
            late = await hear(engine, whisper_tiny, as_file(np.concatenate([silence(length_s)[len(fox()) :], fox()])))
            assert words_of(late.text) == words_of(FOX)
            assert late.segments[0]["start_s"] == pytest.approx(length_s - 2.9, abs=0.5)
            assert late.provenance["settings"]["audio_s"] == pytest.approx(length_s, abs=0.01)

    with_engine(use)


def test_speech_without_a_pause_is_heard_to_its_end(with_engine: WithEngine, whisper_tiny: Path) -> None:
    audio = np.concatenate([fox()] * 11)  # 32 s

    async def use(engine: Engine) -> None:
        heard = await hear(engine, whisper_tiny, as_file(audio))
        assert words_of(heard.text).count("fox") >= 10
        assert heard.segments[-1]["end_s"] > 30.5

    with_engine(use)


def test_a_cancel_ends_it_within_a_step_and_keeps_what_was_written(with_engine: WithEngine, whisper_tiny: Path) -> None:
    audio = np.concatenate([np.concatenate([fox(), silence(29)]) for _ in range(3)])

    async def use(engine: Engine) -> None:
        arguments = {"model": str(whisper_tiny), "audio": as_file(audio), "threads": 1}
        await hear(engine, whisper_tiny, as_file(fox()))
        text = ""
        async with engine.call(CAP, arguments) as call:
            async for event in call:
                if isinstance(event, Data) and event.output == "":
                    text += event.value.decode()
                    break
            call.cancel("enough")
            started = time.monotonic()
            with pytest.raises(CartdeckError) as caught:
                async for _ in call:
                    pass
            assert caught.value.code is Code.CANCELLED
        assert words_of(text)[: len(words_of(FOX))] == words_of(FOX)  # more may have come with it
        assert (await hear(engine, whisper_tiny, as_file(fox()))).text == FOX
        assert time.monotonic() - started < 30

    with_engine(use)


def test_what_a_model_of_english_cannot_do_is_said(with_engine: WithEngine, whisper_tiny: Path) -> None:
    async def use(engine: Engine) -> None:
        for changes, argument in (({"task": "translate"}, "task"), ({"language": "fr"}, "language")):
            with pytest.raises(CartdeckError) as caught:
                await hear(engine, whisper_tiny, as_file(fox()), **changes)
            assert (caught.value.code, caught.value.argument) == (Code.UNSUPPORTED, argument)

    with_engine(use)


class CountingJob(Job):
    """Knows how many tokens there were whenever it was given text."""

    def __init__(self, asked: Transcription) -> None:
        super().__init__()
        self.counts: list[int] = []
        self._asked = asked

    def say(self, text: str) -> None:
        self.counts.append(self._asked.completion_tokens)
        super().say(text)


def test_a_segment_is_said_as_it_closes_not_with_its_window(transcriber: Any) -> None:
    asked = Transcription(np.concatenate([fox(), silence(1), fox(), silence(1), fox()]).tobytes(), RATE)

    async def run() -> tuple[list[int], list[str]]:
        job = CountingJob(asked)
        transcriber.transcribe(asked, job)
        return job.counts, [segment.text.strip() for segment in job.take()]

    counts, texts = asyncio.run(run())
    assert words_of(" ".join(texts)) == words_of(FOX) * 3
    assert len(counts) == len(texts) > 1
    assert counts[0] < counts[-1]
    assert counts[0] <= asked.completion_tokens // 2


def segments_of(transcriber: Any, asked: Transcription) -> list[Segment]:
    async def run() -> list[Segment]:
        job = Job()
        transcriber.transcribe(asked, job)
        return job.take()

    return asyncio.run(run())


def test_a_segment_has_what_the_model_told_of_it(transcriber: Any) -> None:
    import torch

    rules, start = transcriber._rules, transcriber._start
    samples = np.concatenate([silence(1), fox(), silence(10), fox()])
    first, second = segments_of(transcriber, Transcription(samples.tobytes(), RATE))
    assert first.window_start_s == pytest.approx(0.8, abs=0.4)
    assert second.window_start_s == pytest.approx(13.7, abs=0.4)
    for segment in (first, second):
        assert segment.tokens[0] >= rules.first_mark
        assert segment.tokens[-1] >= rules.first_mark
        said = transcriber.tokenizer.decode([one for one in segment.tokens if one < rules.end])
        assert said.strip() == segment.text.strip() == FOX
        # the same from one pass over the whole window, row by row
        begin, end = (int(segment.window_start_s * RATE), int((segment.end_s + 0.2) * RATE))
        values = transcriber.features(samples[begin:end], sampling_rate=RATE, return_tensors="pt")["input_features"]
        ids = torch.tensor([[start, *segment.tokens]])
        with torch.inference_mode():
            logits = transcriber.model(input_features=values, decoder_input_ids=ids).logits[0].float()
        logits = torch.from_numpy(logits.numpy().copy())  # one that may be changed
        silent = float(logits[0].softmax(0)[transcriber.tokenizer.token_to_id("<|nocaptions|>")])
        assert segment.no_speech_prob == pytest.approx(silent, rel=0.2, abs=1e-3)
        odds: list[float] = []
        for place, token in enumerate(segment.tokens):
            rules.apply(logits[place], segment.tokens[:place])
            odds.append(float(logits[place].log_softmax(0)[token]))
        assert segment.avg_logprob == pytest.approx(sum(odds) / len(odds), abs=0.02)
        assert -1 < sum(odds) / len(odds) < 0


def test_likelihoods_are_the_same_however_a_reading_was_found(transcriber: Any) -> None:
    (plain,) = segments_of(transcriber, Transcription(fox().tobytes(), RATE))
    (searched,) = segments_of(transcriber, Transcription(fox().tobytes(), RATE, beams=2))
    assert searched.tokens == plain.tokens
    assert searched.avg_logprob == pytest.approx(plain.avg_logprob, abs=1e-3)
    assert searched.no_speech_prob == pytest.approx(plain.no_speech_prob, abs=1e-4)


@pytest.mark.parametrize("beams", [1, 2])
def test_a_model_that_gives_no_numbers_says_so(transcriber: Any, beams: int) -> None:
    import torch

    layer = transcriber.model.model.decoder.layer_norm
    before = layer.weight.detach().clone()
    try:
        with torch.no_grad():
            layer.weight.fill_(float("nan"))
        with pytest.raises(CartdeckError) as caught:
            segments_of(transcriber, Transcription(fox().tobytes(), RATE, beams=beams))
        assert caught.value.code is Code.NON_FINITE_OUTPUT
    finally:
        with torch.no_grad():
            layer.weight.copy_(before)


def test_a_search_hears_a_window_once_and_the_next_one_hears_the_rest(transcriber: Any) -> None:
    samples = np.concatenate([fox(), silence(21.2), fox(), fox(), fox()])[: int(31.5 * RATE)]
    segments = segments_of(transcriber, Transcription(samples.tobytes(), RATE, beams=2, spoken=[(0.0, 31.5)]))
    starts_s = [one.start_s for one in segments]
    assert starts_s == sorted(starts_s)
    assert len({one.window_start_s for one in segments}) == 2
    assert all("fox" in words_of(one.text) for one in segments)  # of the rest of a window it makes what nobody said


def test_the_record_of_a_segment_leaves_out_what_nobody_knows() -> None:
    known = Segment(1.234, 2.0, " la la la la la la la la", tokens=[7], avg_logprob=-0.12345678, no_speech_prob=1e-9)
    record = known.record()
    assert record["text"] == "la la la la la la la la"
    assert record["compression_ratio"] == round(23 / len(zlib.compress(b"la la la la la la la la")), 4)
    assert (record["avg_logprob"], record["no_speech_prob"]) == (-0.123457, 1e-9)
    assert set(record) - set(Segment(0.0, 1.0, "a").record()) == {"avg_logprob", "no_speech_prob"}


@pytest.mark.parametrize("beams", [1, 2])
def test_a_cancel_acts_within_a_layer_of_what_listens(transcriber: Any, beams: int) -> None:
    layers = transcriber.model.model.encoder.layers
    passed: list[int] = []

    async def run() -> None:
        job = Job()
        hooks = [layer.register_forward_hook(lambda *_: passed.append(1)) for layer in layers]
        hooks.append(layers[1].register_forward_hook(lambda *_: job.stop.set()))
        try:
            transcriber.transcribe(Transcription(fox().tobytes(), RATE, beams=beams), job)
        finally:
            for hook in hooks:
                hook.remove()

    with pytest.raises(CartdeckError) as caught:
        asyncio.run(run())
    assert caught.value.code is Code.CANCELLED
    assert (len(passed), len(layers)) == (2, 4)


@pytest.mark.parametrize(
    ("name", "value"),
    [("lang_to_id", {"<|en|>": 999_999}), ("lang_to_id", {"<|en|>": -1}), ("no_timestamps_token_id", "many")],
)
def test_a_token_that_the_model_does_not_have_is_refused_when_it_is_loaded(
    whisper_tiny: Path, tmp_path: Path, name: str, value: Any
) -> None:
    for file in whisper_tiny.iterdir():
        (tmp_path / file.name).symlink_to(file)
    path = tmp_path / "generation_config.json"
    record = json.loads(path.read_text("utf-8"))
    path.unlink()
    path.write_text(json.dumps({**record, name: value}), "utf-8")
    with pytest.raises(CartdeckError) as caught:
        open_transcriber(tmp_path)
    assert caught.value.code is Code.BAD_MODEL_FILE


def test_the_voice_detector_leaves_the_number_of_threads_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from cartdeck_torch.engine import voice

    for module in [one for one in sys.modules if one.partition(".")[0] == "silero_vad"]:
        monkeypatch.delitem(sys.modules, module)
    voice._detector.cache_clear()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ((start_s, end_s),) = voice.find_speech(torch.from_numpy(fox()), on_progress=lambda _: None)
        assert torch.get_num_threads() == 2
        assert start_s < 0.5
        assert end_s > 2.2
    finally:
        torch.set_num_threads(before)


def test_the_voice_detector_says_the_same_of_many_frames_at_once() -> None:
    import torch

    from cartdeck_torch.engine import voice

    detector, _ = voice._detector()
    samples = torch.from_numpy(np.concatenate([fox(), silence(1), *[fox()] * 6, fox()[: 7 * 512 + 100]]))
    with torch.no_grad():
        judged = torch.cat(list(voice.Judge(detector).blocks(samples)))
        detector.reset_states()
        frames = frames_of(samples, 512)
        assert len(frames) > voice._BLOCK  # so that what is remembered goes from one block to the next
        expected = torch.cat([detector(frame, RATE)[0] for frame in frames])
    assert judged.shape == expected.shape
    assert float((judged - expected).abs().max()) < 1e-4
    assert float(expected.max()) > 0.9
    assert voice._judge() is not None


def frames_of(samples: Any, size: int) -> list[Any]:
    """Frames of `size` samples, the last filled up with zeros."""
    import torch

    return list(torch.nn.functional.pad(samples, (0, -len(samples) % size)).split(size))


class Stranger:
    """A voice detector with other layers: it hears speech in each frame that is loud."""

    def reset_states(self) -> None:
        pass

    def __call__(self, frame: Any, rate_hz: int) -> Any:
        return (frame.abs().max() > 0.01).float().reshape(1, 1)


def test_a_voice_detector_that_is_built_otherwise_is_asked_frame_by_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from cartdeck_torch.engine import voice

    _, ask = voice._detector()
    monkeypatch.setattr(voice, "_detector", lambda: (Stranger(), ask))
    voice._judge.cache_clear()
    try:
        samples = torch.from_numpy(np.concatenate([silence(1), np.full(RATE, 0.5, np.float32), silence(1)]))
        ((start_s, end_s),) = voice.find_speech(samples, on_progress=lambda _: None)
        assert voice._judge() is None
        assert (start_s, end_s) == (pytest.approx(1, abs=0.2), pytest.approx(2, abs=0.2))
    finally:
        voice._judge.cache_clear()


@pytest.mark.timeout(600)  # twice as much is fetched
def test_a_language_is_found_or_taken_as_given_and_translated(whisper_base: Path) -> None:
    audio = decode_audio((AUDIO / "pangrama_fr.flac").read_bytes(), rate_hz=RATE)
    model = open_transcriber(whisper_base)

    async def text_of(asked: Transcription) -> str:
        job = Job()
        model.transcribe(asked, job)
        return " ".join(segment.text for segment in job.take())

    asked = Transcription(audio.samples, RATE)
    text = asyncio.run(text_of(asked))
    assert asked.found_language == "fr"
    assert words_of(text)[:4] == ["portez", "ce", "vieux", "whisky"]
    text = asyncio.run(text_of(Transcription(audio.samples, RATE, language="fr", task="translate")))
    assert {"old", "judge"} & set(words_of(text)) or "whiskey" in words_of(text)


def test_windows_begin_with_speech_and_end_in_pauses() -> None:
    spoken = [(20.0, 23.0), (25.0, 28.0), (45.0, 60.0), (70.0, 110.0)]
    first = next_window(spoken, 0.0, 120.0)
    assert first == Window(19.8, 28.2, is_whole=True)
    second = next_window(spoken, first.end_s, 120.0)
    assert second == Window(44.8, 60.2, is_whole=True)
    third = next_window(spoken, second.end_s, 120.0)
    assert third == Window(69.8, 99.8, is_whole=False)
    fourth = next_window(spoken, 97.5, 120.0)
    assert fourth == Window(97.5, 110.2, is_whole=True)
    assert next_window(spoken, fourth.end_s, 120.0) is None
    assert next_window([], 0.0, 120.0) is None


def test_marks_make_segments_and_an_open_one_is_known() -> None:
    assert split_marks([100, 1, 2, 150, 150, 3, 200], 100) == [
        Part(0.0, 1.0, [1, 2], 0, 4),
        Part(1.0, 2.0, [3], 4, 7),
    ]
    assert split_marks([110, 1, 150, 155, 160, 2], 100) == [Part(0.2, 1.0, [1], 0, 3), Part(1.2, None, [2], 4, 6)]
    assert split_marks([100, 1, 150, 2, 160], 100) == [Part(0.0, 1.0, [1], 0, 3), Part(1.0, 1.2, [2], 3, 5)]
    assert split_marks([], 100) == []


def test_the_rules_of_marks_leave_pairs_that_never_fall() -> None:
    import torch

    from cartdeck_torch.engine.whisper_marks import MarkRules

    none = torch.tensor([], dtype=torch.long)
    rules = MarkRules(end=8, first_mark=10, never=torch.tensor([9]), never_first=none, latest_first_mark=12)

    def allowed(said: list[int], favourite: int = 0) -> set[int]:
        logits = torch.zeros(20)
        logits[favourite] = 10.0
        rules.apply(logits, said)
        found = set(torch.isfinite(logits).nonzero().flatten().tolist())
        assert min(found) >= rules.lowest(said)
        return found

    assert allowed([], 11) == {10, 11, 12}
    assert allowed([11]) == set(range(9))
    assert allowed([11, 3]) == set(range(9)) | set(range(12, 20))
    assert allowed([11, 3, 15], 15) == set(range(15, 20))
    assert allowed([11, 3, 15, 15]) == set(range(9))
