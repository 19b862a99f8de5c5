"""What the gguf cartridge costs beside llama-cpp-python in this process: one run, one model, one thread, turn about.

    python benchmarks/bench_gguf.py [--json] [--quick] [--model SPEC] [--llama-bench PATH] [--only NAME,NAME]

One JSON line per figure with --json ({"peer", "figure", "value", "unit"}), the median over the rounds; a `ratio` line
says what must hold and whether it does. --quick takes fewer and shorter rounds, under a minute on a quiet machine.
Read the ratios: what else the machine does meets both sides of each.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from cartdeck import Data, Engine, Settings

CAP: Final = "cap:generate-text;gguf"
PROMPT: Final = "Once upon a time, in a small village at the foot of a mountain, there lived"
STORY: Final = "The old lighthouse keeper wrote a letter to his daughter about the storm of last night. " * 35
"""About 600 tokens of SmolLM2."""

CONTEXT_SIZE: Final = 4096
WORDS: Final[dict[str, Any]] = {"type": "array", "minItems": 200, "items": {"type": "string", "maxLength": 40}}
LETTERS: Final = "root ::= [A-Za-z ,.;:'?!0-9\\n\"-]+"
NO_END: Final = {"0": -100, "2": -100}
"""The tokens that end a text of SmolLM2: every round has as many tokens."""


@dataclass(slots=True)
class Round:
    """One text: its tokens, how long until the first piece of it, how long in all."""

    tokens: int
    first_s: float
    total_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.total_s

    @property
    def s_per_token(self) -> float:
        """Without the prompt."""
        return (self.total_s - self.first_s) / max(1, self.tokens - 1)


@dataclass(slots=True)
class Report:
    """Prints figures as they are known."""

    is_json: bool
    missed: list[str] = field(default_factory=list[str])

    def say(self, peer: str, figure: str, value: float, unit: str) -> None:
        if self.is_json:
            print(json.dumps({"peer": peer, "figure": figure, "value": round(value, 4), "unit": unit}), flush=True)
        else:
            print(f"{peer:18} {figure:34} {value:10.3f} {unit}", flush=True)

    def ratio(self, figure: str, value: float, sign: str, bound: float) -> None:
        """A figure that must be at most (<) or at least (>) a bound."""
        holds = value <= bound if sign == "<" else value >= bound
        if self.is_json:
            line = {"peer": "ratio", "figure": figure, "value": round(value, 4), "unit": "x"}
            print(json.dumps({**line, "must": f"{sign} {bound}", "holds": holds}), flush=True)
        else:
            print(f"{'ratio':18} {figure:34} {value:10.3f} x   must be {sign} {bound}: {holds}", flush=True)
        if not holds:
            self.missed.append(figure)


class Library:
    """llama-cpp-python in this process, through its own streaming completion."""

    def __init__(self, path: str) -> None:
        from llama_cpp import Llama  # noqa: PLC0415 - heavy, and only for this peer

        self._llama = Llama(path, n_ctx=CONTEXT_SIZE, n_threads=1, n_threads_batch=1, verbose=False)

    def round(self, prompt: str, max_tokens: int) -> Round:
        self._llama.reset()
        started, first_s, tokens = time.perf_counter(), 0.0, 0
        bias = {int(token): bias for token, bias in NO_END.items()}
        stream: Iterator[Any] = self._llama.create_completion(
            prompt, max_tokens=max_tokens, temperature=0.0, repeat_penalty=1.0, stream=True, logit_bias=bias
        )
        for chunk in stream:
            first_s = first_s or time.perf_counter() - started
            tokens += chunk["choices"][0]["finish_reason"] is None
        return Round(max_tokens, first_s, time.perf_counter() - started)


class Stack:
    """The whole of cartdeck: engine, process, cartridge."""

    def __init__(self, engine: Engine, model: str) -> None:
        self.engine = engine
        self.fixed = {"model": model, "temperature": 0, "context-size": CONTEXT_SIZE, "threads": 1}

    async def round(self, prompt: str, max_tokens: int, **changes: Any) -> Round:
        arguments = {**self.fixed, "prompt": prompt, "max-tokens": max_tokens, "logit-bias": NO_END}
        arguments |= {name.replace("_", "-"): value for name, value in changes.items()}
        started, first_s = time.perf_counter(), 0.0
        async with self.engine.call(CAP, arguments) as call:
            async for event in call:
                if not first_s and isinstance(event, Data):
                    first_s = time.perf_counter() - started
            tokens = call.result.provenance["usage"]["completion_tokens"]
        return Round(tokens, first_s, time.perf_counter() - started)


@dataclass(slots=True)
class Bench:
    report: Report
    stack: Stack
    library: Library
    model: str
    path: str
    is_quick: bool
    llama_bench: str | None = None
    ours: dict[int, float] = field(default_factory=dict[int, float])

    async def one_stream(self) -> None:
        """Tokens per second of one stream, beside the library: its cost per token grows with the text."""
        bounds = {96: 0.97} if self.is_quick else {128: 0.97, 512: 1.05}
        for tokens, bound in bounds.items():
            ours, theirs = list[Round](), list[Round]()
            for number in range(3 if self.is_quick else 5):
                for is_ours in (True, False) if number % 2 else (False, True):
                    if is_ours:
                        ours.append(await self.stack.round(f"{number}. {PROMPT}", tokens))
                    else:
                        theirs.append(self.library.round(f"{number}. {PROMPT}", tokens))
            self.ours[tokens] = statistics.median(one.tokens_per_s for one in ours)
            self.report.say("cartdeck", f"tokens_per_s_{tokens}", self.ours[tokens], "tokens/s")
            median = statistics.median(one.tokens_per_s for one in theirs)
            self.report.say("llama-cpp-python", f"tokens_per_s_{tokens}", median, "tokens/s")
            ratios = [one.tokens_per_s / other.tokens_per_s for one, other in zip(ours, theirs, strict=True)]
            self.report.ratio(f"tokens_per_s_{tokens}", statistics.median(ratios), ">", bound)

    async def own_bench(self) -> None:
        """Tokens per second of llama.cpp's own program, where its path is given."""
        if self.llama_bench is None:
            return
        command = [self.llama_bench, "-m", self.path, "-t", "1", "-p", "0", "-n", "128", "-r", "3", "-o", "json"]
        done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True, timeout=300)
        theirs = float(json.loads(done.stdout)[0]["avg_ts"])
        self.report.say("llama-bench", "tokens_per_s_128", theirs, "tokens/s")
        self.report.ratio("tokens_per_s_llama_bench", next(iter(self.ours.values())) / theirs, ">", 0.83)

    async def seen_prefix(self) -> None:
        """The first token after a prefix seen before, beside one never seen."""
        ratios = list[float]()
        for number in range(2 if self.is_quick else 5):
            cold = await self.stack.round(f"{number}: {STORY}", 2)
            warm = await self.stack.round(f"{number}: {STORY} And then", 2)
            ratios.append(warm.first_s / cold.first_s)
            self.report.say("cartdeck", "first_token_cold_s", cold.first_s, "s")
            self.report.say("cartdeck", "first_token_seen_s", warm.first_s, "s")
        self.report.ratio("first_token_seen_prefix", statistics.median(ratios), "<", 0.1)

    async def eight_streams(self) -> None:
        """Eight streams at once beside one after the other, as a server with one lock around its model does it."""
        tokens = 40 if self.is_quick else 64
        prompts = [f"{PROMPT} {number} people:" for number in range(8)]
        started, lasts = time.perf_counter(), list[float]()
        for prompt in prompts:
            before = time.perf_counter() - started
            lasts.append(before + self.library.round(prompt, tokens).first_s)
        one_by_one_s = time.perf_counter() - started
        started = time.perf_counter()
        rounds = await asyncio.gather(*(self.stack.round(prompt, tokens) for prompt in prompts))
        together_s = time.perf_counter() - started
        self.report.say("llama-cpp-python", "eight_last_first_token_s", max(lasts), "s")
        self.report.say("cartdeck", "eight_last_first_token_s", max(one.first_s for one in rounds), "s")
        self.report.say("llama-cpp-python", "eight_tokens_per_s", 8 * tokens / one_by_one_s, "tokens/s")
        self.report.say("cartdeck", "eight_tokens_per_s", 8 * tokens / together_s, "tokens/s")
        self.report.ratio("eight_last_first_token", max(one.first_s for one in rounds) / max(lasts), "<", 0.4)
        self.report.ratio("eight_tokens_per_s", one_by_one_s / together_s, ">", 1.0)

    async def constrained(self) -> None:
        """A token under a schema or a grammar, beside a free one."""
        tokens, count = (48, 3) if self.is_quick else (128, 5)
        kinds: dict[str, tuple[dict[str, Any], float]] = {
            "json_schema": ({"json_schema": WORDS}, 1.05),
            "gbnf": ({"grammar": LETTERS}, 1.15),
        }
        for name, (changes, bound) in kinds.items():
            await self.stack.round(PROMPT, 2, **changes)  # the vocabulary is made ready once
            ratios = list[float]()
            for number in range(count):
                free = await self.stack.round(f"{number} {PROMPT}", tokens)
                held = await self.stack.round(f"{number} {PROMPT}", tokens, **changes)
                ratios.append(held.s_per_token / free.s_per_token)
            self.report.ratio(f"{name}_per_token", statistics.median(ratios), "<", bound)

    async def loop_delay(self) -> None:
        """How late the cartridge's event loop is while its owner's thread loads, reads a prompt and draws."""
        loaded: list[tuple[Any, Any, Any]] = []

        async def load() -> None:
            loaded.append(await load_in_process(self.path))

        async def make_text(prompt: str, tokens: int) -> None:
            owner, _, batcher = loaded[0]
            await text_in_process(owner, batcher, prompt, tokens)

        works = (("load", load), ("prefill", partial(make_text, STORY, 1)), ("decode", partial(make_text, PROMPT, 48)))
        for name, work in works:
            delays = sorted(await delays_during(work))
            p99_ms = delays[int(len(delays) * 0.99)] * 1000
            self.report.ratio(f"loop_delay_p99_ms_{name}", p99_ms, "<", 20.0)
        owner, model, _ = loaded[0]
        await asyncio.wrap_future(owner.start(model.close))

    async def cycles(self) -> None:
        """Loads and unloads, and texts given up: no crash, memory flat."""
        loads, cancels = (4, 40) if self.is_quick else (200, 1000)
        engine, fixed = self.stack.engine, self.stack.fixed
        own_bytes = resident_bytes()
        for _ in range(loads):
            await self.stack.round(PROMPT, 1)
            await engine.unload(CAP, fixed)
        self.report.say("cartdeck", "host_growth_per_load_bytes", (resident_bytes() - own_bytes) / loads, "bytes")
        await self.stack.round(PROMPT, 1)
        sizes = list[int]()
        for number in range(cancels):
            async with engine.call(CAP, {**fixed, "prompt": f"{number} {PROMPT}", "max-tokens": 400}) as call:
                async for event in call:
                    if isinstance(event, Data) or number % 2:
                        break
            if number in (cancels // 4, cancels - 1):
                sizes.append(resident_bytes(gguf_process(engine)))
        self.report.ratio("memory_after_cancels", sizes[-1] / sizes[0], "<", 1.1)


async def delays_during(work: Callable[[], Awaitable[None]]) -> list[float]:
    """How late a timer of 2 ms fires while the work is done, in seconds."""
    delays: list[float] = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + 0.002
            await asyncio.sleep(0.002)
            delays.append(max(0.0, time.perf_counter() - due))

    ticker = asyncio.create_task(tick())
    await work()
    ticker.cancel()
    return delays


async def load_in_process(path: str) -> tuple[Any, Any, Any]:
    """The cartridge's own parts in this process: owner, model, batcher."""
    from cartdeck_gguf.batcher import Batcher  # noqa: PLC0415 - as `Llama`
    from cartdeck_gguf.loading import LoadSettings, check_model, load  # noqa: PLC0415
    from cartdeck_modelkit.owner import Owner  # noqa: PLC0415

    def load_it() -> Any:
        settings = LoadSettings(context_size=CONTEXT_SIZE, threads=1)
        headers = check_model(Path(path))
        return load(headers, settings, listener=lambda level, line: None, on_progress=lambda fraction: True)

    owner = Owner("bench")
    model = await asyncio.wrap_future(owner.start(load_it))
    batcher = Batcher(model)
    owner.go_on_with(batcher.step)
    return owner, model, batcher


async def text_in_process(owner: Any, batcher: Any, prompt: str, tokens: int) -> None:
    from cartdeck_gguf.generation import Generation  # noqa: PLC0415
    from cartdeck_modelkit.sampling import SamplingSettings  # noqa: PLC0415

    settings = SamplingSettings(
        max_tokens=tokens, temperature=0.0, top_k=40, top_p=0.95, min_p=0.05, repeat_penalty=1.0, seed=1
    )
    generation = Generation(prompt, settings)
    batcher.submit(generation)
    owner.wake()
    async for _ in generation.delivery.batches():
        pass


def gguf_process(engine: Engine) -> int:
    return next(session.process.pid for session in engine.pool.sessions if session.key.cartridge == "gguf")


def resident_bytes(process: int | str = "self") -> int:
    return int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]) * 4096


def default_model(engine: Engine) -> str:
    """The model that `generate-text` takes when none is named."""
    for entry in engine.caps():
        if entry.definition.alias == "generate-text" and "gguf" in str(entry.definition.urn):
            return str(entry.definition.argument("model").default)
    raise SystemExit("no cartridge serves generate-text; install cartdeck[gguf]")


async def measure(options: argparse.Namespace) -> list[str]:
    report = Report(options.json)
    async with Engine(Settings()) as engine:
        model = options.model or default_model(engine)
        path = (await engine.run("cap:download-model", {"model": model})).text
        stack = Stack(engine, model)
        cold = await stack.round(PROMPT, 4)
        report.say("cartdeck", "cold_first_token_s", cold.first_s, "s")
        bench = Bench(report, stack, Library(path), model, path, options.quick, options.llama_bench)
        figures: dict[str, Callable[[], Awaitable[None]]] = {
            "stream": bench.one_stream, "llama-bench": bench.own_bench, "prefix": bench.seen_prefix,
            "eight": bench.eight_streams, "constrained": bench.constrained, "loop": bench.loop_delay,
            "cycles": bench.cycles,
        }  # fmt: skip
        for name, figure in figures.items():
            if not options.only or name in options.only.split(","):
                await figure()
    return report.missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--model", help="another model than the default")
    parser.add_argument("--llama-bench", help="the path of llama.cpp's own llama-bench, to compare with")
    parser.add_argument("--only", help="stream, llama-bench, prefix, eight, constrained, loop, cycles")
    missed = asyncio.run(measure(parser.parse_args()))
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
