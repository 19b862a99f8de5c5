"""Which files of a repository a spec asks for: by name, glob, quantization, or nothing at all."""

from dataclasses import dataclass

import pytest

from cartdeck_models.hub.gguf_name import quantization_of, stem_of
from cartdeck_models.hub.selection import Choice, choose_files, gguf_candidates
from cartdeck_models.spec import HubSpec, parse_spec
from cartdeck_protocol.errors import CartdeckError, Code


@dataclass(frozen=True)
class Listed:
    path: str
    size_bytes: int = 1_000_000


SPLIT = ["Q2_K/m-00001-of-00002.gguf", "Q2_K/m-00002-of-00002.gguf"]
QUANTIZED = ["README.md", "m.Q2_K.gguf", "m.Q4_K_M.gguf", "m.Q8_0.gguf", "m-f16.gguf"]
TORCH = [
    "README.md",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "preprocessor_config.json",
    "pytorch_model.bin",
    "tokenizer.json",
    "tokenizer.model",
    "onnx/model.onnx",
]


def chosen(names: list[str], text: str = "hf:o/m", **how: object) -> Choice[Listed]:
    spec = parse_spec(text)
    assert isinstance(spec, HubSpec)
    return choose_files([Listed(name) for name in names], spec, **how)  # type: ignore[arg-type]


def paths(choice: Choice[Listed]) -> list[str]:
    return [file.path for file in choice.files]


def refused(names: list[str], text: str = "hf:o/m", **how: object) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        chosen(names, text, **how)
    return caught.value


@pytest.mark.parametrize(
    "said", [SPLIT[0], SPLIT[1], "m-00001-of-00002.gguf", "Q2_K/*.gguf", "Q2_K/", "*Q2_K*", "Q2_K"]
)
def test_both_parts_of_a_split_model_come_by_full_path_last_part_glob_folder_or_quantization(said: str) -> None:
    choice = chosen([*SPLIT, "Q4_K_M/m-00001-of-00001.gguf", "README.md"], f"hf:o/m:{said}")
    assert paths(choice) == SPLIT
    assert choice.main == Listed(SPLIT[0])


def test_an_ambiguous_glob_lists_what_it_fits_with_sizes() -> None:
    error = refused([*SPLIT, *QUANTIZED], "hf:o/m:*.gguf")
    assert error.code is Code.BAD_ARGUMENT
    assert "Q2_K/m-00001-of-00002.gguf (2.0 MB in 2 parts)" in error.message
    assert {"path": "m.Q8_0.gguf", "size_bytes": 1_000_000, "files": 1} in error.details["candidates"]


def test_a_split_model_with_a_part_that_is_not_listed_is_refused_with_its_name() -> None:
    error = refused([SPLIT[1]], f"hf:o/m:{SPLIT[1]}")
    assert error.code is Code.MISSING_SHARD
    assert error.details["missing"] == [SPLIT[0]]


def test_nothing_said_takes_q4_k_m() -> None:
    assert paths(chosen(QUANTIZED)) == ["m.Q4_K_M.gguf"]


def test_nothing_said_takes_what_the_fit_advises() -> None:
    assert paths(chosen(QUANTIZED, quantization="Q2_K")) == ["m.Q2_K.gguf"]


def test_without_q4_k_m_the_one_nearest_to_it_is_taken() -> None:
    assert paths(chosen(["m.Q2_K.gguf", "m.Q5_K_M.gguf", "m.Q8_0.gguf", "m.F32.gguf"])) == ["m.Q5_K_M.gguf"]


def test_a_single_model_needs_no_quantization_in_its_name() -> None:
    assert paths(chosen(["model.gguf", "README.md"])) == ["model.gguf"]


def test_two_models_of_the_default_quantization_are_ambiguous() -> None:
    error = refused(["draft.Q4_K_M.gguf", "m.Q4_K_M.gguf"])
    assert error.code is Code.BAD_ARGUMENT
    assert "2 GGUF models of Q4_K_M" in error.message


@pytest.mark.parametrize(
    ("path", "quantization"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "Q4_K_M"),
        ("Llama-3-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("BF16/model-00001-of-00004.gguf", "BF16"),
        ("mmproj-model-fp16.gguf", "F16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("x-IQ3_XXS.gguf", "IQ3_XXS"),
        ("Qwen3-4B.gguf", None),
        ("model.gguf", None),
    ],
)
def test_a_name_tells_its_quantization(path: str, quantization: str | None) -> None:
    assert quantization_of(path) == quantization


def test_the_quantizations_of_one_model_share_a_stem() -> None:
    names = ["a/Q4_K_M/m-Q4_K_M-00001-of-00002.gguf", "a/m.q8_0.gguf", "a/m-F16.gguf"]
    assert len({stem_of(name) for name in names}) == 1
    assert stem_of("a/n-F16.gguf") not in {stem_of(name) for name in names}


def test_a_projector_comes_only_when_it_is_asked_for() -> None:
    names = ["m.Q4_K_M.gguf", "mmproj-m-F32.gguf", "mmproj-m-f16.gguf"]
    assert paths(chosen(names)) == ["m.Q4_K_M.gguf"]
    choice = chosen(names, wants_projector=True)
    assert paths(choice) == ["m.Q4_K_M.gguf", "mmproj-m-f16.gguf"]
    assert choice.main == Listed("m.Q4_K_M.gguf")
    assert choice.projector == Listed("mmproj-m-f16.gguf")
    both = chosen(names, '{"repo_id": "o/m", "filename": "Q4_K_M", "include": ["mmproj*f16*"]}')
    assert (paths(both), both.projector) == (paths(choice), choice.projector)
    assert paths(chosen(names, "hf:o/m:mmproj-m-F32.gguf")) == ["mmproj-m-F32.gguf"]


def test_a_projector_that_is_not_there_is_named() -> None:
    error = refused(["m.Q4_K_M.gguf"], wants_projector=True)
    assert error.code is Code.FILE_NOT_FOUND
    assert "projector" in error.message


def test_safetensors_come_with_configuration_tokenizer_processor_index_and_all_parts() -> None:
    choice = chosen(TORCH)
    assert sorted(paths(choice)) == sorted(set(TORCH) - {"README.md", "pytorch_model.bin", "onnx/model.onnx"})
    assert (choice.main, choice.folder) == (None, "")


def test_of_several_sets_of_safetensors_the_one_called_model_is_taken() -> None:
    names = ["config.json", "consolidated.safetensors", "model.fp16.safetensors", "model.safetensors", "2_Dense/a.txt"]
    assert paths(chosen(names)) == ["model.safetensors", "config.json"]


def test_the_parts_of_a_sentence_transformer_come_too() -> None:
    names = ["modules.json", "config.json", "model.safetensors", "1_Pooling/config.json", "2_Dense/model.safetensors"]
    assert sorted(paths(chosen(names))) == sorted(names)


def test_safetensors_that_nothing_tells_apart_are_listed() -> None:
    error = refused(["a/x.safetensors", "b/y.safetensors"])
    assert error.code is Code.BAD_ARGUMENT
    assert [one["path"] for one in error.details["candidates"]] == ["a/x.safetensors", "b/y.safetensors"]


@pytest.mark.parametrize("said", ["hf:o/m:pytorch_model.bin", "hf:o/m:*.bin", '{"repo_id":"o/m","include":"*.bin"}'])
def test_a_pickle_is_never_chosen(said: str) -> None:
    assert refused(TORCH, said).code is Code.UNSAFE_WEIGHTS


def test_a_repository_of_pickles_says_what_it_holds() -> None:
    error = refused(["pytorch_model.bin", "config.json"])
    assert error.code is Code.UNSAFE_WEIGHTS
    assert "1 .bin (1.0 MB)" in error.message


def test_a_repository_without_a_model_says_what_it_holds() -> None:
    error = refused(["README.md", "data/a.parquet", "data/b.parquet"])
    assert error.code is Code.FILE_NOT_FOUND
    assert "2 .parquet (2.0 MB)" in error.message


def test_a_name_that_is_not_there_brings_near_ones() -> None:
    error = refused(QUANTIZED, "hf:o/m:m.Q4_K.gguf")
    assert error.code is Code.FILE_NOT_FOUND
    assert "m.Q4_K_M.gguf" in error.message


def test_a_quantization_that_is_not_there_brings_those_that_are() -> None:
    error = refused(QUANTIZED, "hf:o/m:Q6_K")
    assert error.details["near"] == ["F16", "Q2_K", "Q4_K_M", "Q8_0"]


def test_include_takes_all_that_it_fits_and_exclude_leaves_out() -> None:
    choice = chosen(QUANTIZED, '{"repo_id": "o/m", "include": ["*.gguf"], "exclude": ["*f16*", "m.Q8_0.gguf"]}')
    assert paths(choice) == ["m.Q2_K.gguf", "m.Q4_K_M.gguf"]
    assert choice.main is None


def test_exclude_alone_changes_what_nothing_said_takes() -> None:
    assert paths(chosen(QUANTIZED, '{"repo_id": "o/m", "exclude": "*Q4_K_M*"}')) == ["m.Q8_0.gguf"]


def test_an_include_that_fits_one_split_model_stands_for_it() -> None:
    choice = chosen([*SPLIT, "README.md"], '{"repo_id": "o/m", "include": ["*.gguf", "README.md"]}')
    assert choice.main == Listed(SPLIT[0])
    assert sorted(paths(choice)) == sorted([*SPLIT, "README.md"])


def test_candidates_are_all_models_that_a_spec_may_mean() -> None:
    spec = parse_spec("hf:o/m")
    assert isinstance(spec, HubSpec)
    files = [Listed(name) for name in [*SPLIT, *QUANTIZED, "mmproj-f16.gguf", "m.imatrix.gguf"]]
    assert [group.quantization for group in gguf_candidates(files, spec)] == ["Q2_K", "F16", "Q2_K", "Q4_K_M", "Q8_0"]
