"""What a model cartridge does with a host that keeps no account of memory, or refuses some."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck_protocol import wire
from cartdeck_protocol.caps import build_manifest
from cartdeck_protocol.errors import CartdeckError, Code, failure

SOURCE = Path(__file__).parents[2] / "data" / "cartridges" / "ballast"


@pytest.fixture
def ballast(start: Callable[..., Any], tmp_path: Path) -> Any:
    """A driver of the cartridge `ballast`."""
    package = tmp_path / "ballast"
    shutil.copytree(SOURCE, package)
    manifest = build_manifest(
        (SOURCE / "manifest.toml").read_text("utf-8"), lambda alias: (SOURCE / f"{alias}.toml").read_text("utf-8")
    )
    (package / "manifest.json").write_bytes(manifest.to_json())
    known = os.environ.get("PYTHONPATH", "")
    return start("ballast", environment={"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), known]))})


def load(ballast: Any, answer: bytes | CartdeckError) -> Any:
    """The terminal of a call whose question for memory the host answers so."""
    exchange = ballast.connection.request("cap:carry", {"reserve": b"5000"})
    asked = ballast.until(lambda event: isinstance(event, wire.RequestReceived))
    assert (asked.cap, asked.arguments, asked.parent) == ("cap:reserve-memory", {"bytes": b"5000"}, exchange.id)
    if isinstance(answer, bytes):
        ballast.connection.open_stream(asked.exchange).write(answer)
        ballast.connection.end(asked.exchange)
    else:
        ballast.connection.fail(asked.exchange, answer)
    return ballast.terminal(exchange)


def grant_of(ballast: Any) -> Any:
    data = b"".join(event.payload or b"" for event in ballast.events if isinstance(event, wire.StreamStarted))
    data += b"".join(event.payload for event in ballast.events if isinstance(event, wire.ChunkReceived))
    return json.loads(data)["grant"]


def test_a_host_that_serves_no_such_cap_lets_the_load_go_on(ballast: Any) -> None:
    assert isinstance(load(ballast, failure(Code.NO_SUCH_CAP, "No cartridge serves it.")), wire.Finished)
    assert grant_of(ballast) is None


def test_a_grant_is_read(ballast: Any) -> None:
    record = {"granted_bytes": 5000, "budget_bytes": 9000, "free_bytes": 4000}
    assert isinstance(load(ballast, json.dumps({**record, "more": 1}).encode()), wire.Finished)
    assert grant_of(ballast) == record


@pytest.mark.parametrize("answer", [b"", b"yes", b"[]", b'{"granted_bytes": 5000}'])
def test_an_answer_that_is_no_grant_is_an_error_of_the_call(ballast: Any, answer: bytes) -> None:
    terminal = load(ballast, answer)
    assert (terminal.error.code, terminal.error.phase) == (Code.HANDLER_FAILED, "load")
    assert "no grant" in terminal.error.message


def test_a_refusal_is_the_callers_error_and_the_process_works_on(ballast: Any) -> None:
    refused = failure(Code.INSUFFICIENT_MEMORY, "too little", details={"need": 5000, "free": 1, "holders": []})
    terminal = load(ballast, refused)
    assert terminal.error.code is Code.INSUFFICIENT_MEMORY
    assert terminal.error.details == {"need": 5000, "free": 1, "holders": []}
    ballast.events.clear()
    assert isinstance(load(ballast, failure(Code.NO_SUCH_CAP, "No cartridge serves it.")), wire.Finished)
