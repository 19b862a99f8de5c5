"""Real models of three kinds, each as a repository of a hub on loopback, added side by side into one catalog."""

import asyncio
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Engine
from cartdeck.adding.add import AddRequest, add_job
from cartdeck.catalog.catalog_file import load_catalog
from cartdeck.settings import parse_settings

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(600),  # a model may have to be fetched and converted first, once for a machine
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("llama_cpp", "torch", "transformers")), reason="needs both engines"
    ),
]

LIMIT_S = 300.0
PROJECTOR = Path(__file__).parents[1] / "data" / "gguf" / "shapes-mmproj-576.gguf"


def files_of(folder: Path) -> dict[str, bytes]:
    """A folder as a repository has it."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "done"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_language_model_an_embedder_and_one_of_speech_are_added_side_by_side(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_model: Path, minilm: Path, whisper_tiny: Path
) -> None:
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING", "CARTDECK_MODELS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_TOKEN_PATH", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    catalog = tmp_path / "catalog.toml"
    hub.add({real_model.name: real_model.read_bytes(), PROJECTOR.name: PROJECTOR.read_bytes()}, name="owner/language")
    hub.add(files_of(minilm), name="owner/vectors")
    hub.add(files_of(whisper_tiny), name="owner/speech")
    results = asyncio.run(add_all(catalog, hub.url, tmp_path / "models"))
    language, vectors, speech = (next(step for step in one["steps"] if step["step"] == "smoke-test") for one in results)
    assert "Hello" in language["answer"]
    assert language["tokens_per_s"] > 0
    assert "red" in language["of_a_picture"]
    assert vectors["dimensions"] == 384
    assert speech["transcript"]
    entries = load_catalog(catalog).entries
    assert {name: (entry.backend, list(entry.capabilities)) for name, entry in entries.items()} == {
        "language": ("gguf", ["chat", "completion", "vision"]),
        "vectors": ("torch", ["embeddings"]),
        "speech": ("torch", ["speech"]),
    }
    assert (entries["language"].projector or "").endswith(f":{PROJECTOR.name}")
    assert all(entry.origin is not None and entry.origin.files for entry in entries.values())


async def add_all(catalog: Path, endpoint: str, folder: Path) -> list[dict[str, Any]]:
    settings = parse_settings({"models": {"endpoint": endpoint, "folder": str(folder)}}, origin="test")

    async def add(engine: Engine, name: str) -> dict[str, Any]:
        async with add_job(engine, catalog, AddRequest(repository=f"owner/{name}")) as job:
            return await job.collect()

    async with asyncio.timeout(LIMIT_S), Engine(settings) as engine:
        return await asyncio.gather(*(add(engine, name) for name in ("language", "vectors", "speech")))
