"""Which of a repository's candidates is taken, and the reason told for each of the others."""

from dataclasses import replace
from typing import Any

import pytest

from cartdeck.adding.candidate import Answer, Candidate, candidates_of
from cartdeck.adding.choice import choose
from cartdeck_protocol.errors import CartdeckError, Code

LLAMA_CPP = Answer(is_known=True, engine="llama-cpp-python 0.3")
TORCH = Answer(is_known=True, made_for=("chat", "generate-text"), engine="torch")
BOTH = {("gguf", "llama"): LLAMA_CPP, ("torch", "llama"): TORCH}


def candidate(path: str, **changes: Any) -> Candidate:
    is_gguf = path.endswith(".gguf")
    values: dict[str, Any] = {
        "path": path,
        "format": "gguf" if is_gguf else "safetensors",
        "files": (path,),
        "quantization": path.split(".")[1] if is_gguf else None,
        "architecture": "llama",
        "size_bytes": 100_000_000,
        "missing_bytes": 100_000_000,
        "memory_bytes": 300_000_000,
        "least_bytes": changes.get("memory_bytes", 300_000_000),
        "fits": True,
        "fits_disk": True,
        "sentence": "It fits.",
    }
    return Candidate(**{**values, **changes})


SMALL, MIDDLE = candidate("m.Q2_K.gguf"), candidate("m.Q4_K_M.gguf")
LARGE = candidate("m.Q8_0.gguf", fits=False, sentence="It does not fit: its weights alone take 9.0 GB.")
WHOLE = candidate("model.safetensors", memory_bytes=900_000_000)
ALL = [SMALL, MIDDLE, LARGE, WHOLE]


def refusal(*candidates: Candidate, **how: Any) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        choose(candidates, how.pop("answers", BOTH), **{"advised": None, **how})
    return caught.value


def test_the_advised_quantization_is_taken_and_each_other_one_has_its_reason() -> None:
    plan = choose(ALL, BOTH, advised="m.Q4_K_M.gguf")
    assert plan.taken is MIDDLE
    assert plan.why.startswith("Q4_K_M in a gguf file for the backend gguf.")
    why = {one.candidate.path: one.why for one in plan.verdicts}
    assert "Q4_K_M comes before it" in why["m.Q2_K.gguf"]
    assert why["m.Q8_0.gguf"] == LARGE.sentence
    assert "300.0 MB of memory against 900.0 MB" in why["model.safetensors"]
    assert [one.is_taken for one in plan.verdicts] == [True, False, False, False]


def test_the_other_format_is_taken_where_the_first_cannot_be_run() -> None:
    unknown = {**BOTH, ("gguf", "llama"): Answer(is_known=False, engine="llama-cpp-python 0.3")}
    plan = choose(ALL, unknown, advised="m.Q4_K_M.gguf")
    assert plan.taken is WHOLE
    assert {one.code for one in plan.verdicts[1:]} == {Code.UNSUPPORTED_ARCHITECTURE}
    assert "llama-cpp-python 0.3 does not know the architecture 'llama'" in plan.verdicts[1].why

    missing = {**BOTH, ("gguf", "llama"): Answer(is_known=False, why_not="gguf lacks llama_cpp (pip install it)")}
    assert choose(ALL, missing, advised="m.Q4_K_M.gguf").taken is WHOLE
    assert choose(ALL, BOTH, advised="m.Q4_K_M.gguf", backend="torch").taken is WHOLE


def test_what_lies_on_the_gpu_whole_comes_first_and_need_not_fit_beside_it() -> None:
    def with_gpu(free_bytes: int) -> dict[tuple[str, str], Answer]:
        return {**BOTH, ("gguf", "llama"): Answer(is_known=True, engine="E", device_bytes=free_bytes)}

    small, advised = candidate("m.Q3_K_M.gguf", memory_bytes=5_000), candidate("m.Q4_K_M.gguf", memory_bytes=9_000)
    large = candidate("m.Q8_0.gguf", memory_bytes=20_000, fits=False, sentence="It does not fit.")
    found = [small, advised, large]
    roomy = choose(found, with_gpu(11_000), advised="m.Q4_K_M.gguf")
    assert roomy.taken is advised
    assert "It lies on the GPU whole" in roomy.why
    tight = choose(found, with_gpu(8_000), advised="m.Q4_K_M.gguf")
    assert tight.taken is small
    assert "with layers beside the GPU" in next(one.why for one in tight.verdicts if one.candidate is advised)
    tiny = choose(found, with_gpu(1_000), advised="m.Q4_K_M.gguf")
    assert tiny.taken is advised
    assert "Some layers stay beside the GPU" in tiny.why
    alone = choose([large], with_gpu(50_000), advised=None)
    assert alone.taken is large
    assert "It does not fit" not in alone.why
    full = candidate("m.Q8_0.gguf", memory_bytes=20_000, fits=False, fits_disk=False)
    assert refusal(full, answers=with_gpu(50_000)).code is Code.INSUFFICIENT_STORAGE


def test_a_projector_counts_among_what_lies_on_the_gpu() -> None:
    def with_gpu(free_bytes: int) -> dict[tuple[str, str], Answer]:
        return {**BOTH, ("gguf", "llama"): Answer(is_known=True, engine="E", device_bytes=free_bytes)}

    eyes: dict[str, Any] = {"projector": "mmproj.gguf", "projector_bytes": 5_000}
    small, advised = candidate("m.Q3_K_M.gguf", memory_bytes=3_000), candidate("m.Q4_K_M.gguf", memory_bytes=9_000)
    found = [replace(small, **eyes), replace(advised, **eyes)]
    assert choose(found, with_gpu(16_000), advised=advised.path).taken.path == advised.path
    tight = choose(found, with_gpu(12_000), advised=advised.path)
    assert tight.taken is found[0]
    assert "of 10.8 kB it takes 8.0 kB" in tight.why
    large = candidate("m.Q8_0.gguf", memory_bytes=9_000, fits=False, sentence="It does not fit.", **eyes)
    assert choose([large], with_gpu(16_000), advised=None).taken is large
    blind = choose([large], with_gpu(12_000), advised=None)  # no room in the memory beside the GPU either
    assert (blind.taken.projector, blind.taken.projector_bytes) == (None, 0)
    assert "mmproj.gguf (5.0 kB), has no room beside it on the GPU" in blind.why


def test_where_the_advised_one_is_refused_the_largest_that_fits_is_taken() -> None:
    strange = candidate("x.Q4_K_M.gguf", architecture="strange")
    answers = {**BOTH, ("gguf", "strange"): Answer(is_known=False, engine="llama-cpp-python")}
    large = candidate("m.Q6_K.gguf", size_bytes=200_000_000)
    assert choose([SMALL, strange, large], answers, advised="x.Q4_K_M.gguf").taken is large


def test_an_architecture_that_cannot_be_read_before_is_no_reason_against_a_file() -> None:
    unread = candidate("m.Q4_0.gguf", architecture=None)
    assert choose([unread], {("gguf", ""): Answer(is_known=False)}, advised=None).taken is unread


def test_two_models_of_one_kind_are_not_chosen_between() -> None:
    other = candidate("other.Q4_K_M.gguf")
    error = refusal(MIDDLE, other, advised="m.Q4_K_M.gguf")
    assert (error.code, error.argument) == (Code.BAD_ARGUMENT, "file")
    assert error.details["candidates"] == ["m.Q4_K_M.gguf", "other.Q4_K_M.gguf"]
    assert choose([MIDDLE, other], BOTH, advised="m.Q4_K_M.gguf", is_named=True).taken is MIDDLE


@pytest.mark.parametrize(
    ("changes", "answers", "code", "words"),
    [
        ({"fits": False, "sentence": "It does not fit."}, BOTH, Code.INSUFFICIENT_MEMORY, "It does not fit."),
        ({"fits": False, "fits_disk": False}, BOTH, Code.INSUFFICIENT_STORAGE, "m.Q4_0.gguf"),
        (
            {},
            {("gguf", "llama"): Answer(is_known=False, engine="E")},
            Code.UNSUPPORTED_ARCHITECTURE,
            "E does not know the architecture 'llama'",
        ),
        (
            {},
            {("gguf", "llama"): Answer(is_known=False, why_not="gguf lacks llama_cpp (pip install x)")},
            Code.CARTRIDGE_UNAVAILABLE,
            "pip install x",
        ),
        (
            {},
            {("gguf", "llama"): Answer(is_known=True, made_for=("describe-image",))},
            Code.UNSUPPORTED,
            "are for describe-image, which a catalog's model is not asked for",
        ),
    ],
)
def test_where_nothing_can_be_run_the_reasons_are_told(changes: Any, answers: Any, code: Code, words: str) -> None:
    error = refusal(candidate("m.Q4_0.gguf", **changes), answers=answers)
    assert error.code is code
    assert words in error.message
    (told,) = error.details["candidates"]
    assert (told["path"], told["is_taken"]) == ("m.Q4_0.gguf", False)


def test_what_can_be_mended_is_told_before_what_cannot() -> None:
    strange = candidate("s.Q4_0.gguf", architecture="strange")
    answers = {**BOTH, ("gguf", "strange"): Answer(is_known=False, engine="E")}
    error = refusal(LARGE, strange, answers=answers)
    assert error.code is Code.INSUFFICIENT_MEMORY
    assert error.message.startswith("None of the 2 candidates can be run here.")
    assert LARGE.sentence in error.message
    assert "does not know the architecture 'strange'" in error.message


def test_a_projector_comes_along_where_it_has_room() -> None:
    plan = choose([candidate("m.Q4_0.gguf", projector="mmproj.gguf", projector_bytes=5_000_000)], BOTH, advised=None)
    assert "With its projector for images, mmproj.gguf (5.0 MB)." in plan.why
    assert plan.verdicts[0].to_plain()["projector"] == "mmproj.gguf"
    seeing = {
        "path": "m.gguf", "files": ["m.gguf"], "quantization": "Q4_0", "architecture": "llama", "size_bytes": 50,
        "missing_bytes": 50, "memory_bytes": 900, "fits": True, "fits_disk": True, "sentence": "It fits.",
        "projector": {"path": "mmproj.gguf", "size_bytes": 200},
    }  # fmt: skip
    (room,) = candidates_of({"candidates": [seeing], "memory_free_bytes": 1100})
    (tight,) = candidates_of({"candidates": [seeing], "memory_free_bytes": 1099})
    assert (room.projector, room.projector_bytes) == ("mmproj.gguf", 200)
    assert (tight.projector, tight.projector_bytes) == (None, 0)
    assert "mmproj.gguf (200 B), has no room beside it" in tight.sentence


def test_candidates_are_read_from_what_fit_model_says() -> None:
    def record(path: str, files: list[str]) -> dict[str, Any]:
        return {
            "path": path, "files": files, "quantization": None, "architecture": "bert", "size_bytes": 5,
            "missing_bytes": 5, "memory_bytes": 9, "fits": None, "fits_disk": True, "sentence": "S.",
            "projector": {"path": "mmproj.gguf", "size_bytes": 1},
        }  # fmt: skip

    listed = [
        record("m-00001-of-00002.gguf", ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]),
        record(".", ["config.json", "model.safetensors"]),
        record("readme.txt", ["readme.txt"]),
    ]
    first, second = candidates_of({"candidates": listed})
    parts = {"weights_bytes": 50, "cache_bytes": 800, "compute_bytes": 20}
    (capped,) = candidates_of({"candidates": [listed[0] | {"context_size": 32_768, "memory": parts}]})
    assert (first.least_bytes, capped.least_bytes) == (9, 50 + 100 + 20)
    assert (first.path, first.backend, first.projector) == ("m-00001-of-00002.gguf", "gguf", "mmproj.gguf")
    assert (second.path, second.backend, second.fits) == ("model.safetensors", "torch", None)
