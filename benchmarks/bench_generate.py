"""Tokens per second through the whole stack beside llama-cpp-python in this process, one run, turn about.

Both sides: the same model, prompt, context size and one thread, temperature 0, the prompt computed anew each time.
`--json` prints one object a line ({"peer", "figure", "value", "unit"}), `--quick` takes fewer and shorter rounds.
Ratios are cartdeck's over llama-cpp-python's, the median of the rounds' own ratios: what else the machine does then
meets both.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cartdeck import Data, Engine, Settings

CAP = "cap:generate-text;gguf"
PROMPT = "Once upon a time, in a small village at the foot of a mountain, there lived"
CONTEXT_SIZE = 2048


@dataclass(frozen=True, slots=True)
class Round:
    """One text: how many tokens, how long until the first piece of it, how long in all."""

    tokens: int
    first_s: float
    total_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.total_s


class Library:
    """llama-cpp-python in this process, through its own streaming completion."""

    def __init__(self, path: str) -> None:
        from llama_cpp import Llama  # noqa: PLC0415 - heavy, and only for this peer

        self._llama = Llama(path, n_ctx=CONTEXT_SIZE, n_threads=1, n_threads_batch=1, verbose=False)

    def round(self, max_tokens: int) -> Round:
        self._llama.reset()
        started, first_s, tokens = time.perf_counter(), 0.0, 0
        stream: Iterator[Any] = self._llama.create_completion(
            PROMPT, max_tokens=max_tokens, temperature=0.0, repeat_penalty=1.0, stream=True
        )
        for chunk in stream:
            if not tokens:
                first_s = time.perf_counter() - started
            tokens += chunk["choices"][0]["finish_reason"] is None
        return Round(tokens, first_s, time.perf_counter() - started)


async def stack_round(engine: Engine, model: str, max_tokens: int) -> Round:
    arguments = {
        "model": model,
        "prompt": PROMPT,
        "max-tokens": max_tokens,
        "temperature": 0,
        "context-size": CONTEXT_SIZE,
        "threads": 1,
    }
    started, first_s = time.perf_counter(), 0.0
    async with engine.call(CAP, arguments) as call:
        async for event in call:
            if not first_s and isinstance(event, Data):
                first_s = time.perf_counter() - started
        provenance = call.result.provenance
    return Round(provenance["usage"]["completion_tokens"], first_s, time.perf_counter() - started)


async def measure(rounds: int, max_tokens: int) -> list[tuple[str, str, float, str]]:
    async with Engine(Settings()) as engine:
        spec = engine_default_model(engine)
        path = (await engine.run("cap:download-model", {"model": spec})).text
        cold = await stack_round(engine, spec, 8)
        library = Library(path)
        library.round(8)
        ours: list[Round] = []
        theirs: list[Round] = []
        for number in range(rounds):
            # turn about: whoever goes second may find the machine warmer
            for is_ours in (True, False) if number % 2 else (False, True):
                if is_ours:
                    ours.append(await stack_round(engine, spec, max_tokens))
                else:
                    theirs.append(library.round(max_tokens))
    return [
        ("cartdeck", "cold_first_token_s", cold.first_s, "s"),
        *figures("cartdeck", ours),
        *figures("llama-cpp-python", theirs),
        ("cartdeck", "tokens_per_s_ratio", ratio(ours, theirs, "tokens_per_s"), "x"),
        ("cartdeck", "first_token_ratio", ratio(ours, theirs, "first_s"), "x"),
    ]


def engine_default_model(engine: Engine) -> str:
    """The model that `generate-text` takes when none is named."""
    for entry in engine.caps():
        if entry.definition.alias == "generate-text":
            return str(entry.definition.argument("model").default)
    raise SystemExit("no cartridge serves generate-text; install cartdeck[gguf]")


def figures(peer: str, rounds: list[Round]) -> list[tuple[str, str, float, str]]:
    return [
        (peer, "tokens", statistics.median(one.tokens for one in rounds), "tokens"),
        (peer, "tokens_per_s", statistics.median(one.tokens_per_s for one in rounds), "tokens/s"),
        (peer, "first_token_s", statistics.median(one.first_s for one in rounds), "s"),
    ]


def ratio(ours: list[Round], theirs: list[Round], name: str) -> float:
    return statistics.median(getattr(a, name) / getattr(b, name) for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    options = parser.parse_args()
    rounds, max_tokens = (11, 48) if options.quick else (15, 128)
    for peer, figure, value, unit in asyncio.run(measure(rounds, max_tokens)):
        if options.json:
            print(json.dumps({"peer": peer, "figure": figure, "value": round(value, 4), "unit": unit}), flush=True)
        else:
            print(f"{peer:18} {figure:22} {value:10.3f} {unit}", flush=True)


if __name__ == "__main__":
    main()
