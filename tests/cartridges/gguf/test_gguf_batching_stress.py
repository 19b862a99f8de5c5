"""Texts come, go, are given up and left unread in any order: each has its end, and every place is given back."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck_gguf.batcher import Batcher
from cartdeck_gguf.generation import Generation, Piece
from cartdeck_modelkit.delivery import Delivery
from cartdeck_modelkit.sampling import SamplingSettings
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.model

Open = Callable[..., Any]
WriteGguf = Callable[..., Path]
STEMS = ("", "a long beginning that many share, longer than a slice of the prompt by far: ", "another one. " * 12)


class Party:
    """A request of the test, with what came of it so far."""

    def __init__(self, batcher: Batcher, dice: random.Random) -> None:
        self.settings = SamplingSettings(
            max_tokens=dice.choice((1, 5, 40, 10_000)),
            temperature=1.0,
            top_k=40,
            top_p=0.95,
            min_p=0.05,
            repeat_penalty=1.0,
            seed=dice.randrange(1000),
            texts=dice.choice((1, 1, 1, 3)),
            stop=dice.choice(((), ("e",))),
            logprobs=dice.random() < 0.2,
            grammar=dice.choice((None, None, 'root ::= [a-z]+ "!"')),
            deterministic=dice.random() < 0.3,
        )
        self.prompt = dice.choice(STEMS) + "x" * dice.randrange(40)
        self.generation = Generation(self.prompt, self.settings)
        self.generation.delivery = Delivery(most_unread=dice.choice((5, 50, 10_000)))
        self.pieces: list[Piece] = []
        batcher.submit(self.generation)

    def read(self) -> None:
        self.pieces += [item for item in self.generation.delivery.take() if isinstance(item, Piece)]

    def texts(self) -> list[str]:
        count = self.settings.texts
        return ["".join(piece.text for piece in self.pieces if piece.index == index) for index in range(count)]


@pytest.mark.parametrize("seed", range(6))
def test_every_request_has_its_end_and_every_place_is_given_back(
    write_gguf: WriteGguf, open_model: Open, seed: int
) -> None:
    dice = random.Random(seed)
    model = open_model(write_gguf(), context_size=512)
    batcher = Batcher(model)
    running: list[Party] = []
    ended: list[Party] = []
    for number in range(400):
        if number < 300 and dice.random() < 0.2 and len(running) < 20:
            running.append(Party(batcher, dice))
        for party in running:
            if dice.random() < 0.3:
                party.read()
            if dice.random() < 0.01:
                batcher.cancel(party.generation)
        batcher.step()
        ended += [party for party in running if party.generation.delivery.is_over]
        running = [party for party in running if not party.generation.delivery.is_over]
    for _ in range(20_000):
        if not running:
            break
        batcher.step()
        for party in running:
            party.read()
        ended += [party for party in running if party.generation.delivery.is_over]
        running = [party for party in running if not party.generation.delivery.is_over]
    assert not running
    assert batcher.step() is None
    assert len(ended) > 20
    for party in ended:
        party.read()
        check_end(party)
    check_places(batcher)
    check_deterministic(ended, model)


def check_end(party: Party) -> None:
    generation = party.generation
    if generation.is_cancelled:
        assert generation.finish_reason == "cancelled"
        with pytest.raises(CartdeckError) as caught:
            generation.delivery.raise_error()
        assert caught.value.code is Code.CANCELLED
        return
    generation.delivery.raise_error()
    assert generation.finish_reason in ("stop", "length")
    ends = [piece.index for piece in party.pieces if piece.finish_reason is not None]
    assert sorted(ends) == list(range(party.settings.texts))
    assert generation.completion_tokens <= generation.most_tokens
    assert generation.cached_tokens < generation.prompt_tokens
    for text in party.texts():
        assert not party.settings.stop or "e" not in text


def check_places(batcher: Batcher) -> None:
    """All that was given out is back, or kept for the next prompt."""
    for lane in batcher.lanes:
        assert lane.cells_in_use == 0
        assert lane.free_places == lane.context.sequences


def check_deterministic(parties: list[Party], model: Any) -> None:
    """Those that were to come out the same did, whatever ran beside them."""
    checked = 0
    for party in parties:
        is_whole = party.settings.deterministic and party.generation.finish_reason in ("stop", "length")
        if is_whole and checked < 6:
            checked += 1
            batcher, again = Batcher(model), Party.__new__(Party)
            model.apart().clear()
            again.settings, again.pieces = party.settings, []
            again.generation = Generation(party.prompt, party.settings)
            batcher.submit(again.generation)
            while not again.generation.delivery.is_over:
                batcher.step()
                again.read()
            again.read()
            assert again.texts() == party.texts()
