"""What was seen before is not computed again, and the text stays what it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck_gguf.batcher import Batcher
from cartdeck_gguf.generation import Generation, Piece
from cartdeck_gguf.prefix_cache import PrefixCache, Trace, Wanted, common_length
from cartdeck_modelkit.sampling import SamplingSettings
from cartdeck_modelkit.told_text import TokenRecord

Open = Callable[..., Any]
WriteGguf = Callable[..., Path]
STORY = "The old lighthouse keeper wrote a letter to his daughter about the storm of last night. " * 12
SETTINGS: dict[str, Any] = {
    "max_tokens": 8,
    "temperature": 0.0,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repeat_penalty": 1.0,
    "seed": 1,
    "logprobs": True,
}


def made(batcher: Batcher, prompt: str, **changes: Any) -> tuple[Generation, list[TokenRecord]]:
    """A request that has run to its end, and every token with how likely it was: equal to the last bit or not."""
    generation = Generation(prompt, SamplingSettings(**{**SETTINGS, **changes}))
    batcher.submit(generation)
    while not generation.delivery.is_over:
        batcher.step()
    return generation, records_of(generation)


def records_of(generation: Generation) -> list[TokenRecord]:
    generation.delivery.raise_error()
    items = generation.delivery.take()
    return [record for item in items if isinstance(item, Piece) for record in item.records]


@pytest.mark.model
def test_a_prompt_seen_before_is_taken_over_up_to_a_slice_and_gives_the_same_numbers(
    real_model: Path, open_model: Open
) -> None:
    batcher = Batcher(open_model(real_model, context_size=1024))
    cold, first = made(batcher, STORY)
    tokens = batcher.stats.tokens
    warm, second = made(batcher, STORY)
    assert cold.cached_tokens == 0
    assert warm.cached_tokens == (cold.prompt_tokens - 1) // 64 * 64 > 128
    assert warm.prompt_tokens == cold.prompt_tokens
    assert warm.prompt_done == warm.prompt_tokens
    assert batcher.stats.tokens - tokens == warm.prompt_tokens - warm.cached_tokens + warm.completion_tokens - 1
    assert second == first


@pytest.mark.model
def test_a_prompt_whose_text_is_left_to_chance_takes_all_that_was_seen(real_model: Path, open_model: Open) -> None:
    batcher = Batcher(open_model(real_model, context_size=1024))
    for prompt in ("The capital of France is", STORY):
        made(batcher, prompt, temperature=0.7)
        tokens = batcher.stats.tokens
        warm, records = made(batcher, prompt, temperature=0.7)
        assert warm.cached_tokens == warm.prompt_tokens - 1
        assert batcher.stats.tokens - tokens == warm.completion_tokens
        assert len(records) == warm.completion_tokens


@pytest.mark.model
@pytest.mark.parametrize("changes", [{}, {"temperature": 0.7, "is_seeded": True}])
def test_a_short_prompt_that_begins_like_another_gives_its_own_text(
    real_model: Path, open_model: Open, changes: dict[str, Any]
) -> None:
    model = open_model(real_model, context_size=1024)
    begin, end = "<|im_start|>system\nYou ", "<|im_end|>\n<|im_start|>assistant\n"
    asked = f"{begin}are a helpful assistant.<|im_end|>\n<|im_start|>user\nWhat is the capital of France?{end}"
    _, cold = made(Batcher(model), asked, **changes)
    model.context.clear()
    batcher = Batcher(model)
    made(batcher, f"{begin}may call tools. {'A clock tells the time. ' * 20}{end}", **changes)
    _, warm = made(batcher, asked, **changes)
    assert warm == cold


@pytest.mark.model
def test_a_conversation_that_goes_on_is_taken_over_whole(real_model: Path, open_model: Open) -> None:
    batcher = Batcher(open_model(real_model, context_size=1024))
    generation = Generation(STORY, SamplingSettings(**{**SETTINGS, "max_tokens": 60}))
    batcher.submit(generation)
    while not generation.delivery.is_over:
        batcher.step()
    answer = "".join(item.text for item in generation.delivery.take() if isinstance(item, Piece))
    goes_on, _ = made(batcher, STORY + answer + " And then he said")
    assert goes_on.cached_tokens >= generation.prompt_tokens + generation.completion_tokens - 2 > 256


@pytest.mark.model
def test_a_prefix_is_shared_with_a_text_that_is_still_being_made(real_model: Path, open_model: Open) -> None:
    batcher = Batcher(open_model(real_model, context_size=2048))
    running = Generation(STORY, SamplingSettings(**{**SETTINGS, "max_tokens": 60}))
    batcher.submit(running)
    while running.completion_tokens < 2:
        batcher.step()
    other, _ = made(batcher, STORY + " What did she answer?")
    assert other.cached_tokens >= running.prompt_tokens // 64 * 64
    assert not running.delivery.is_over
    while not running.delivery.is_over:
        batcher.step()
    assert len(records_of(running)) == 60


@pytest.mark.model
def test_a_parked_prefix_comes_back_from_memory_with_the_same_numbers(real_model: Path, open_model: Open) -> None:
    model = open_model(real_model, context_size=512)
    batcher = Batcher(model)
    cold, first = made(batcher, STORY)
    for prompt in ("Birds: ", "A very different text about towns and their rivers. " * 12):
        made(batcher, prompt, max_tokens=2)
    warm, second = made(batcher, STORY)
    assert warm.cached_tokens == (cold.prompt_tokens - 1) // 64 * 64
    assert second == first


@pytest.mark.model
def test_a_deterministic_text_beside_eight_others_with_a_prefix_from_the_cache_is_the_one_made_alone(
    real_model: Path, open_model: Open
) -> None:
    model = open_model(real_model, context_size=4096)
    wanted = {"deterministic": True, "temperature": 0.9, "seed": 11, "max_tokens": 25, "top_logprobs": 3}
    cold, alone = made(Batcher(model), STORY, **wanted)
    model.context.clear()
    batcher = Batcher(model)
    made(batcher, STORY + " The end.", deterministic=True)
    others = [
        Generation(f"A list of {n} things:", SamplingSettings(**{**SETTINGS, "max_tokens": 60})) for n in range(8)
    ]
    for other in others:
        batcher.submit(other)
    while not all(other.completion_tokens for other in others):
        batcher.step()
    beside, records = made(batcher, STORY, **wanted)
    assert records == alone  # to the last bit
    assert beside.cached_tokens > 0
    assert not beside.is_batched
    assert cold.cached_tokens == 0
    assert all(other.is_batched for other in others)


@pytest.mark.model
def test_tokens_are_told_with_how_likely_they_were_and_none_of_a_stop_string(
    real_model: Path, open_model: Open
) -> None:
    batcher = Batcher(open_model(real_model, context_size=512))
    _, records = made(batcher, "The capital of France is", top_logprobs=3)
    assert b"".join(record.data for record in records) == b" Paris.\n\nThe United States has"
    for record in records:
        logprobs = [logprob for _, _, logprob in record.top]
        assert logprobs == sorted(logprobs, reverse=True)
        assert record.top[0][0] == record.id  # the likeliest is taken at temperature 0
        assert record.logprob == record.top[0][2] < 0
    _, stopped = made(batcher, "The capital of France is", stop=("United States",))
    assert b"".join(record.data for record in stopped) == b" Paris.\n\nThe"


@pytest.mark.model
def test_a_bias_rules_a_token_out_or_in(real_model: Path, open_model: Open) -> None:
    model = open_model(real_model, context_size=512)
    batcher = Batcher(model)
    paris = model.model.tokenize(" Paris")[0]
    without, _ = made(batcher, "The capital of France is", logit_bias=((paris, -100.0),))
    assert without.completion_tokens == 8
    _, records = made(batcher, "The capital of France is", logit_bias=((paris, 100.0),))
    assert {record.id for record in records} == {paris}


def traced(context: Any, sequence: int, tokens: list[int], exact: int = 0) -> Trace:
    """A sequence of the context that has seen these tokens."""
    context.start_batch()
    context.add(sequence, tokens, 0)
    assert context.compute().name == "DONE"
    return Trace(tokens, exact, sequence)


@pytest.mark.model
def test_where_a_match_ends_depends_on_what_is_exact(write_gguf: WriteGguf, open_model: Open) -> None:
    context = open_model(write_gguf()).context
    cache = PrefixCache(context, slice_tokens=4)
    assert cache.keep(traced(context, 0, list(range(20)), exact=8))

    def length(tokens: list[int], wanted: Wanted) -> int:
        match = cache.find(tokens, (), wanted=wanted)
        return 0 if match is None else match.length

    assert length([*range(7), 99], Wanted.EXACT) == 4
    assert length([*range(7), 99], Wanted.SAME_TEXT) == 4  # computing three tokens more keeps it exact
    assert length([*range(7), 99], Wanted.ALL) == 7
    assert length([*range(10), 99], Wanted.EXACT) == 8
    assert length([*range(14), 99], Wanted.EXACT) == 8
    assert length([*range(14), 99], Wanted.SAME_TEXT) == 14
    assert length(list(range(20)), Wanted.ALL) == 19  # the last token's numbers are wanted
    assert length([99], Wanted.ALL) == 0


@pytest.mark.model
def test_what_is_parked_keeps_to_its_budget_and_the_oldest_goes_first(write_gguf: WriteGguf, open_model: Open) -> None:
    context = open_model(write_gguf()).context
    size_bytes = len(context.save(traced(context, 0, [9] * 10).sequence))
    context.clear()
    cache = PrefixCache(context, slice_tokens=4, parked_bytes=3 * size_bytes + size_bytes // 2)
    for number in range(5):
        assert cache.keep(traced(context, number, [number] * 10))
    assert cache.park() == [0, 1, 2, 3, 4]
    assert cache.parked_bytes == 3 * size_bytes
    matches = [cache.find([number] * 12, (), wanted=Wanted.ALL) for number in range(5)]
    assert [match is not None for match in matches] == [False, False, True, True, True]
    assert matches[2] is not None
    assert cache.copy(matches[2].trace, 6, 7)
    assert context.is_whole(7, 6)
    assert not context.is_whole(0, 10)


@pytest.mark.model
def test_a_trace_that_another_holds_is_not_kept_twice(write_gguf: WriteGguf, open_model: Open) -> None:
    context = open_model(write_gguf()).context
    cache = PrefixCache(context, slice_tokens=4)
    assert cache.keep(traced(context, 0, list(range(20))))
    assert not cache.keep(traced(context, 1, list(range(19))))
    context.forget(1)
    live = traced(context, 3, list(range(18)))
    assert cache.park([live]) == [0]
    assert cache.parked_bytes == 0  # the live one holds it but for less than a slice


@pytest.mark.model
def test_a_trace_is_taken_in_its_place_and_its_end_is_parked_where_it_is_long(
    write_gguf: WriteGguf, open_model: Open
) -> None:
    context = open_model(write_gguf()).context
    cache = PrefixCache(context, slice_tokens=4)
    trace = traced(context, 5, list(range(20)), exact=8)
    assert cache.keep(trace)
    taken = cache.take(trace, 10)
    assert taken is not None
    assert (taken.tokens, taken.exact, taken.sequence) == (list(range(10)), 8, 5)
    assert context.is_whole(5, 10)
    assert cache.resident_count == 0
    match = cache.find([*range(15), 99], (), wanted=Wanted.ALL)
    assert match is not None
    assert match.length == 15


def test_the_common_beginning_of_two_lists_is_found() -> None:
    assert common_length([], [1]) == 0
    assert common_length([1, 2, 3], [1, 2, 3]) == 3
    for length in range(40):
        assert common_length([*range(length), -1, 5], [*range(length), -2, 5]) == length
