"""A server with a catalog: names, limits, stand-ins, what is held and what may go, and edits while it runs."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

openai = pytest.importorskip("openai", reason="needs the client that the server is made for")

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
CATALOG = """
[models.quick]
source = "act:tokens=9"
aliases = ["q"]
description = "Quick."
max_tokens = 4

[models.broken]
source = "act:fail=BAD_MODEL_FILE"
fallback = ["worse", "quick"]

[models.worse]
source = "act:fail=OUT_OF_MEMORY,tokens=1"

[models.lonely]
source = "act:fail=BAD_MODEL_FILE,tokens=2"

[models.vectors]
source = "act:"
capabilities = ["embeddings"]

[models.held]
source = "act:tokens=5"
scaling = { mode = "kept" }

[models.brief]
source = "act:tokens=6"
scaling = { idle_s = 0.3 }

[models.leaning]
source = "act:tokens=1"
fallback = ["far"]

[models.able]
source = "act:tokens=1,able=1"
capabilities = ["chat", "tools", "vision"]

[models.shy]
source = "act:fail=OUT_OF_MEMORY,tokens=3"
capabilities = ["chat", "tools", "vision"]
fallback = ["quick"]

[models.far]
external = { url = "http://127.0.0.1:9/v1" }
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("catalog") / "catalog.toml"
    file.write_text(CATALOG)
    return file


@pytest.fixture(scope="module")
def catalog(start: Callable[..., Any], path: Path) -> Any:
    with start("--catalog", str(path), "--named-only", "--grace", "1") as server:
        yield server


def ask(server: Any, model: str, **more: Any) -> tuple[int, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **more}
    return server.post("/v1/chat/completions", body)


def sessions(server: Any, spec: str) -> list[Any]:
    return [one for one in server.get("/stats")["sessions"] if spec in one["instance"]]


def test_the_models_of_the_catalog_are_listed_before_the_defaults(catalog: Any) -> None:
    found = {one["id"]: one for one in catalog.get("/v1/models")["data"]}
    assert list(found)[:8] == ["quick", "broken", "worse", "lonely", "vectors", "held", "brief", "leaning"]
    assert found["quick"]["aliases"] == ["q"]
    assert found["quick"]["description"] == "Quick."
    assert found["vectors"]["kinds"] == ["embedding"]


def test_a_models_limit_holds_for_every_request(catalog: Any) -> None:
    for more in ({}, {"max_tokens": 100}):
        status, answer = ask(catalog, "q", **more)
        assert status == 200
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (4, "length")
    assert ask(catalog, "q", max_tokens=2)[1]["usage"]["completion_tokens"] == 2


def test_a_name_that_is_not_there_or_of_another_kind_is_refused(catalog: Any) -> None:
    status, answer = ask(catalog, "quic")
    assert status == 404
    assert "quick" in answer["error"]["message"]
    status, answer = ask(catalog, "vectors")
    assert status == 400
    assert "embedding" in answer["error"]["message"]
    assert 'add "chat" to the capabilities of vectors in the catalog' in answer["error"]["remedy"]
    with pytest.raises(openai.NotFoundError, match="There is no default model for transcribe-speech") as caught:
        catalog.client().audio.transcriptions.create(model="default", file=("a.wav", b"sound"))
    assert caught.value.body["remedy"] == "Name a model: one that GET /v1/models lists."
    status, answer = ask(catalog, "far")
    assert status == 502
    assert "http://127.0.0.1:9/v1" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]}),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        ),
    ],
)
def test_what_a_model_is_not_for_is_refused_by_field_and_model(catalog: Any, field: str, more: dict[str, Any]) -> None:
    status, answer = ask(catalog, "quick", **more)
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, field, "UNSUPPORTED")
    assert "quick" in answer["error"]["message"]
    assert "chat, completion" in answer["error"]["message"]
    status, answer = ask(catalog, "able", **more)
    assert status == 200, answer
    status, answer = ask(catalog, "shy", **more)  # its stand-in cannot do it: its own error
    assert (status, answer["error"]["code"]) == (500, "OUT_OF_MEMORY")


def test_a_model_that_cannot_be_loaded_has_a_stand_in_that_is_told(catalog: Any) -> None:
    status, answer = ask(catalog, "broken")
    assert status == 200, answer
    assert answer["stood_in"] == {"for": "broken", "model": "quick"}
    with catalog.client() as client:
        said = [{"role": "user", "content": "hi"}]
        chunks = list(client.chat.completions.create(model="broken", messages=said, stream=True))
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == "t0 t1 t2 t3 "
    assert catalog.get("/v1/models/broken")["state"] == "failed"
    assert ask(catalog, "leaning")[0] == 200  # its stand-in, on another server, need not be asked
    status, answer = ask(catalog, "lonely")
    assert status >= 400
    assert answer["error"]["code"] == "BAD_MODEL_FILE"


def test_one_that_is_kept_is_loaded_before_anybody_asks(catalog: Any) -> None:
    catalog.wait_for(lambda: catalog.get("/v1/models/held")["state"] == "ready")
    assert sessions(catalog, "act:tokens=5")


def test_one_that_is_kept_is_not_told_as_loaded_when_another_stands_in(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "catalog.toml"
    held = 'source = "act:fail=OUT_OF_MEMORY,tokens=8"\nfallback = ["quick"]\nscaling = { mode = "kept" }'
    path.write_text(f'[models.held]\n{held}\n[models.quick]\nsource = "act:tokens=1"\n')
    with start("--catalog", str(path), "--grace", "0.2") as server:
        server.wait_for(lambda: server.get("/v1/models/held")["state"] == "failed")
        assert server.get("/v1/models/quick")["state"] == "unused"
        assert ask(server, "held")[1]["stood_in"] == {"for": "held", "model": "quick"}
        _, log = server.end()
    told = [one for one in map(json.loads, log.splitlines()) if one["event"] == "model"]
    assert [(one["name"], one["what"]) for one in told] == [("held", "failed")]


def test_one_that_is_idle_is_unloaded(catalog: Any) -> None:
    assert ask(catalog, "brief")[0] == 200
    catalog.wait_for(lambda: not any(one["pid"] for one in sessions(catalog, "act:tokens=6")))
    assert catalog.get("/v1/models/brief")["state"] == "unused"
    assert ask(catalog, "brief")[0] == 200


def test_an_edit_is_in_force_soon_and_is_told_and_a_broken_one_changes_nothing(
    start: Callable[..., Any], path: Path, tmp_path: Path, rewrite: Callable[[Path, str], None]
) -> None:
    mine = tmp_path / "catalog.toml"
    mine.write_text(path.read_text())
    with start("--catalog", str(mine), "--grace", "1") as server:
        rewrite(mine, path.read_text().replace("max_tokens = 4", "max_tokens = 3"))
        server.wait_for(lambda: ask(server, "q")[1]["usage"]["completion_tokens"] == 3)
        rewrite(mine, path.read_text() + "[models.quick")
        time.sleep(1.5)  # longer than it takes to be looked at; nothing else tells that nothing happens
        assert ask(server, "q")[1]["usage"]["completion_tokens"] == 3
        _, log = server.end()
    told = [json.loads(line) for line in log.splitlines()]
    changed = [one for one in told if one["event"] == "catalog"]
    assert changed[0]["name"] == "quick"
    assert changed[0]["keys"] == ["max_tokens"]
    assert "is no TOML" in changed[1]["error"]


def test_a_catalog_that_is_not_sound_keeps_the_server_from_starting(start: Callable[..., Any], tmp_path: Path) -> None:
    broken = tmp_path / "catalog.toml"
    broken.write_text('[models.a]\nsource = ""\n')
    command = [CARTDECK, "serve", "--port", "0", "--catalog", str(broken)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "models.a.source" in done.stderr
