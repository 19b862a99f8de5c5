# pyright: basic
# Of torch's names many have no types.
"""Owns Whisper: what is said in windows of a recording, with time marks (Radford et al. 2022).

It does not know audio files: samples come in, 16 kHz.
"""

import math
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch.nn import functional
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    StoppingCriteria,
    StoppingCriteriaList,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from cartdeck_protocol.errors import Code, failure
from cartdeck_torch.engine.layout import lay_out
from cartdeck_torch.engine.loading import check_ids, load_weights, refusing
from cartdeck_torch.engine.stopping import layers_of, stopping
from cartdeck_torch.engine.tokens import read_tokenizer
from cartdeck_torch.engine.torch_device import TorchDevice
from cartdeck_torch.engine.voice import RATE_HZ, find_speech
from cartdeck_torch.engine.whisper_marks import MarkRules
from cartdeck_torch.folder import ModelFolder
from cartdeck_torch.job import Job
from cartdeck_torch.settings import LoadSettings
from cartdeck_torch.speech import Part, Reading, Segment, Transcription, Window, next_window, split_marks


class Transcriber:
    """A Whisper model on its device."""

    def __init__(
        self, folder: ModelFolder, settings: LoadSettings, device: TorchDevice, *, report: Callable[[float], None]
    ) -> None:
        self.tokenizer = read_tokenizer(folder)
        self.model, dtype, self.notice = load_weights(
            WhisperForConditionalGeneration, folder, settings, device, report=report, unused=("proj_out.",)
        )
        lay_out(self.model, is_mapped=folder.main_dtype == "F32", report=report)
        self.device, self.torch_dtype = device.device, dtype
        self.dtype = str(dtype).removeprefix("torch.")
        self.features = WhisperFeatureExtractor(feature_size=self.model.config.num_mel_bins)
        self.most_tokens = int(self.model.config.max_target_positions)
        self._name = folder.name
        self._layers = layers_of(self.model)
        with refusing(folder):
            self._start = self._token("<|startoftranscript|>")
            self._languages = self._find_languages(folder)
            self._rules = self._find_rules(folder)
            self._no_speech = self._find_no_speech()
        names = signature(self.model.model.decoder.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"

    def transcribe(self, asked: Transcription, job: Job) -> None:
        """Says the text on `job` as its segments close, and puts each `Segment` there. Raises `UNSUPPORTED` for a
        language or task that the model does not know, `CANCELLED` within a layer, `NON_FINITE_OUTPUT`."""
        asked.completion_tokens = 0
        prompt_end = self._task(asked)
        samples = torch.frombuffer(bytearray(asked.samples), dtype=torch.float32)
        asked.spoken = asked.spoken or find_speech(samples, on_progress=lambda _: job.stop.check())
        cursor_s = 0.0
        while (window := next_window(asked.spoken, cursor_s, asked.duration_s)) is not None:
            job.stop.check()
            cursor_s = self._hear(samples, window, asked, prompt_end, job)
            asked.done_s = min(cursor_s, asked.duration_s)
            job.touch()
        asked.done_s = asked.duration_s
        asked.finish_reason = "stop"

    def _hear(
        self, samples: torch.Tensor, window: Window, asked: Transcription, prompt_end: list[int], job: Job
    ) -> float:
        """Says what is said in a window, each segment once it closes; up to where the window is understood."""
        part = samples[int(window.start_s * RATE_HZ) : int(window.end_s * RATE_HZ)].numpy()
        values = self.features(part, sampling_rate=RATE_HZ, return_tensors="pt")["input_features"]
        teller = _Teller(self.tokenizer, window, asked, job)
        with torch.inference_mode():
            values = values.to(self.device, self.torch_dtype)
            with stopping(self._layers, job):
                heard = self.model.model.encoder(values).last_hidden_state
                reading = Reading(self._prompt(heard, asked, prompt_end))
                if asked.beams > 1:
                    reading.tokens = self._beams(values, asked, job)
                    self._weigh(heard, reading)
            if asked.beams == 1:
                self._greedy(heard, reading, asked, job, on_mark=lambda: teller.tell(self._parts(reading), reading))
        parts = self._parts(reading)
        if not window.is_whole and parts and parts[-1].end_s is None and len(parts) > 1:
            parts.pop()  # it is heard again, with what follows
        teller.tell(parts, reading, is_all=True)
        if window.is_whole or not teller.has_told or parts[-1].end_s is None:
            return window.end_s
        understood_s = window.start_s + min(parts[-1].end_s, window.end_s - window.start_s)
        return understood_s if understood_s > window.start_s + 1.0 else window.end_s

    def _parts(self, reading: Reading) -> list[Part]:
        return split_marks(reading.tokens, self._rules.first_mark)

    def _prompt(self, heard: torch.Tensor, asked: Transcription, prompt_end: list[int]) -> list[int]:
        if not self._languages:
            asked.found_language = "en"
            return [self._start]
        if asked.found_language is None:
            asked.found_language = asked.language or self._detect(heard)
        return [self._start, self._languages[asked.found_language], *prompt_end]

    def _detect(self, heard: torch.Tensor) -> str:
        ids = torch.tensor([[self._start]], device=self.device)
        logits = self.model(encoder_outputs=(heard,), decoder_input_ids=ids, use_cache=False).logits[0, -1]
        codes = list(self._languages)
        return codes[int(logits[[self._languages[code] for code in codes]].argmax())]

    def _greedy(
        self, heard: torch.Tensor, reading: Reading, asked: Transcription, job: Job, *, on_mark: Callable[[], None]
    ) -> None:
        """The likeliest token each time, by the rules of the time marks; `on_mark` is called when a mark follows a
        word. Raises `NON_FINITE_OUTPUT`."""
        named: dict[str, Any] = {self._cache_name: EncoderDecoderCache(DynamicCache(), DynamicCache())}
        said, new = reading.tokens, reading.prompt
        while len(reading.prompt) + len(said) < self.most_tokens:
            job.stop.check()
            ids = torch.tensor([new], device=self.device)
            out = self.model.model.decoder(input_ids=ids, encoder_hidden_states=heard, use_cache=True, **named)
            hidden = out.last_hidden_state[0]
            if not said:
                reading.no_speech_prob = self._no_speech_prob(hidden)
            logits = self._logits(hidden[-1], said)
            token = int(logits.argmax())
            logprob = _logprob(logits, token)
            if token == self._rules.end:
                break
            closes = token >= self._rules.first_mark and bool(said) and said[-1] < self._rules.first_mark
            said.append(token)
            reading.logprobs.append(logprob)
            asked.completion_tokens += 1
            if closes:
                on_mark()
            new = [token]

    def _logits(self, hidden: torch.Tensor, said: list[int]) -> torch.Tensor:
        """[tokens] float32, of what may follow `said`; only the rows that matter are computed. `hidden` is [width]."""
        low = self._rules.lowest(said)
        found = functional.linear(hidden, self.model.proj_out.weight[low:]).float()
        logits = functional.pad(found, (low, 0), value=float("-inf")) if low else found
        self._rules.apply(logits, said)
        return logits

    def _no_speech_prob(self, hidden: torch.Tensor) -> float | None:
        """From the decoder's numbers [prompt, width]: what it expects behind the mark that begins a transcript."""
        if self._no_speech is None:
            return None
        return float(self.model.proj_out(hidden[0]).float().softmax(0)[self._no_speech])

    def _weigh(self, heard: torch.Tensor, reading: Reading) -> None:
        """Finds how likely the tokens of a reading are that something else chose, all at once. Raises
        `NON_FINITE_OUTPUT`."""
        said, first = reading.tokens, len(reading.prompt) - 1
        ids = torch.tensor([[*reading.prompt, *said[:-1]]], device=self.device)
        hidden = self.model.model.decoder(input_ids=ids, encoder_hidden_states=heard, use_cache=False).last_hidden_state
        reading.no_speech_prob = self._no_speech_prob(hidden[0])
        for place, token in enumerate(said):
            logits = self._logits(hidden[0, first + place], said[:place])
            if not torch.isfinite(logits[token]):  # the library's rules are a little wider
                logits = self.model.proj_out(hidden[0, first + place]).float()
            reading.logprobs.append(_logprob(logits, token))

    def _beams(self, values: torch.Tensor, asked: Transcription, job: Job) -> list[int]:
        """The library's search over several readings."""
        named: dict[str, Any] = {}
        if self._languages:
            named = {"language": asked.found_language, "task": asked.task}
        out = self.model.generate(
            input_features=values,
            return_timestamps=True,
            num_beams=asked.beams,
            do_sample=False,
            force_unique_generate_call=True,  # else it hears the rest by itself, with marks that begin anew
            stopping_criteria=StoppingCriteriaList([_Stop(job)]),
            **named,
        )
        marks = self._rules.first_mark
        tokens = [token for token in out[0].tolist() if token < self._rules.end or token >= marks]
        asked.completion_tokens += len(tokens)
        return tokens

    def _task(self, asked: Transcription) -> list[int]:
        """The prompt's part that says the task. Raises `UNSUPPORTED`."""
        if asked.language is not None and asked.language not in (self._languages or {"en": 0}):
            known = ", ".join(self._languages or ["en"])
            raise failure(
                Code.UNSUPPORTED, f"{self._name} does not know the language {asked.language!r}; it knows: {known}",
                argument="language",
            )  # fmt: skip
        if not self._languages:
            if asked.task == "translate":
                raise failure(
                    Code.UNSUPPORTED, f"{self._name} knows English alone: it does not translate", argument="task"
                )
            return []
        return [self._token(f"<|{asked.task}|>")]

    def _find_languages(self, folder: ModelFolder) -> dict[str, int]:
        """Codes of languages and their tokens; none for a model that knows English alone."""
        settings = folder.record("generation_config.json") or {}
        known = settings.get("lang_to_id")
        if not isinstance(known, dict):
            return {}
        return {str(name).strip("<|>"): self._checked(token) for name, token in known.items()}

    def _find_rules(self, folder: ModelFolder) -> MarkRules:
        settings = folder.record("generation_config.json") or {}
        unmarked = self._checked(settings.get("no_timestamps_token_id") or self._token("<|notimestamps|>"))
        size = int(self.model.config.vocab_size)
        never = [*(settings.get("suppress_tokens") or []), unmarked]
        latest = int(settings.get("max_initial_timestamp_index") or 50)
        tensors = [
            torch.tensor(sorted({int(one) for one in tokens if 0 <= int(one) < size}), device=self.device)
            for tokens in (never, settings.get("begin_suppress_tokens") or [])
        ]
        first = unmarked + 1
        return MarkRules(self._token("<|endoftext|>"), first, tensors[0], tensors[1].long(), first + latest)

    def _find_no_speech(self) -> int | None:
        """The token for a window in which nobody speaks; models before 2023 have it by another name."""
        tokens = [self.tokenizer.token_to_id(name) for name in ("<|nospeech|>", "<|nocaptions|>")]
        return next((self._checked(token) for token in tokens if token is not None), None)

    def _token(self, name: str) -> int:
        token = self.tokenizer.token_to_id(name)
        if token is None:
            raise failure(Code.BAD_MODEL_FILE, f"the tokenizer of {self._name} has no {name}", phase="load")
        return self._checked(token)

    def _checked(self, token: Any) -> int:
        """A token that a file names. Raises `BAD_MODEL_FILE` for one that the model does not have."""
        if type(token) is not int or token < 0:
            raise failure(Code.BAD_MODEL_FILE, f"the files of {self._name} name the token {token!r:.80}", phase="load")
        check_ids([token], int(self.model.config.vocab_size), name=self._name)
        return token


def _logprob(logits: torch.Tensor, token: int) -> float:
    """Of a token among [tokens] `logits`, as a natural logarithm. Raises `NON_FINITE_OUTPUT`."""
    found = float(logits[token] - logits.logsumexp(0))
    if not math.isfinite(found):
        message = "the model gave no numbers for what is said; dtype float32 may help"
        raise failure(Code.NON_FINITE_OUTPUT, message, phase="inference")
    return found


class _Teller:
    """Says a window's segments on a job, each once."""

    def __init__(self, tokenizer: Any, window: Window, asked: Transcription, job: Job) -> None:
        self._tokenizer, self._window, self._asked, self._job = tokenizer, window, asked, job
        self._told = 0
        self.has_told = False
        """Whether there was any text."""

    def tell(self, parts: list[Part], reading: Reading, *, is_all: bool = False) -> None:
        """Says those of all `parts` so far that it has not said, and which are closed, or all of them."""
        length_s = self._window.end_s - self._window.start_s
        for part in parts[self._told :]:
            if part.end_s is None and not is_all:
                return
            self._told += 1
            first, last = min(part.start_s, length_s), min(length_s if part.end_s is None else part.end_s, length_s)
            text = self._tokenizer.decode(part.words, skip_special_tokens=True)
            if text.strip():
                self._say(first, max(first, last), text, part, reading)

    def _say(self, first_s: float, last_s: float, text: str, part: Part, reading: Reading) -> None:
        text = text if self._job.has_said else text.lstrip()
        begin_s = self._window.start_s
        self.has_told = True
        self._asked.done_s = min(begin_s + last_s, self._asked.duration_s)
        segment = Segment(
            begin_s + first_s,
            begin_s + last_s,
            text,
            window_start_s=begin_s,
            tokens=reading.tokens_of(part),
            avg_logprob=reading.average(part),
            no_speech_prob=reading.no_speech_prob,
        )
        self._job.put(segment)
        self._job.say(text)


class _Stop(StoppingCriteria):
    """Raises `CANCELLED` between two tokens."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        self._job.stop.check()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
