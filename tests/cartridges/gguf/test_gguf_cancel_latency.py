"""How soon a text is given up, inside its prompt and between its tokens, and that the context is usable at once.

Of computing, whatever else the machine does, and the best of several; by the clock only that nothing is waited for.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck_gguf.batcher import Batcher
from cartdeck_gguf.generation import Generation
from cartdeck_modelkit.owner import Owner
from cartdeck_modelkit.sampling import SamplingSettings
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.model

LIMIT_S = 0.1
SLOWEST_S = 2.0
MOST_TRIES = 6
WAIT_S = 60.0
LONG = "The keeper of the old lighthouse wrote a letter about the storm of last night. " * 180
"""About 2,800 tokens: many seconds of computing."""

SHORT = "The capital of France is"


class Maker:
    """A model with its owner's thread, as the cartridge has them."""

    def __init__(self, model: Any) -> None:
        self.owner = Owner("test")
        self.batcher = Batcher(model)
        self.owner.go_on_with(self.batcher.step)

    def submit(self, prompt: str, max_tokens: int) -> Generation:
        settings = SamplingSettings(
            max_tokens=max_tokens, temperature=0.0, top_k=40, top_p=0.95, min_p=0.05, repeat_penalty=1.0, seed=1
        )
        generation = Generation(prompt, settings)
        self.batcher.submit(generation)
        self.owner.wake()
        return generation

    async def give_up(self, prompt: str, is_there: Callable[[Generation], bool]) -> tuple[float, float]:
        """Seconds of computing, and by the clock, from the cancel of a text that is where it should be to its end."""
        generation, started = self.submit(prompt, 400), list[tuple[float, float]]()

        async def read() -> None:
            async for _ in generation.delivery.batches():
                if not started and is_there(generation):
                    started.append((time.process_time(), time.perf_counter()))
                    self.batcher.cancel(generation)
                    self.owner.wake()

        with pytest.raises(CartdeckError) as raised:
            await read()
        computed_s, elapsed_s = time.process_time() - started[0][0], time.perf_counter() - started[0][1]
        assert raised.value.code is Code.CANCELLED
        assert generation.finish_reason == "cancelled"
        return computed_s, elapsed_s

    async def text(self, prompt: str) -> str:
        batches = [batch async for batch in self.submit(prompt, 8).delivery.batches()]
        return "".join(piece.text for batch in batches for piece in batch)  # type: ignore[union-attr]


@pytest.fixture
def maker(real_model: Path, open_model: Any) -> Maker:
    return Maker(open_model(real_model, context_size=4096))


def is_in_prompt(generation: Generation) -> bool:
    return 0 < generation.prompt_done < generation.prompt_tokens


def is_at_tokens(generation: Generation) -> bool:
    return generation.completion_tokens > 2


@pytest.mark.parametrize(
    ("prompt", "is_there"), [(LONG, is_in_prompt), (SHORT, is_at_tokens)], ids=["prompt", "tokens"]
)
def test_a_text_is_given_up_within_a_tenth_of_a_second_and_the_next_one_is_made_at_once(
    maker: Maker, prompt: str, is_there: Callable[[Generation], bool]
) -> None:
    async def run() -> None:
        async with asyncio.timeout(WAIT_S):
            whole, computed_s, took_s = await maker.text(SHORT), list[float](), list[float]()
            while not took_s or (min(computed_s) >= LIMIT_S and len(took_s) < MOST_TRIES):
                computed, took = await maker.give_up(f"{len(took_s)} {prompt}", is_there)
                computed_s.append(computed)
                took_s.append(took)
                assert await maker.text(SHORT) == whole
            assert min(computed_s) < LIMIT_S
            assert min(took_s) < SLOWEST_S

    asyncio.run(run())
