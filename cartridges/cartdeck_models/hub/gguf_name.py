"""Owns what the names of GGUF files say: the quantization, the parts of a split model, projectors among them.

It does not know what is in the files, nor where they are. The names follow llama.cpp's own tools (`llama-quantize`,
`gguf-split`) and what people make of them.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

DEFAULT_QUANTIZATION: Final = "Q4_K_M"
PREFERRED: Final = (
    DEFAULT_QUANTIZATION, "Q4_K_S", "Q4_K_L", "Q4_K_XL", "Q4_K", "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_0", "MXFP4",
    "MXFP4_MOE", "Q5_K_M", "Q5_K_S", "Q5_K_L", "Q5_K_XL", "Q5_1", "Q5_0", "Q6_K", "Q6_K_L", "Q6_K_XL", "Q8_0",
    "Q8_K_XL", "Q3_K_L", "Q3_K_M", "Q3_K_XL", "IQ3_M", "Q3_K_S", "IQ3_S", "IQ3_XS", "IQ3_XXS", "BF16", "F16", "F32",
    "Q2_K_L", "Q2_K_XL", "Q2_K", "Q2_K_S", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "TQ2_0", "IQ1_M", "TQ1_0", "IQ1_S",
)  # fmt: skip  # a list to scan, best first
"""Quantizations in the order in which they are taken when nobody names one."""
PREFERRED_PROJECTORS: Final = ("F16", "BF16", "F32", "Q8_0")

_QUANTIZATION = re.compile(
    r"(?:^|(?<=[-._/]))(?:UD-)?(?:I?Q[1-8](?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4(?:_MOE)?|BF16|FP?16|FP?32)(?=$|[-._/])",
    re.IGNORECASE,
)
_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.[^./]+)", re.DOTALL)
_OTHER_KINDS = re.compile(r"(?:^|[-._])(?:imatrix|lora)(?:$|[-._])", re.IGNORECASE)
_PROJECTOR = re.compile(r"(?:^|[-._])mmproj(?:$|[-._])", re.IGNORECASE)


class ListedFile(Protocol):
    """A file of a repository: its path there, with `/` between the parts, and its size."""

    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...


F = TypeVar("F", bound=ListedFile)


@dataclass(frozen=True, slots=True)
class WeightFiles(Generic[F]):
    """The files of one model's weights, the first part first; `missing` names parts that are not listed."""

    files: tuple[F, ...]
    quantization: str | None
    missing: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The path of the first part, which stands for all."""
        return self.files[0].path

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def is_gguf(path: str) -> bool:
    return path.lower().endswith(".gguf")


def is_projector(path: str) -> bool:
    """Whether the name is that of a vision projector, which is no model by itself."""
    return is_gguf(path) and _PROJECTOR.search(last_part(path)) is not None


def is_model(path: str) -> bool:
    """Whether the name is that of a GGUF model: no projector, importance matrix or adapter."""
    return is_gguf(path) and not is_projector(path) and _OTHER_KINDS.search(last_part(path)) is None


def quantization_of(path: str) -> str | None:
    """The quantization that the file's name tells, else its folder's: `Q4_K_M`, `UD-Q4_K_XL`, `F16`; None for none."""
    shard = _SHARD.fullmatch(path)
    stem = shard["stem"] if shard else re.sub(r"\.(gguf|safetensors)$", "", path, flags=re.IGNORECASE)
    found = list(_QUANTIZATION.finditer(last_part(stem))) or list(_QUANTIZATION.finditer(stem))
    if not found:
        return None
    return normal_quantization(found[-1][0])


def normal_quantization(text: str) -> str:
    """The one spelling of a quantization's name: `fp16` is `F16`, `q4_k_m` is `Q4_K_M`."""
    name = text.upper()
    return {"FP16": "F16", "FP32": "F32"}.get(name, name)


def is_quantization(text: str) -> bool:
    """Whether `text` is the name of a quantization and nothing else."""
    return _QUANTIZATION.fullmatch(text) is not None


def stem_of(path: str) -> str:
    """What the names of one model's quantizations share: the path without quantization, part number and suffix."""
    shard = _SHARD.fullmatch(path)
    stem = shard["stem"] if shard else path.rpartition(".")[0] or path
    return re.sub(r"[-._/]+", "-", _QUANTIZATION.sub("", stem)).strip("-").lower()


def preference(quantization: str | None) -> tuple[int, str]:
    """The place of `quantization` among those to take when nobody names one: the smallest first."""
    name = (quantization or "").removeprefix("UD-")
    return PREFERRED.index(name) if name in PREFERRED else len(PREFERRED), quantization or ""


def group_weights(files: Iterable[F]) -> list[WeightFiles[F]]:
    """The files by model, in the order of their paths: the parts of a split one together."""
    whole: dict[tuple[str, str, str], dict[str, F]] = {}
    groups: list[WeightFiles[F]] = []
    for file in sorted(files, key=lambda file: file.path):
        shard = _SHARD.fullmatch(file.path)
        if shard is None:
            groups.append(WeightFiles((file,), quantization_of(file.path)))
        else:
            whole.setdefault((shard["stem"], shard["count"], shard["suffix"]), {})[file.path] = file
    for (stem, count, suffix), parts in whole.items():
        names = [f"{stem}-{number:05}-of-{count}{suffix}" for number in range(1, min(int(count), len(parts) + 100) + 1)]
        present = tuple(parts[name] for name in sorted(parts))
        missing = tuple(name for name in names if name not in parts)
        groups.append(WeightFiles(present, quantization_of(present[0].path), missing))
    return sorted(groups, key=lambda group: group.path)


def best_projector(files: Sequence[F]) -> F | None:
    """The projector to take where several lie side by side; None where there is none."""
    found = [file for file in files if is_projector(file.path)]

    def place(file: F) -> tuple[int, str]:
        name = quantization_of(file.path) or ""
        known = PREFERRED_PROJECTORS
        return known.index(name) if name in known else len(known), file.path

    return min(found, key=place, default=None)


def last_part(path: str) -> str:
    return path.rpartition("/")[2]
