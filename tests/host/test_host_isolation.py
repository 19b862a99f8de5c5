"""What a cartridge's process is kept from: memory, files, the network, other people's variables and folders."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Engine, Settings
from cartdeck.sessions.network_cut import WAYS, network_cut
from cartdeck_protocol.caps import Manifest
from cartdeck_protocol.errors import CartdeckError, Code

DEFINITION = """
urn = 'cap:look-around;in=media:void;out="media:fmt=json;record;surroundings"'
title = "Look around"
documentation = "What the process sees."
[output]
documentation = "What it sees."
"""
PROGRAM = """
import json, os, resource, socket, tempfile
from cartdeck_sdk import Cartridge
cartridge = Cartridge("scout")
kept = []

@cartridge.handles("look-around")
async def look_around(request, output):
    seen = {
        "interfaces": [name for _, name in socket.if_nameindex()],
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "temporary": tempfile.gettempdir(),
        "directory": os.getcwd(),
        "variables": sorted(name for name in os.environ if name.startswith(("SCOUT_", "HTTPS_", "HF_"))),
    }
    with open(os.path.join(tempfile.gettempdir(), "mine"), "w") as file:
        file.write("mine")
    await output.write(json.dumps(seen))
"""


@pytest.fixture
def scout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Declare the cartridge `scout`, with more lines for its cartridge.toml."""

    def declare(lines: str) -> None:
        from cartdeck_protocol.caps import build_manifest

        package = tmp_path / "packages" / "scout"
        package.mkdir(parents=True)
        text = 'name = "scout"\nversion = "1"\ntitle = "Scout"\ndescription = "D"\ncaps = ["look-around"]\n'
        manifest = build_manifest(text, lambda alias: DEFINITION if alias == "look-around" else None)
        (package / "manifest.json").write_bytes(manifest.to_json())
        (package / "__init__.py").write_text(PROGRAM, "utf-8")
        folder = tmp_path / "cartridges" / "scout"
        folder.mkdir(parents=True)
        (folder / "cartridge.toml").write_text(
            f'command = ["{sys.executable}", "-P", "-m", "cartdeck_sdk", "scout"]\n'
            f'manifest = "{package / "manifest.json"}"\n{lines}\n',
            "utf-8",
        )
        path = os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH", "")]))
        monkeypatch.setenv("PYTHONPATH", path)
        for name in ("SCOUT_ONE", "SCOUT_TWO", "HTTPS_PROXY", "HF_TOKEN"):
            monkeypatch.setenv(name, "x")

    return declare


def test_a_manifest_may_ask_for_the_network(
    quick: Callable[..., Settings], scout: Callable[[str], None], tmp_path: Path
) -> None:
    scout("")
    path = tmp_path / "packages" / "scout" / "manifest.json"
    path.write_bytes(replace(Manifest.from_json(path.read_bytes()), network=True).to_json())
    seen = look(quick())
    assert set(seen["interfaces"]) == {name for _, name in socket.if_nameindex()}
    assert seen["variables"] == ["HTTPS_PROXY"]


def look(settings: Settings) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        async with Engine(settings) as engine:
            result = await engine.run("cap:look-around", {}, timeout_s=60)
            return json.loads(result.text)

    return asyncio.run(work())


def test_a_cartridge_that_asks_for_nothing_gets_no_network_and_a_folder_of_its_own(
    quick: Callable[..., Settings], scout: Callable[[str], None]
) -> None:
    scout("")
    seen = look(quick())
    if network_cut().is_possible:
        assert set(seen["interfaces"]) <= {"lo"}
    assert seen["variables"] == []
    folder = Path(seen["temporary"])
    assert folder.parent == Path(tempfile.gettempdir())
    assert folder.name.startswith("cartdeck-")
    assert not folder.exists(), "it goes with the process"


def test_without_rights_of_its_own_a_process_gets_a_loopback_interface_and_no_right() -> None:
    unshare = shutil.which("unshare")
    if sys.platform != "linux" or unshare is None:
        pytest.skip("there are no namespaces here")
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups") if os.getuid() == 0 else ()
    seen = ("cat", "/proc/net/dev", "/proc/self/status", "/proc/net/if_inet6")
    done = subprocess.run(
        (*nobody, unshare, *WAYS[1], *seen), capture_output=True, text=True, timeout=60, check=False, cwd="/"
    )
    if "Operation not permitted" in done.stderr or "not found" in done.stderr:
        pytest.skip(f"this system does not let a user do it: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "CapEff:\t0000000000000000" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" lo"), "it has an address, so it is up"


def test_a_cartridge_gets_what_its_file_asks_for(
    quick: Callable[..., Settings], scout: Callable[[str], None], tmp_path: Path
) -> None:
    scout(
        'network = true\nenvironment = ["SCOUT_*"]\nworking_directory = "{folder}"\n'
        "[limits]\nopen_files = 123\nniceness = 3"
    )
    seen = look(quick())
    assert seen["files"] == 123
    assert seen["niceness"] == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)
    assert seen["directory"] == str(tmp_path / "cartridges" / "scout")
    assert seen["variables"] == ["HTTPS_PROXY", "SCOUT_ONE", "SCOUT_TWO"], "proxies, and no token"
    outside = {name for _, name in socket.if_nameindex()}
    assert set(seen["interfaces"]) == outside


def test_the_settings_turn_it_off_and_set_limits(quick: Callable[..., Settings], scout: Callable[[str], None]) -> None:
    scout("[limits]\nopen_files = 123")
    seen = look(quick(isolation={"network": "off", "private_folder": False}, limits={"scout": {"open_files": 77}}))
    assert seen["files"] == 77
    assert seen["temporary"] == tempfile.gettempdir()


def test_a_process_above_its_memory_limit_is_ended_and_its_callers_are_told(quick: Callable[..., Settings]) -> None:
    async def work() -> None:
        async with Engine(quick(limits={"echo": {"memory_bytes": 1_000_000}})) as engine:
            with pytest.raises(CartdeckError, match="more than its limit of 1 MB") as caught:
                await engine.run("cap:work", {"steps": 1000, "seconds": 0.1}, timeout_s=60)
            assert caught.value.code is Code.OUT_OF_MEMORY
            assert caught.value.details["limit_bytes"] == 1_000_000
            assert caught.value.details["rss_bytes"] > 1_000_000

    asyncio.run(work())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("network = 1", "network: found '1', expected true or false"),
        ("environment = 'HOME'", "environment: found 'HOME', expected a list of names"),
        ("working_directory = 1", "working_directory"),
        ("[limits]\nniceness = 20", "limits.niceness: found '20', expected a number from 0 to 19"),
        ("[limits]\nmemory = 20", "limits.memory is unknown; known: memory_bytes, open_files, niceness"),
        ("limits = 3", "limits: found '3', expected a table"),
        ("[installed]\nversion = '1'", "installed: found"),
    ],
)
def test_a_wrong_line_of_a_cartridge_file_is_named(
    quick: Callable[..., Settings], scout: Callable[[str], None], line: str, words: str
) -> None:
    from cartdeck.discovery import discover

    scout(line)
    [broken] = discover(quick()).broken
    assert broken.error.code is Code.BAD_ARGUMENT
    assert words in broken.error.message
