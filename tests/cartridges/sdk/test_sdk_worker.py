"""Handlers that are a `def`: they stay alive while they are busy, and are told which peer calls block."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck_protocol import wire
from cartdeck_protocol.caps import build_manifest
from cartdeck_protocol.errors import Code

HANDLERS = """
import time

from cartdeck_sdk import Cartridge

cartridge = Cartridge("slow")


@cartridge.handles("nap")
def nap(request, output):
    output.progress(0.5, "half", phase="napping", work=1, total=2)
    while True:
        request.raise_if_cancelled()
        time.sleep(0.01)


@cartridge.handles("asks-in-a-thread")
def asks_in_a_thread(request, output):
    request.peer.call("cap:echo", {"data": "hi"})


@cartridge.handles("blocks-the-loop")
async def blocks_the_loop(request, output):
    request.peer.collect("cap:echo", {"data": "hi"})
"""
ALIASES = ("nap", "asks-in-a-thread", "blocks-the-loop")
TOML = f"""
name = "slow"
version = "1.0.0"
title = "Slow"
description = "Slow."
caps = {list(ALIASES)}
"""


@pytest.fixture
def driver(start: Callable[..., Any], tmp_path: Path) -> Any:
    def definition(alias: str) -> str | None:
        if alias not in ALIASES:
            return None
        return f"urn = 'cap:{alias};in=media:void;out=media:void'\ntitle = 'T'\ndocumentation = 'D.'\n"

    package = tmp_path / "slow"
    package.mkdir()
    (package / "__init__.py").write_text(HANDLERS, "utf-8")
    (package / "manifest.json").write_bytes(build_manifest(TOML, definition).to_json())
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return start("slow", keepalive_s=0.05, environment={"PYTHONPATH": path})


def test_a_busy_handler_in_a_thread_repeats_its_last_progress(driver: Any) -> None:
    exchange = driver.connection.request("cap:nap;in=media:void;out=media:void", {})
    for _ in range(3):
        event = driver.until(lambda event: isinstance(event, wire.Logged))
        assert (event.progress, event.phase, event.work) == (0.5, "napping", 1)
    driver.connection.cancel(exchange, "enough")
    assert driver.terminal(exchange).error.code is Code.CANCELLED


def test_a_peer_call_of_the_wrong_kind_of_handler_is_told_the_right_one(driver: Any) -> None:
    for alias, wanted in (("asks-in-a-thread", "peer.collect"), ("blocks-the-loop", "peer.call")):
        terminal, _, _ = driver.call(f"cap:{alias};in=media:void;out=media:void")
        assert terminal.error.code is Code.HANDLER_FAILED
        assert wanted in terminal.error.message
