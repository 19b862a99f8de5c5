"""Models of a hub that are added, updated and rolled back over HTTP, by a server whose catalog they go into."""

import json
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(find_spec("llama_cpp") is None, reason="needs llama-cpp-python"),
]

MIB = 1024 * 1024
LIMIT_S = 60.0
STEPS = ["registry", "plan", "download", "header", "entry", "start", "smoke-test", "catalog"]
Gguf = Callable[..., bytes]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("catalog") / "catalog.toml"
    file.write_text("# ours\n")
    return file


@pytest.fixture(scope="module")
def adding(start: Callable[..., Any], hub: Any, path: Path) -> Iterator[Any]:
    """A server that asks the hub on loopback."""
    config = path.with_name("config.toml")
    folder = path.with_name("models")
    config.write_text(f'[models]\nendpoint = "{hub.url}"\nfolder = "{folder}"\n[call]\ntick_s = 0.1\n')
    environment = {"CARTDECK_CONFIG": str(config), "HF_TOKEN_PATH": "/dev/null", "NO_PROXY": "127.0.0.1"}
    with start("--catalog", str(path), "--named-only", "--grace", "1", **environment) as server:
        yield server


def events_of(data: bytes) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for block in data.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


def answer(server: Any, model: str) -> tuple[int, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}
    return server.post("/v1/chat/completions", body)


def test_a_model_is_added_with_events_and_answers_behind_the_last(
    adding: Any, hub: Any, path: Path, small_gguf: Gguf
) -> None:
    repository = hub.add({"m.Q4_0.gguf": small_gguf()}, name="owner/streamed")
    status, headers, data = adding.ask("POST", "/models/add", {"repository": "owner/streamed", "name": "one"})
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = events_of(data)
    assert [record["step"] for name, record in events if name == "step-end"] == STEPS
    overall = [record["overall"] for _, record in events[:-1]]
    assert overall == sorted(overall)
    name, end = events[-1]
    assert (name, end["name"]) == ("end", "one")
    assert end["source"] == f"hf:owner/streamed@{repository.branches['main']}:m.Q4_0.gguf"
    assert all(step["seconds"] >= 0 and step["text"] for step in end["steps"])
    assert answer(adding, "one")[0] == 200
    assert path.read_text().startswith("# ours\n")


def test_a_whole_record_comes_where_no_stream_is_wanted(adding: Any, hub: Any, small_gguf: Gguf) -> None:
    hub.add({"m.Q4_0.gguf": small_gguf(seed=1)}, name="owner/plain")
    asked = {"repository": "owner/plain", "stream": False}
    status, dry = adding.post("/models/add", {**asked, "dry_run": True})
    assert (status, dry["is_dry"], [step["step"] for step in dry["steps"]]) == (200, True, ["registry", "plan"])
    status, record = adding.post("/models/add", asked)
    assert (status, record["name"], len(record["steps"])) == (200, "plain", len(STEPS))
    assert record["steps"][6]["tokens_per_s"] is None or record["steps"][6]["tokens_per_s"] > 0
    assert answer(adding, "plain")[0] == 200


def test_what_cannot_be_added_has_its_status_its_step_and_its_remedy(adding: Any, hub: Any, path: Path) -> None:
    hub.add({"m.gguf": b"x"}, name="owner/gated", is_gated=True)
    hub.add({"m.bin": b"x"}, name="owner/pickles")
    before = path.read_text()
    for body, expected, code in (
        ({"repository": "owner/gated"}, 502, "GATED"),
        ({"repository": "owner/pickles"}, 400, "UNSAFE_WEIGHTS"),
    ):
        status, refused = adding.post("/models/add", {**body, "stream": False})
        assert (status, refused["error"]["code"]) == (expected, code)
        assert refused["error"]["details"]["step"] == "registry"
        assert refused["error"]["remedy"]
    for body, field in (
        ({"repository": "https://hub.example/a/b"}, "repository"),
        ({"repository": "owner/pickles", "name": "a b"}, "name"),
        ({"repository": "owner/pickles", "files": "x"}, "files"),
        ({}, "repository"),
    ):
        status, refused = adding.post("/models/add", body)
        assert (status, refused["error"]["param"]) == (400, field)
    assert adding.post("/models/update", {"name": "nobody"})[0] == 404
    *_, (name, last) = events_of(adding.ask("POST", "/models/add", {"repository": "owner/pickles"})[2])
    assert (name, last["error"]["code"]) == ("error", "UNSAFE_WEIGHTS")
    assert path.read_text() == before


def test_an_update_and_its_undoing_are_in_force_when_they_have_ended(adding: Any, hub: Any, small_gguf: Gguf) -> None:
    hub.add({"m.Q4_0.gguf": small_gguf(seed=2)}, name="owner/moving")
    adding.post("/models/add", {"repository": "owner/moving", "stream": False})
    first = answer(adding, "moving")[1]["choices"][0]["message"]["content"]
    status, same = adding.post("/models/update", {"name": "moving", "stream": False})
    assert (status, same["is_newer"]) == (200, False)

    hub.add({"m.Q4_0.gguf": small_gguf(seed=3)}, name="owner/moving")
    status, moved = adding.post("/models/update", {"name": "moving", "stream": False})
    assert (status, moved["is_newer"]) == (200, True)
    second = answer(adding, "moving")[1]["choices"][0]["message"]["content"]
    assert second != first
    status, back = adding.post("/models/rollback", {"name": "moving", "stream": False})
    assert (status, back["source"]) == (200, moved["from"])
    assert answer(adding, "moving")[1]["choices"][0]["message"]["content"] == first
    assert adding.post("/models/rollback", {"name": "moving"})[0] == 400


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_job_and_the_next_goes_on(
    adding: Any, hub: Any, path: Path, small_gguf: Gguf, stream: bool
) -> None:
    name, file = f"owner/left-{stream}", f"left-{stream}.Q4_0.gguf"
    slow = sys.modules["fake_hub"].File(small_gguf(seed=4 + stream) + bytes(8 * MIB), stalls_at=6 * MIB)
    hub.add({file: slow}, name=name)
    connection = adding.send("/models/add", {"repository": name, "stream": stream})
    # A megabyte of it goes for its header.
    adding.wait_for(lambda: hub.sent[file] > 4 * MIB, limit_s=LIMIT_S)
    connection.close()
    assert hub.wait_idle(LIMIT_S)
    assert name not in path.read_text()
    slow.stalls_at = None
    status, record = adding.post("/models/add", {"repository": name, "stream": False})
    assert status == 200, record
    assert record["steps"][2]["resumed_bytes"] > 0


def test_a_server_without_a_catalog_says_how_to_have_one(server: Any) -> None:
    status, refused = server.post("/models/add", {"repository": "owner/name"})
    assert (status, refused["error"]["code"]) == (400, "UNSUPPORTED")
    assert "--catalog FILE" in refused["error"]["message"]
    assert refused["error"]["remedy"].startswith("FILE may be an empty one")
