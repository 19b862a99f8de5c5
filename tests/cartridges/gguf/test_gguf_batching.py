"""Many texts of one model at a time: all advance, and none waits for the end or the reader of another."""

import gc
import os
import threading
import time
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
MakeText = Callable[..., Any]
WriteGguf = Callable[..., Path]
PROMPTS = [
    f"A list of {thing}:" for thing in ("birds", "towns", "tools", "games", "rivers", "colours", "songs", "trees")
]
SETTINGS: dict[str, Any] = {
    "max_tokens": 8,
    "temperature": 0.0,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repeat_penalty": 1.0,
    "seed": 1,
}


def asked(batcher: Batcher, prompt: Any, **changes: Any) -> Generation:
    generation = Generation(prompt, SamplingSettings(**{**SETTINGS, **changes}))
    batcher.submit(generation)
    return generation


def run(batcher: Batcher, *, until: Callable[[], bool] = lambda: False) -> None:
    while not until() and batcher.step() == 0:
        pass


def pieces_of(generation: Generation) -> list[Piece]:
    generation.delivery.raise_error()
    return [item for item in generation.delivery.take() if isinstance(item, Piece)]


def text_of(generation: Generation) -> str:
    return "".join(piece.text for piece in pieces_of(generation) if piece.index == 0)


def test_one_call_of_the_engine_carries_tokens_of_several_texts(
    real_model: Path, open_model: Open, make_text: MakeText
) -> None:
    model = open_model(real_model, context_size=1024)
    alone = [make_text(model, prompt, max_tokens=20).text for prompt in PROMPTS]
    model.context.clear()
    batcher = Batcher(model)
    generations = [asked(batcher, prompt, max_tokens=20) for prompt in PROMPTS]
    run(batcher)
    made = [text_of(one) for one in generations]
    # numbers differ in their last bits beside others, which may decide between two tokens that are equally likely
    assert sum(one == other for one, other in zip(made, alone, strict=True)) >= 3
    assert batcher.stats.most_sequences == 8
    assert batcher.stats.shared_calls >= 7
    assert all(one.is_batched for one in generations)
    assert batcher.stats.tokens == sum(
        one.prompt_tokens - one.cached_tokens + one.completion_tokens - 1 for one in generations
    )


def test_requests_that_come_at_once_and_begin_alike_read_once_what_they_share(
    real_model: Path, open_model: Open, make_text: MakeText
) -> None:
    model = open_model(real_model, context_size=2048)
    story = "The keeper of the lighthouse wrote a letter about the storm of last night. " * 12
    alone = [make_text(model, story + prompt, max_tokens=8).text for prompt in PROMPTS[:4]]
    model.context.clear()
    batcher = Batcher(model)
    generations = [asked(batcher, story + prompt) for prompt in PROMPTS[:4]]
    run(batcher)
    assert generations[0].cached_tokens + generations[1].cached_tokens > 150
    assert sum(one.cached_tokens for one in generations) > 3 * 150
    computed = sum(one.prompt_tokens - one.cached_tokens + one.completion_tokens - 1 for one in generations)
    assert batcher.stats.tokens == computed < sum(one.prompt_tokens for one in generations) // 2
    assert sum(text_of(one) == other for one, other in zip(generations, alone, strict=True)) >= 2


def test_a_request_that_cannot_be_received_ends_and_the_others_go_on(real_model: Path, open_model: Open) -> None:
    batcher = Batcher(open_model(real_model, context_size=512))
    broken, sound = asked(batcher, "half of a pair \ud800"), asked(batcher, PROMPTS[0])
    run(batcher)
    assert broken.delivery.is_over
    with pytest.raises(Exception, match="surrogate"):
        broken.delivery.raise_error()
    assert sound.delivery.is_over
    assert text_of(sound)


def test_a_text_alone_shares_no_call(real_model: Path, open_model: Open) -> None:
    batcher = Batcher(open_model(real_model, context_size=512))
    generation = asked(batcher, PROMPTS[0])
    run(batcher)
    assert not generation.is_batched
    assert batcher.stats.shared_calls == 0


def test_texts_advance_side_by_side_and_a_short_one_does_not_wait_for_long_ones(
    real_model: Path, open_model: Open
) -> None:
    batcher = Batcher(open_model(real_model, context_size=2048))
    longs = [asked(batcher, prompt, max_tokens=100) for prompt in PROMPTS[:3]]
    run(batcher, until=lambda: all(one.completion_tokens >= 5 for one in longs))
    counts = [one.completion_tokens for one in longs]
    assert max(counts) - min(counts) <= 3
    short = asked(batcher, PROMPTS[5], max_tokens=4)
    run(batcher, until=lambda: short.delivery.is_over)
    assert short.completion_tokens == 4
    assert all(one.completion_tokens < 20 for one in longs)


def test_a_long_prompt_leaves_the_others_their_tokens(real_model: Path, open_model: Open) -> None:
    batcher = Batcher(open_model(real_model, context_size=2048))
    writer = asked(batcher, PROMPTS[0], max_tokens=200)
    run(batcher, until=lambda: writer.completion_tokens >= 3)
    reader = asked(batcher, "word " * 600, max_tokens=1)
    before = writer.completion_tokens
    run(batcher, until=lambda: reader.prompt_done >= 500)
    assert writer.completion_tokens - before >= 5


def test_a_text_whose_reader_is_behind_is_left_out_and_goes_on_later(
    real_model: Path, open_model: Open, make_text: MakeText
) -> None:
    model = open_model(real_model, context_size=1024)
    whole = make_text(model, PROMPTS[1], max_tokens=30).text
    model.context.clear()
    batcher = Batcher(model)
    slow = Generation(PROMPTS[1], SamplingSettings(**{**SETTINGS, "max_tokens": 30}))
    slow.delivery = Delivery(most_unread=20)
    batcher.submit(slow)
    others = [asked(batcher, prompt, max_tokens=30) for prompt in PROMPTS[2:4]]
    run(batcher)
    assert all(one.delivery.is_over for one in others)
    assert slow.completion_tokens < 15
    assert batcher.stats.left_out > 0
    text = text_of(slow)
    assert len(text) < 40
    while not slow.delivery.is_over:
        run(batcher)
        text += text_of(slow)
    assert text == whole


def test_a_text_that_nobody_reads_ends_after_its_time(
    real_model: Path, open_model: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = Batcher(open_model(real_model, context_size=512))
    generation = Generation(PROMPTS[0], SamplingSettings(**{**SETTINGS, "max_tokens": 100}))
    generation.delivery = Delivery(most_unread=5)
    batcher.submit(generation)
    run(batcher)
    assert not generation.delivery.is_over
    monkeypatch.setattr("cartdeck_modelkit.delivery.LONGEST_WAIT_S", -1.0)
    run(batcher)
    with pytest.raises(CartdeckError) as caught:
        generation.delivery.raise_error()
    assert caught.value.code is Code.READER_STALLED


def test_what_cannot_fit_says_so_at_once_beside_running_texts_and_what_fits_later_waits(
    real_model: Path, open_model: Open
) -> None:
    batcher = Batcher(open_model(real_model, context_size=256))
    running = asked(batcher, PROMPTS[0], max_tokens=200)
    run(batcher, until=lambda: running.completion_tokens > 2)
    never, later = asked(batcher, "word " * 300), asked(batcher, PROMPTS[1], max_tokens=100)
    small = asked(batcher, PROMPTS[2], max_tokens=2)
    batcher.step()
    with pytest.raises(CartdeckError) as caught:
        never.delivery.raise_error()
    assert caught.value.code is Code.CONTEXT_OVERFLOW
    assert (running.position, later.position) == (0, 1)
    run(batcher, until=lambda: small.delivery.is_over)
    assert not running.delivery.is_over  # a small one passes the one that waits
    assert not later.delivery.is_over
    run(batcher)
    assert (running.completion_tokens, later.completion_tokens, later.position) == (200, 100, 0)


def test_more_tokens_than_fit_are_cut_to_what_fits(real_model: Path, open_model: Open) -> None:
    batcher = Batcher(open_model(real_model, context_size=64))
    generation = asked(batcher, PROMPTS[0], max_tokens=1_000_000, texts=3)
    run(batcher)
    assert generation.prompt_tokens + generation.completion_tokens <= 64
    assert generation.max_tokens == (64 - generation.prompt_tokens) // 3
    assert {piece.finish_reason for piece in pieces_of(generation)} <= {None, "length", "stop"}


@pytest.mark.parametrize("context_size", [8, 63])
def test_a_context_of_fewer_tokens_than_texts_may_run_holds_a_text(
    real_model: Path, open_model: Open, context_size: int
) -> None:
    batcher = Batcher(open_model(real_model, context_size=context_size))
    generation = asked(batcher, "Hello", max_tokens=100)
    run(batcher)
    assert generation.prompt_tokens + generation.completion_tokens <= context_size
    assert [piece.finish_reason for piece in pieces_of(generation)][-1] in ("length", "stop")


def test_one_of_many_is_cancelled_and_the_others_do_not_notice(
    real_model: Path, open_model: Open, make_text: MakeText
) -> None:
    model = open_model(real_model, context_size=4096)
    alone = make_text(model, PROMPTS[3], max_tokens=20).text
    model.context.clear()
    batcher = Batcher(model)
    other = asked(batcher, PROMPTS[3], max_tokens=20)
    run(batcher, until=lambda: other.completion_tokens > 1)
    given_up = asked(batcher, "word " * 3000, max_tokens=5)
    asked_s: list[float] = []

    def give_up() -> None:
        asked_s.append(time.process_time())
        batcher.cancel(given_up)

    timer = threading.Timer(0.3, give_up)
    timer.start()
    run(batcher, until=lambda: given_up.delivery.is_over)
    elapsed = time.process_time() - asked_s[0]
    assert elapsed < 2.0  # of computing, whatever else the machine does; a tenth of a second on a quiet one
    assert given_up.finish_reason == "cancelled"
    run(batcher)
    assert text_of(other) == alone


def test_many_cancels_leave_the_context_and_the_memory_as_they_were(write_gguf: WriteGguf, open_model: Open) -> None:
    batcher = Batcher(open_model(write_gguf()))

    def cancel_many(count: int) -> None:
        for number in range(count):
            generation = asked(batcher, "a" * (1 + number % 90), max_tokens=300, temperature=1.0, seed=number)
            for _ in range(number % 7):
                batcher.step()
            batcher.cancel(generation)
            run(batcher)
            assert generation.delivery.is_over
        gc.collect()

    cancel_many(100)
    grown: list[int] = []
    while len(grown) < 3 and (not grown or min(grown) >= MOST_GROWN_BYTES):
        before = resident_bytes()
        cancel_many(150)
        grown.append(resident_bytes() - before)
    assert min(grown) < MOST_GROWN_BYTES  # what is lost each time is lost in each round, what an allocator keeps is not
    last = asked(batcher, "a", max_tokens=4)
    run(batcher)
    assert last.completion_tokens <= 4
    assert last.delivery.is_over


MOST_GROWN_BYTES = 4 * 1024 * 1024


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_texts_of_one_prompt_are_those_of_the_seeds(real_model: Path, open_model: Open, make_text: MakeText) -> None:
    model = open_model(real_model, context_size=1024)
    wanted = {"temperature": 1.0, "max_tokens": 12}
    alone = [make_text(model, PROMPTS[4], seed=seed, **wanted).text for seed in (7, 8, 9)]
    model.context.clear()
    batcher = Batcher(model)
    generation = asked(batcher, PROMPTS[4], seed=7, texts=3, deterministic=True, **wanted)
    run(batcher)
    pieces = pieces_of(generation)
    made = ["".join(piece.text for piece in pieces if piece.index == index) for index in range(3)]
    assert made == alone
    assert generation.seeds == [7, 8, 9]
    ends = {piece.index: piece.finish_reason for piece in pieces if piece.finish_reason}
    assert ends == {0: "length", 1: "length", 2: "length"}
    assert generation.completion_tokens == 36


def test_texts_of_one_prompt_compute_it_once_and_advance_together(real_model: Path, open_model: Open) -> None:
    batcher = Batcher(open_model(real_model, context_size=1024))
    generation = asked(batcher, PROMPTS[4], seed=7, texts=4, temperature=1.0, max_tokens=12)
    run(batcher)
    pieces = pieces_of(generation)
    texts = ["".join(piece.text for piece in pieces if piece.index == index) for index in range(4)]
    assert len(set(texts)) > 1
    assert batcher.stats.tokens == generation.prompt_tokens + generation.completion_tokens - 4
    assert batcher.stats.most_sequences == 4
    again = asked(batcher, PROMPTS[4], seed=7, texts=4, temperature=1.0, max_tokens=12)
    run(batcher)
    assert again.completion_tokens == generation.completion_tokens


def test_a_context_apart_that_memory_does_not_allow_is_refused_and_the_rest_goes_on(
    write_gguf: WriteGguf, open_model: Open
) -> None:
    model = open_model(write_gguf())
    model.apart_bytes = 2**60
    batcher = Batcher(model)
    apart, shared = asked(batcher, "a", deterministic=True), asked(batcher, "a", max_tokens=2)
    run(batcher)
    with pytest.raises(CartdeckError) as caught:
        apart.delivery.raise_error()
    assert caught.value.code is Code.INSUFFICIENT_MEMORY
    assert caught.value.argument == "deterministic"
    assert shared.completion_tokens <= 2
    shared.delivery.raise_error()
