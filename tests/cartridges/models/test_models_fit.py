"""Whether a model fits: the arithmetic, and the sentence that says why."""

import pytest

from cartdeck_modelkit.gguf.memory import MemoryEstimate
from cartdeck_models.fit import USEFUL_CONTEXT, Candidate, Room, best, judge
from cartdeck_models.growth import Growth, growth_of_config

GB = 1_000_000_000
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}


def candidate(size_bytes: int = 5 * GB, missing_bytes: int | None = None) -> Candidate:
    missing = size_bytes if missing_bytes is None else missing_bytes
    return Candidate(
        path="m.gguf", files=("m.gguf",), size_bytes=size_bytes, weights_bytes=size_bytes, missing_bytes=missing
    )


def growing(bytes_per_token: int, own: int | None = 32_768) -> Growth:
    return Growth(own, lambda context, weights: MemoryEstimate(context, weights, context * bytes_per_token, 0))


def test_a_model_with_room_for_its_own_context_fits_with_all_of_it() -> None:
    verdict = judge(candidate(), growing(100_000), Room(20 * GB, 100 * GB))
    assert verdict.fits is True
    assert verdict.estimate == MemoryEstimate(32_768, 5 * GB, 3_276_800_000, 0)
    assert not verdict.is_capped
    assert "It fits: it needs about 8.3 GB of memory with a context of 32,768 tokens, and 20.0 GB" in verdict.sentence
    assert "To fetch: 5.0 GB." in verdict.sentence


def test_the_context_is_capped_at_half_of_what_the_weights_leave() -> None:
    verdict = judge(candidate(), growing(100_000), Room(7 * GB, 100 * GB))
    assert verdict.estimate is not None
    assert verdict.estimate.context_size == 9984  # 1 GB, in steps of 256 tokens
    assert verdict.is_capped
    assert verdict.fits is True
    assert "9,984 tokens (of its own 32,768)" in verdict.sentence


def test_a_model_without_room_for_a_useful_context_does_not_fit() -> None:
    verdict = judge(candidate(), growing(1_000_000), Room(7 * GB, 100 * GB))
    assert verdict.estimate is not None
    assert (verdict.fits, verdict.estimate.context_size) == (False, USEFUL_CONTEXT)
    assert verdict.sentence.startswith("It does not fit: it needs about 9.1 GB of memory")


def test_weights_larger_than_memory_are_said_to_be_the_reason() -> None:
    verdict = judge(candidate(), growing(1), Room(4 * GB, 100 * GB))
    assert "its weights alone take 5.0 GB, and 4.0 GB are free" in verdict.sentence


def test_a_context_that_is_asked_for_is_taken_at_its_word() -> None:
    fits = judge(candidate(), growing(100_000), Room(7 * GB, 100 * GB), context_size=16_384)
    assert (fits.fits, fits.is_capped) == (True, False)
    assert judge(candidate(), growing(100_000), Room(7 * GB, 100 * GB), context_size=32_768).fits is False


def test_a_disk_without_room_decides_whatever_memory_says() -> None:
    verdict = judge(candidate(), growing(1), Room(None, 4 * GB))
    assert verdict.fits is False
    assert verdict.sentence.startswith("The disk has no room: 5.0 GB are to be fetched, and 4.0 GB are free.")
    assert judge(candidate(missing_bytes=0), growing(1), Room(20 * GB, 0)).fits is True


def test_memory_that_is_not_known_leaves_the_verdict_open() -> None:
    verdict = judge(candidate(), growing(1), Room(None, 100 * GB))
    assert verdict.fits is None
    assert "not known" in verdict.sentence


def test_a_model_of_unknown_growth_is_judged_by_its_weights() -> None:
    verdict = judge(candidate(), None, Room(6 * GB, 100 * GB))
    assert verdict.fits is True
    assert verdict.to_plain()["memory_bytes"] == 5 * GB
    assert "It may fit" in verdict.sentence
    assert judge(candidate(), None, Room(4 * GB, 100 * GB)).fits is False


def test_the_first_that_fits_is_the_best() -> None:
    room = Room(6 * GB, 100 * GB)
    verdicts = [judge(candidate(size), growing(1000), room) for size in (9 * GB, 5 * GB, 2 * GB)]
    assert best(verdicts) is verdicts[1]
    assert best(verdicts[:1]) is None


def test_a_configuration_tells_the_cache_of_each_token() -> None:
    growth = growth_of_config(LLAMA)
    assert growth.own_context == 8192
    # 2 (key, value) * 32 layers * 8 heads * 128 wide * 2 bytes
    assert growth.estimate(8192, 0).cache_bytes == 8192 * 131_072


def test_an_encoder_keeps_no_cache() -> None:
    growth = growth_of_config({**LLAMA, "architectures": ["BertModel"]})
    assert growth.estimate(512, 0).cache_bytes == 0


def test_the_language_part_of_a_vision_model_counts() -> None:
    config = {"architectures": ["XForConditionalGeneration"], "text_config": LLAMA, "vision_config": {"hidden_size": 1}}
    assert growth_of_config(config).estimate(100, 0).cache_bytes == 100 * 131_072


@pytest.mark.parametrize("config", [{}, {"hidden_size": "x"}, {"architectures": 3, "num_hidden_layers": -1}])
def test_a_configuration_that_says_nothing_counts_as_nothing(config: dict[str, object]) -> None:
    growth = growth_of_config(config)
    assert growth.own_context is None
    assert growth.estimate(512, 7).weights_bytes == 7
