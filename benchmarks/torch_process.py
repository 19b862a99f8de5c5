# ruff: noqa: PLC0415 - torch is imported when a model is loaded, as in the cartridge
"""How late a turn of the event loop comes in the torch cartridge's process while it imports, loads and computes.

    python benchmarks/torch_process.py LANGUAGE_MODEL ENCODER [--quick]

One JSON line: milliseconds by which a sleep of one millisecond came too late, as p99 and the most of a cold start (the
import, the load, a short text), of a text alone and of vectors alone; and from a
cancel inside a prompt of 1,500 tokens to its end.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

from cartdeck_modelkit.sampling import SamplingSettings
from cartdeck_protocol.errors import CartdeckError
from cartdeck_torch.folder import read_folder
from cartdeck_torch.generation import Generation
from cartdeck_torch.settings import LoadSettings
from cartdeck_torch.worker import DeviceWorker

TICK_S: Final = 0.001
WORDS: Final = "The old keeper wrote a letter to his daughter about the storm of last night. "
TRIES: Final = 3


def open_device() -> Any:
    """As the cartridge does at its first load."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from cartdeck_torch.engine import torch_device

    torch_device.settle()
    return torch_device.open_device("cpu", threads=1)


def make_loader(path: Path) -> Callable[[Any], Any]:
    folder = read_folder(path)

    def load(device: Any) -> Any:
        from cartdeck_torch.engine.models import open_model

        return open_model(folder, LoadSettings(threads=1), device, report=lambda _: None)

    return load


def greedy(count: int, **changes: Any) -> SamplingSettings:
    plain: dict[str, Any] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
    return SamplingSettings(**{**plain, "seed": 0, "max_tokens": count, **changes})


async def delays_of(work: Awaitable[Any]) -> list[float]:
    """How late each turn came, in milliseconds, while `work` ran."""
    found: list[float] = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            found.append((time.perf_counter() - due) * 1000)

    ticking = asyncio.create_task(tick())
    await work
    ticking.cancel()
    return sorted(found)


async def text_of(worker: DeviceWorker, handle: Any, prompt: str, *, count: int) -> None:
    generation = Generation(prompt, count, settings=greedy(count))
    job = worker.submit(handle, lambda model, job: model.generate(generation, job))
    async for _ in job.pieces():
        pass


async def cancel_ms(worker: DeviceWorker, handle: Any, *, tries: int) -> float:
    """From the cancel inside a prompt of 1,500 tokens to the end of its work, the slowest of some tries."""
    worst = 0.0
    for place in range(tries):
        generation = Generation(WORDS * 94, 50, settings=greedy(50))
        job = worker.submit(handle, lambda model, job, asked=generation: model.generate(asked, job))
        while generation.prompt_done < 512:  # noqa: ASYNC110 - a count of another thread's
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.05 * (place + 1))
        assert generation.prompt_done < generation.prompt_tokens
        started = time.perf_counter()
        job.stop.set()
        try:
            await asyncio.wrap_future(job.outcome)
        except CartdeckError:
            worst = max(worst, (time.perf_counter() - started) * 1000)
    return worst


async def measure(language: Path, encoder: Path, *, is_quick: bool) -> dict[str, float]:
    worker = DeviceWorker(open_device)
    kept: list[Any] = []

    async def start() -> None:
        kept.append(await asyncio.wrap_future(worker.load(make_loader(language), "language model")))
        await text_of(worker, kept[0], "The capital of France is", count=8)

    cold = await delays_of(start())
    found = {"cold_p99_ms": cold[int(len(cold) * 0.99)], "cold_most_ms": cold[-1]}
    warm = await delays_of(text_of(worker, kept[0], WORDS * 4, count=20 if is_quick else 60))
    found["text_p99_ms"] = warm[int(len(warm) * 0.99)]
    found["cancel_ms"] = await cancel_ms(worker, kept[0], tries=1 if is_quick else TRIES)
    vectors = await asyncio.wrap_future(worker.load(make_loader(encoder), "encoder"))
    ids = [[101, *range(2000, 2000 + 60 + place % 7), 102] for place in range(16)]

    async def embed() -> None:
        for _ in range(10 if is_quick else 30):
            await asyncio.wrap_future(worker.use(vectors, lambda model: model.embed(ids, pooling=None, normalize=True)))

    warm = await delays_of(embed())
    found["vectors_p99_ms"] = warm[int(len(warm) * 0.99)]
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(Path(sys.argv[1]), Path(sys.argv[2]), is_quick="--quick" in sys.argv))))
