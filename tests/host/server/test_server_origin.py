"""What a catalog's model was with its first download is written down, and holds for later ones: a hub, and a double."""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub", reason="needs the extra models")

FAKE_HUB = Path(__file__).parents[2] / "data" / "hub" / "fake_hub.py"
CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
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


def environment_of(hub: Any, place: Path) -> dict[str, str]:
    return {
        "HF_ENDPOINT": hub.url,
        "CARTDECK_MODELS_DIR": str(place / "models"),
        "XDG_CACHE_HOME": str(place / "cache"),
        "HF_HUB_DISABLE_XET": "1",
    }


def test_the_origin_is_written_with_the_first_download_and_later_ones_must_be_the_same(
    hub: Any, start: Callable[..., Any], tmp_path: Path
) -> None:
    hub.add({"m.gguf": DATA})
    first = hub.repositories["owner/name"].branches["main"]
    path = tmp_path / "catalog.toml"
    path.write_text('# ours\n[models.small]\nsource = "hf:owner/name:m.gguf"\n[models.here]\nsource = "act:tokens=1"\n')
    environment = environment_of(hub, tmp_path)
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


PARTS = """
[models.seeing]
source = "act:tokens=1"
projector = "hf:owner/eyes:mmproj.gguf"
capabilities = ["chat", "vision"]
guards = ["watch"]
lora = { pirate = { source = "hf:owner/pirate:adapter.gguf" } }
[guards.watch]
source = "hf:owner/watch:w.gguf"
format = "json"
prompt = "{dialogue}"
when = ["before"]
when_down = "allow"
"""


def test_projectors_adapters_and_guards_are_pinned_as_models_are(
    hub: Any, start: Callable[..., Any], tmp_path: Path
) -> None:
    files = {"owner/eyes": "mmproj.gguf", "owner/pirate": "adapter.gguf", "owner/watch": "w.gguf"}
    for repository, file in files.items():
        hub.add({file: DATA}, name=repository)
    firsts = {one: hub.repositories[one].branches["main"] for one in files}
    path = tmp_path / "catalog.toml"
    path.write_text(PARTS)
    environment = environment_of(hub, tmp_path)
    with start("--catalog", str(path), "--grace", "0.2", **environment) as server:
        for model in ("seeing", "pirate"):
            status, answer = ask(server, model)
            assert status == 200, answer
    catalog = tomllib.loads(path.read_text())
    seeing = catalog["models"]["seeing"]
    found = [seeing["projector_origin"], seeing["lora"]["pirate"]["origin"], catalog["guards"]["watch"]["origin"]]
    assert [one["revision"] for one in found] == list(firsts.values())
    assert "origin" not in seeing

    shutil.rmtree(tmp_path / "models")
    commit = hub.repositories["owner/pirate"].commits[firsts["owner/pirate"]]
    commit["adapter.gguf"] = sys.modules["fake_hub"].File(b"W" + DATA[1:])
    with start("--catalog", str(path), "--grace", "0.2", **environment) as server:
        assert ask(server, "seeing")[0] == 200
        status, answer = ask(server, "pirate")
        assert (status, answer["error"]["code"]) == (502, "HASH_MISMATCH"), answer
        assert "The adapter pirate of the model seeing is not what it was" in answer["error"]["message"]


def test_a_command_that_is_given_a_name_pins_and_compares_too(
    hub: Any, actor_environment: dict[str, str], tmp_path: Path
) -> None:
    hub.add({"m.gguf": DATA})
    first = hub.repositories["owner/name"].branches["main"]
    path = tmp_path / "catalog.toml"
    path.write_text('[models.small]\nsource = "hf:owner/name:m.gguf"\nmax_tokens = 2\n')
    environment = {**os.environ, **actor_environment, **environment_of(hub, tmp_path)}

    def run() -> tuple[int, Any]:
        command = [CARTDECK, "generate", "x", "--model", "small", "--catalog", str(path), "--json", "--quiet"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, json.loads(done.stdout)

    for _ in range(2):
        code, record = run()
        assert code == 0, record
        assert record["text"] == "t0 t1 "
        assert record["provenance"]["model"]["spec"] == f"hf:owner/name@{first}:m.gguf"
    assert entry(path)["origin"]["revision"] == first

    shutil.rmtree(tmp_path / "models")
    hub.repositories["owner/name"].commits[first]["m.gguf"] = sys.modules["fake_hub"].File(b"W" + DATA[1:])
    code, record = run()
    assert (code != 0, record["error"]["code"]) == (True, "HASH_MISMATCH")
