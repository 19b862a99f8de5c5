"""The three phases of a model call: where each lies, how often it speaks, and what obtaining brings."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from cartdeck_modelkit.phases import SHORTEST_INTERVAL_S, InferenceReporter, ObtainedModel, keeping_alive

LIMIT_S = 10.0


class Heard:
    """Keeps what a reporter said."""

    def __init__(self) -> None:
        self.fractions: list[float] = []
        self.details: list[dict[str, Any]] = []

    def __call__(self, fraction: float, message: str = "", **details: Any) -> None:
        self.fractions.append(fraction)
        self.details.append({"message": message, **details})


def test_inference_lies_between_its_bounds_and_counts_its_work() -> None:
    heard = Heard()
    reporter = InferenceReporter(heard, "Generating", total=8)
    reporter.start()
    reporter.advance(8)
    assert heard.fractions == pytest.approx([0.35, 0.95])
    assert heard.details[0] == {
        "message": "Generating: 0 of 8 tokens",
        "phase": "inference",
        "work": 0,
        "total": 8,
    }


def test_many_small_steps_make_few_reports_that_never_fall() -> None:
    heard, started = Heard(), time.monotonic()
    reporter = InferenceReporter(heard, "Generating", total=100_000)
    for work in range(100_001):
        reporter.advance(work)
    possible = 2 + (time.monotonic() - started) / SHORTEST_INTERVAL_S
    assert 2 <= len(heard.fractions) <= min(21, possible)
    assert heard.fractions == sorted(heard.fractions)
    assert heard.fractions[-1] == pytest.approx(0.95)


def test_work_beyond_the_total_or_backwards_changes_no_bound() -> None:
    heard = Heard()
    reporter = InferenceReporter(heard, "Embedding", total=0, unit="texts")
    reporter.advance(5)
    reporter.advance(2)
    reporter.repeat()
    assert heard.fractions == pytest.approx([0.95, 0.95])
    assert heard.details[-1]["message"] == "Embedding: 1 of 1 texts"


def test_a_wait_is_kept_alive_and_the_repeats_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARTDECK_KEEPALIVE_S", "0.005")

    async def run() -> int:
        repeats, enough = 0, asyncio.Event()

        def repeat() -> None:
            nonlocal repeats
            repeats += 1
            if repeats == 3:
                enough.set()

        async with asyncio.timeout(LIMIT_S), keeping_alive(repeat):
            await enough.wait()
        before = len(asyncio.all_tasks())
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1 <= before
        return repeats

    assert asyncio.run(run()) == 3


def test_the_hash_of_an_obtained_model_is_that_of_its_own_file() -> None:
    files = ({"path": "/m/other", "sha256": "aa"}, {"path": "/m/model.gguf", "sha256": "bb"})
    assert ObtainedModel(Path("/m/model.gguf"), files).sha256 == "bb"
    assert ObtainedModel(Path("/m"), files).sha256 is None
    assert ObtainedModel(Path("/m/model.gguf"), ({"path": "/blobs/1", "sha256": "cc"},)).sha256 == "cc"
    assert ObtainedModel(Path("/m/model.gguf"), ({"path": "/m/model.gguf", "sha256": None},)).sha256 is None
    assert ObtainedModel(Path("/m/model.gguf")).sha256 is None
