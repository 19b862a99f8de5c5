"""Judging the files of a repository from their headers alone, read in ranges."""

import json
import struct
from dataclasses import dataclass, field

import pytest

from cartdeck_models.fit import Room
from cartdeck_models.hub.advice import Listing, advise, judge_choice
from cartdeck_models.hub.remote_header import WINDOW_BYTES, RemoteFile
from cartdeck_models.hub.selection import choose_files
from cartdeck_models.spec import HubSpec, parse_spec
from cartdeck_protocol.errors import CartdeckError, Code

GB = 1_000_000_000
PLENTY = Room(100 * GB, 1000 * GB)


@dataclass(frozen=True)
class Listed:
    path: str
    size_bytes: int


@dataclass
class Fake:
    """A repository whose files have a size, and content at their beginning; `asked` is what was read."""

    sizes: dict[str, int]
    content: dict[str, bytes]
    present: frozenset[str] = frozenset()
    asked: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])

    def repository(self) -> Listing[Listed]:
        files = [Listed(path, size) for path, size in self.sizes.items()]
        return Listing(files, self.fetch, lambda file: file.path in self.present)

    def fetch(self, file: Listed, first: int, end: int) -> bytes:
        assert end <= file.size_bytes
        self.asked.append((file.path, first, end))
        return self.content[file.path][first:end].ljust(end - first, b"\0")


def gguf_header(tokens: int = 300, **changes: int) -> bytes:
    """The header of a llama with `tokens` in its vocabulary; 32 layers of 8 cache heads, 128 wide, by default."""
    numbers = {
        "llama.block_count": 32,
        "llama.context_length": 8192,
        "llama.embedding_length": 4096,
        "llama.feed_forward_length": 14336,
        "llama.attention.head_count": 32,
        "llama.attention.head_count_kv": 8,
        **{f"llama.{name}": value for name, value in changes.items()},
    }

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    pairs = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for name, value in numbers.items():
        pairs += text(name) + struct.pack("<II", 4, value)
    vocabulary = b"".join(text(f"token{number}") for number in range(tokens))
    pairs += text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, tokens) + vocabulary
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(numbers) + 2) + pairs


def hub(text: str = "hf:o/m") -> HubSpec:
    spec = parse_spec(text)
    assert isinstance(spec, HubSpec)
    return spec


def quantizations(sizes: dict[str, int]) -> Fake:
    return Fake(
        {f"m.{name}.gguf": size for name, size in sizes.items()}, {f"m.{name}.gguf": gguf_header() for name in sizes}
    )


def test_every_quantization_is_judged_from_one_header_that_is_not_read_further_than_it_goes() -> None:
    fake = quantizations({"Q8_0": 8 * GB, "Q4_K_M": 5 * GB, "Q2_K": 3 * GB})
    advice = advise(fake.repository(), hub(), PLENTY)
    assert [verdict.candidate.quantization for verdict in advice.verdicts] == ["Q2_K", "Q4_K_M", "Q8_0"]
    # 2 (key, value) * 32 layers * 8 heads * 128 wide * 2 bytes for each token
    assert {verdict.estimate.cache_bytes for verdict in advice.verdicts if verdict.estimate} == {8192 * 131_072}
    assert [end for _, _, end in fake.asked] == [WINDOW_BYTES]
    assert advice.to_plain()["advised"] == "m.Q4_K_M.gguf"


def test_the_advice_is_smaller_where_the_default_does_not_fit() -> None:
    fake = quantizations({"Q8_0": 8 * GB, "Q4_K_M": 5 * GB, "Q3_K_M": 4 * GB, "Q2_K": 3 * GB})
    assert advise(fake.repository(), hub(), Room(int(5.2 * GB), 100 * GB)).to_plain()["advised"] == "m.Q3_K_M.gguf"
    assert advise(fake.repository(), hub(), Room(2 * GB, 100 * GB)).advised is None


def test_a_long_header_is_read_in_growing_ranges_and_no_byte_twice() -> None:
    header = gguf_header(tokens=400_000)
    fake = Fake({"m.gguf": 9 * GB}, {"m.gguf": header})
    advise(fake.repository(), hub(), PLENTY)
    reads = [(first, end) for _, first, end in fake.asked]
    assert len(reads) > 2
    assert [first for first, _ in reads] == [0, *(end for _, end in reads[:-1])]
    assert reads[-1][1] < 2 * len(header) + WINDOW_BYTES


def test_a_split_model_counts_all_its_parts_and_reads_the_first() -> None:
    names = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    fake = Fake({names[0]: 3 * GB, names[1]: 2 * GB}, {names[0]: gguf_header()}, frozenset(names[:1]))
    verdict = advise(fake.repository(), hub(), PLENTY).verdicts[0]
    assert (verdict.candidate.size_bytes, verdict.candidate.missing_bytes) == (5 * GB, 2 * GB)
    assert verdict.candidate.files == tuple(names)
    assert {path for path, _, _ in fake.asked} == {names[0]}


def test_the_projector_beside_a_model_is_named() -> None:
    fake = Fake({"m.Q4_0.gguf": GB, "mmproj-f16.gguf": 7}, {"m.Q4_0.gguf": gguf_header()})
    plain = advise(fake.repository(), hub(), PLENTY).to_plain()["candidates"][0]
    assert plain["projector"] == {"path": "mmproj-f16.gguf", "size_bytes": 7}


def test_a_file_that_is_no_gguf_is_judged_by_its_size() -> None:
    fake = Fake({"m.Q4_0.gguf": GB}, {"m.Q4_0.gguf": b"version https://git-lfs"})
    verdict = advise(fake.repository(), hub(), PLENTY).verdicts[0]
    assert verdict.estimate is None
    assert verdict.fits is True


def test_safetensors_are_judged_from_their_configuration() -> None:
    config = json.dumps(
        {
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "hidden_size": 64,
            "max_position_embeddings": 1024,
            "dtype": "float32",
        }
    ).encode()
    sizes = {"config.json": len(config), "model.safetensors": 2 * GB, "tokenizer.json": 10}
    verdict = advise(Fake(sizes, {"config.json": config}).repository(), hub(), PLENTY).verdicts[0]
    assert verdict.estimate is not None
    assert verdict.estimate.weights_bytes == 2 * GB
    assert verdict.estimate.cache_bytes == 1024 * 2 * 2 * 4 * 16 * 4
    assert verdict.candidate.path == "."


def test_the_choice_that_was_made_is_judged_alone() -> None:
    fake = quantizations({"Q8_0": 8 * GB, "Q4_K_M": 5 * GB})
    repository = fake.repository()
    choice = choose_files(repository.files, hub("hf:o/m:Q8_0"))
    assert judge_choice(repository, choice, PLENTY).candidate.path == "m.Q8_0.gguf"
    assert {path for path, _, _ in fake.asked} == {"m.Q8_0.gguf"}


def test_a_repository_without_a_model_is_refused_as_the_choice_refuses_it() -> None:
    with pytest.raises(CartdeckError) as caught:
        advise(Fake({"a.bin": 5}, {}).repository(), hub(), PLENTY)
    assert caught.value.code is Code.UNSAFE_WEIGHTS


def test_a_header_without_an_end_is_given_up() -> None:
    remote = RemoteFile(lambda first, end: bytes(end - first), "m.gguf", 10 * GB)
    with pytest.raises(CartdeckError) as caught:
        remote.read(100 * 1024 * 1024)
    assert caught.value.code is Code.BAD_MODEL_FILE


def test_a_failing_source_is_not_hidden() -> None:
    def fail(_file: Listed, _first: int, _end: int) -> bytes:
        raise CartdeckError(Code.ENDPOINT_UNREACHABLE, "no network")

    repository = Listing([Listed("m.Q4_0.gguf", GB)], fail, lambda _: False)
    with pytest.raises(CartdeckError, match="no network"):
        advise(repository, hub(), PLENTY)
