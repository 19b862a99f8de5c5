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
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Final

import llama_bench
from gguf_peers import CAP, CONTEXT_SIZE, Library, LlamaBench, Round, Server, Stack

from cartdeck import Data, Engine, Progress, Settings
from cartdeck_protocol.errors import CartdeckError, Code

PROMPT: Final = "Once upon a time, in a small village at the foot of a mountain, there lived"
STORY: Final = "The old lighthouse keeper wrote a letter to his daughter about the storm of last night. " * 35
"""About 600 tokens of SmolLM2."""

WORDS: Final[dict[str, Any]] = {"type": "array", "minItems": 200, "items": {"type": "string", "maxLength": 40}}
LETTERS: Final = "root ::= [A-Za-z ,.;:'?!0-9\\n\"-]+"

MOST_GROWTH: Final = 1.05
"""What memory may come to, of what it was after the first quarter."""


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


@dataclass(slots=True)
class Bench:
    report: Report
    stack: Stack
    library: Library
    path: str
    is_quick: bool
    llama_bench: Path | None

    async def one_stream(self) -> None:
        """Tokens per second of one stream, beside the library: its cost per token grows with the text. The best of
        each: other work of the machine meets two processes more than one."""
        bounds = {64: 0.97} if self.is_quick else {128: 0.97, 512: 1.05}
        for tokens, bound in bounds.items():
            ours, theirs = list[Round](), list[Round]()
            for number in range(3 if self.is_quick else 6 if tokens < 256 else 4):
                for is_ours in (True, False) if number % 2 else (False, True):
                    if is_ours:
                        ours.append(await self.stack.round(f"{number}. {PROMPT}", tokens))
                    else:
                        theirs.append(self.library.round(f"{number}. {PROMPT}", tokens))
            best = [max(one.tokens_per_s for one in rounds) for rounds in (ours, theirs)]
            for peer, tokens_per_s in zip(("cartdeck", "llama-cpp-python"), best, strict=True):
                self.report.say(peer, f"tokens_per_s_{tokens}", tokens_per_s, "tokens/s")
            ratios = [one.tokens_per_s / other.tokens_per_s for one, other in zip(ours, theirs, strict=True)]
            self.report.say("cartdeck", f"tokens_per_s_{tokens}_median_of_rounds", statistics.median(ratios), "x")
            self.report.ratio(f"tokens_per_s_{tokens}", best[0] / best[1], ">", bound)

    async def own_bench(self) -> None:
        """Tokens per second after the prompt, beside llama.cpp's own program after a prompt as long, turn about; the
        best of each, since it tells the machine's pace at its quietest."""
        if self.llama_bench is None:
            print("llama-bench is not built: python benchmarks/llama_bench.py builds it once", file=sys.stderr)
            return
        program, tokens = LlamaBench(self.llama_bench, self.path), 64 if self.is_quick else 128
        ours, theirs = list[float](), list[float]()
        for number in range(2 if self.is_quick else 6):
            one = await self.stack.round(f"{number}! {PROMPT}", tokens)
            ours.append(1 / one.s_per_token)
            theirs.append(await program.round(one.prompt_tokens, tokens))
        self.report.say("cartdeck", f"decoded_per_s_{tokens}", max(ours), "tokens/s")
        self.report.say("llama-bench", f"decoded_per_s_{tokens}", max(theirs), "tokens/s")
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        self.report.say("cartdeck", "llama_bench_median_of_rounds", statistics.median(ratios), "x")
        self.report.ratio("decoded_per_s_llama_bench", max(ours) / max(theirs), ">", 0.83)

    async def seen_prefix(self) -> None:
        """The first token after a prefix seen before, beside one never seen."""
        ratios = list[float]()
        for number in range(1 if self.is_quick else 5):
            cold = await self.stack.round(f"{number}: {STORY}", 2)
            warm = await self.stack.round(f"{number}: {STORY} And then", 2)
            ratios.append(warm.first_s / cold.first_s)
            self.report.say("cartdeck", "first_token_cold_s", cold.first_s, "s")
            self.report.say("cartdeck", "first_token_seen_s", warm.first_s, "s")
        self.report.ratio("first_token_seen_prefix", statistics.median(ratios), "<", 0.1)

    async def eight_streams(self) -> None:
        """Eight streams at once, beside llama-cpp-python's server, whose lock lets one at the model, and beside the
        library for one after the other."""
        tokens, count = (24, 1) if self.is_quick else (64, 3)
        server = Server(self.path)
        try:
            await asyncio.to_thread(server.start)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            server = None
        found: dict[str, list[tuple[float, float]]] = {}
        for number in range(count):
            prompts = [f"{number}. {PROMPT} {people} people:" for people in range(8)]
            found.setdefault("cartdeck", []).append(await timed(self._together(prompts, tokens)))
            found.setdefault("one-by-one", []).append(await timed(self._one_by_one(prompts, tokens)))
            if server is not None:
                rounds = asyncio.to_thread(server.rounds, prompts, tokens)
                found.setdefault("llama-cpp-server", []).append(await timed(first_of_last(rounds)))
        if server is not None:
            await asyncio.to_thread(server.stop)
        for peer, rounds in found.items():
            self.report.say(peer, "eight_last_first_token_s", statistics.median(last for last, _ in rounds), "s")
            per_s = statistics.median(8 * tokens / total for _, total in rounds)
            self.report.say(peer, "eight_tokens_per_s", per_s, "tokens/s")
        ours = found.pop("cartdeck")
        for peer, theirs in found.items():
            both = list(zip(ours, theirs, strict=True))
            last = statistics.median(one[0] / other[0] for one, other in both)
            self.report.ratio(f"eight_last_first_token_{peer}", last, "<", 0.4)
            total = statistics.median(other[1] / one[1] for one, other in both)
            self.report.ratio(f"eight_tokens_per_s_{peer}", total, ">", 1.0)

    async def _together(self, prompts: list[str], tokens: int) -> float:
        rounds = await asyncio.gather(*(self.stack.round(prompt, tokens) for prompt in prompts))
        return max(one.first_s for one in rounds)

    async def _one_by_one(self, prompts: list[str], tokens: int) -> float:
        started, last_s = time.perf_counter(), 0.0
        for prompt in prompts:
            before_s = time.perf_counter() - started
            last_s = before_s + self.library.round(prompt, tokens).first_s
        return last_s

    async def constrained(self) -> None:
        """A token under a schema or a grammar, beside a free one."""
        tokens, count = (32, 3) if self.is_quick else (128, 5)
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

        story = STORY[: len(STORY) // 2] if self.is_quick else STORY
        works = (("load", load), ("prefill", partial(make_text, story, 1)), ("decode", partial(make_text, PROMPT, 48)))
        for name, work in works:
            with redirect_stderr(StringIO()):  # what the engine has to say of a load: a process's own log elsewhere
                delays = sorted(await delays_during(work))
            p99_ms = delays[int(len(delays) * 0.99)] * 1000
            self.report.ratio(f"loop_delay_p99_ms_{name}", p99_ms, "<", 20.0)
        owner, model, _ = loaded[0]
        await asyncio.wrap_future(owner.start(model.close))

    async def loads(self) -> None:
        """Loads and unloads: each with a text of one token; the host's memory is flat, and no process stays."""
        count, engine, sizes, pids = (5 if self.is_quick else 200), self.stack.engine, list[int](), set[int]()
        for number in range(count):
            await self.stack.round(PROMPT, 1)
            pids.add(gguf_process(engine))
            await engine.unload(CAP, self.stack.fixed)
            if number in (count // 4, count - 1):
                sizes.append(resident_bytes())
        self.report.say("cartdeck", "loads", count, "loads")
        self.report.say("cartdeck", "host_growth_per_load", (sizes[-1] - sizes[0]) / (count * 0.75), "bytes")
        self.report.ratio("host_memory_after_loads", sizes[-1] / sizes[0], "<", MOST_GROWTH)
        self.report.ratio("processes_left_after_loads", count_processes(pids), "<", 0)

    async def cancels(self) -> None:
        """Texts given up, every other one inside its prompt: no crash, memory flat, soon answered, usable at once."""
        count, engine = (16 if self.is_quick else 1000), self.stack.engine
        await self.stack.round(PROMPT, 1)
        process, sizes, took_s = gguf_process(engine), list[int](), {"prompt": list[float](), "tokens": list[float]()}
        for number in range(count):
            where = "prompt" if number % 2 else "tokens"
            prompt = f"{number} {STORY if number % 2 else PROMPT}"
            took_s[where].append(await self._cancel_in(where, prompt))
            if number in (count // 4, count - 1):
                sizes.append(resident_bytes(process))
        whole = await self.stack.round(PROMPT, 8)
        self.report.say("cartdeck", "cancels", count, "cancels")
        for where, times in took_s.items():
            median_s = statistics.median(times)
            self.report.ratio(f"cancel_in_{where}_median_ms", median_s * 1000, "<", 100.0)
            self.report.say("cartdeck", f"cancel_in_{where}_worst_ms", max(times) * 1000, "ms")
        if self.is_quick:  # the prefixes that are kept come to their bound after some dozens
            self.report.say("cartdeck", "memory_after_cancels", sizes[-1] / sizes[0], "x")
        else:
            self.report.ratio("memory_after_cancels", sizes[-1] / sizes[0], "<", MOST_GROWTH)
        is_same = gguf_process(engine) == process and whole.tokens == 8
        self.report.ratio("same_process_after_cancels", is_same, ">", 1)

    async def _cancel_in(self, where: str, prompt: str) -> float:
        """How long after its cancel a call was over: the cartridge said so."""
        arguments = {**self.stack.fixed, "prompt": prompt, "max-tokens": 400}
        async with self.stack.engine.call(CAP, arguments) as call:
            async for event in call:
                is_in_prompt = isinstance(event, Progress) and event.phase == "prompt" and event.work
                if isinstance(event, Data) or (where == "prompt" and is_in_prompt):
                    break
            started = time.perf_counter()
            call.cancel()
            try:
                async for _ in call:
                    pass
            except CartdeckError as error:
                if error.code is not Code.CANCELLED:
                    raise
        return time.perf_counter() - started


async def timed(work: Awaitable[float]) -> tuple[float, float]:
    """What it gives, and how long it took."""
    started = time.perf_counter()
    found = await work
    return found, time.perf_counter() - started


async def first_of_last(rounds: Awaitable[list[Round]]) -> float:
    return max(one.first_s for one in await rounds)


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
    processes = (session.process for session in engine.pool.sessions if session.key.cartridge == "gguf")
    return next(process.pid for process in processes if process is not None)


def count_processes(pids: set[int]) -> int:
    """How many of them are there."""
    return sum(Path(f"/proc/{pid}").exists() for pid in pids)


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
        program = Path(options.llama_bench) if options.llama_bench else llama_bench.found()
        bench = Bench(report, stack, Library(path), path, options.quick, program)
        figures: dict[str, Callable[[], Awaitable[None]]] = {
            "stream": bench.one_stream, "llama-bench": bench.own_bench, "prefix": bench.seen_prefix,
            "eight": bench.eight_streams, "constrained": bench.constrained, "loop": bench.loop_delay,
            "loads": bench.loads, "cancels": bench.cancels,
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
    parser.add_argument("--llama-bench", help="another llama-bench than the one that llama_bench.py built")
    parser.add_argument("--only", help="stream, llama-bench, prefix, eight, constrained, loop, loads, cancels")
    missed = asyncio.run(measure(parser.parse_args()))
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
