"""Each cap of a shipped cartridge answers its sample, on a real model where a package has one, else on a small one.

CARTDECK_CONFORMANCE=full runs all thirty checks in their long form (`make conformance`); else those that look at a cap.
"""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck_conformance import Durations, Options, check_cartridge

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]

DATA = Path(__file__).parents[1] / "data"
RED = (DATA / "gguf" / "shapes" / "red_circle.png").read_bytes()
FOX = (DATA / "audio" / "quick_brown_fox.flac").read_bytes()
IS_FULL = os.environ.get("CARTDECK_CONFORMANCE") == "full"
OF_CAPS = {1, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19}
Samples = dict[str, dict[str, Any]]


def answers_all(name: str, library: str, samples: Callable[[], Samples]) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    command = [sys.executable, "-P", "-m", "cartdeck_sdk", f"cartdeck_{name}"]
    options = Options(samples=samples(), durations=Durations(sample_s=180.0))
    report = check_cartridge(command, fast=not IS_FULL, only=() if IS_FULL else OF_CAPS, options=options)
    print(report)  # shown by -s, and by `make conformance`
    assert report.passed, str(report)
    assert not [line for line in report.not_exercised if "samples:" in line], report.not_exercised


def test_every_cap_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"a small model"
    repository = tmp_path / "hub" / "models--owner--name"
    blob = repository / "blobs" / hashlib.sha256(content).hexdigest()
    place = repository / "snapshots" / ("a" * 40) / "weights.bin"
    for one in (blob, place):
        one.parent.mkdir(parents=True)
    blob.write_bytes(content)
    place.symlink_to(os.path.relpath(blob, place.parent))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("CARTDECK_MODELS_DIR", str(tmp_path / "own"))
    kept = {"model": f"hf:owner/name@{'a' * 40}:weights.bin"}
    answers_all(
        "models", "huggingface_hub",
        lambda: {
            "download-model": {"model": "package:cartdeck_models/manifest.json"},
            "fit-model": {"model": str(DATA / "models" / "tiny-blip")},
            "verify-model": kept,
            "delete-model": {**kept, "dry-run": True},
            "list-models": {},
            "models-settings": {},
        },
    )  # fmt: skip


def test_every_cap_of_gguf(real_model: Path, minilm_gguf: Path) -> None:
    one, vectors = {"model": str(real_model)}, {"model": str(minilm_gguf)}
    brief = {"max-tokens": 4, "temperature": 0, **one}
    projector = {"projector": str(DATA / "gguf" / "shapes-mmproj-576.gguf")}
    answers_all(
        "gguf", "llama_cpp",
        lambda: {
            "architecture-info": {"architecture": "llama"},
            "model-info": one,
            "generate-text": {"prompt": "The capital of France is", **brief},
            "chat": {"messages": {"messages": [{"role": "user", "content": "Say hello."}]}, **brief},
            "vocabulary": one,
            "tokenize": {"text": "hello", **one},
            "detokenize": {"ids": [1, 2], **one},
            "embed-text": {"texts": ["a man is eating", "the girl reads"], **vectors},
            "embedding-dimensions": vectors,
            "describe-image": {"image": RED, **projector, **brief},
        },
    )  # fmt: skip


def test_every_cap_of_torch(minilm: Path, whisper_tiny: Path, request: pytest.FixtureRequest) -> None:
    def samples() -> Samples:
        words = {"model": str(request.getfixturevalue("make_causal")("llama")), "max-tokens": 4, "temperature": 0}
        vectors = {"model": str(minilm)}
        return {
            "architecture-info": {"architecture": "llama"},
            "device-info": {},
            "model-info": vectors,
            "embed-text": {"texts": ["a man is eating", "the girl reads"], **vectors},
            "embedding-dimensions": vectors,
            "embed-image": {"images": [RED], "model": str(DATA / "models" / "tiny-clip")},
            "describe-image": {"image": RED, "model": str(DATA / "models" / "tiny-blip")},
            "transcribe-speech": {"audio": FOX, "model": str(whisper_tiny)},
            "generate-text": {"prompt": "hello", **words},
            "chat": {"messages": {"messages": [{"role": "user", "content": "Say hello."}]}, **words},
        }

    answers_all("torch", "torch", samples)
