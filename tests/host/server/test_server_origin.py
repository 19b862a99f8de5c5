"""What a catalog's model was with its first download is written down, and holds for later ones: a hub, and a double."""

import hashlib
import importlib.util
import json
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub", reason="needs the extra models")

FAKE_HUB = Path(__file__).parents[2] / "data" / "hub" / "fake_hub.py"
DATA = b"weights " * 20_000


@pytest.fixture
def hub() -> Iterator[Any]:
    if "fake_hub" not in sys.modules:
        spec = importlib.util.spec_from_file_location("fake_hub", FAKE_HUB)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["fake_hub"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["fake_hub"])
    yield from sys.modules["fake_hub"].serving()


def ask(server: Any, model: str = "small", **more: Any) -> tuple[int, Any]:
    return server.post("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "x"}], **more})


def entry(path: Path, model: str = "small") -> dict[str, Any]:
    return tomllib.loads(path.read_text())["models"][model]


def test_the_origin_is_written_with_the_first_download_and_later_ones_must_be_the_same(
    hub: Any, start: Callable[..., Any], tmp_path: Path
) -> None:
    hub.add({"m.gguf": DATA})
    first = hub.repositories["owner/name"].branches["main"]
    path = tmp_path / "catalog.toml"
    path.write_text('# ours\n[models.small]\nsource = "hf:owner/name:m.gguf"\n[models.here]\nsource = "act:tokens=1"\n')
    environment = {
        "HF_ENDPOINT": hub.url,
        "CARTDECK_MODELS_DIR": str(tmp_path / "models"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HF_HUB_DISABLE_XET": "1",
    }
    with start("--catalog", str(path), "--grace", "0.2", **environment) as server:
        assert ask(server, "here")[0] == 200
        status, answer = ask(server)
        assert status == 200, answer
        assert path.read_text().startswith("# ours\n")
        assert "origin" not in entry(path, "here")
        origin = entry(path)["origin"]
        file = hub.file("m.gguf")
        assert origin == {"revision": first, "files": {"m.gguf": {"size_bytes": len(DATA), "sha256": file.sha256}}}
        hub.add({"m.gguf": DATA + b"!"})  # the branch goes on, and nobody here follows
        assert ask(server)[0] == 200
        specs = [one["instance"] for one in server.get("/stats")["sessions"] if "owner/name" in one["instance"]]
        assert [first in one for one in specs] == [True]
        _, log = server.end()
    assert not [one for one in map(json.loads, log.splitlines()) if one["event"] == "catalog"]

    shutil.rmtree(tmp_path / "models")
    changed = b"W" + DATA[1:]
    hub.repositories["owner/name"].commits[first]["m.gguf"] = sys.modules["fake_hub"].File(changed)
    with start("--catalog", str(path), "--grace", "0.2", **environment) as server:
        for is_streamed in (False, True):
            status, answer = ask(server, stream=is_streamed)
            error = answer["error"]
            assert (status, error["code"]) == (502, "HASH_MISMATCH"), error
            assert file.sha256 in error["message"]
            assert hashlib.sha256(changed).hexdigest() in error["message"]
        assert server.get("/v1/models/small")["state"] == "failed"
