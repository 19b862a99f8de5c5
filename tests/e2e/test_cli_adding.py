"""`cartdeck add`, `update` and `rollback` as a person runs them, against a hub on loopback."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(find_spec("llama_cpp") is None, reason="needs llama-cpp-python"),
]

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
LIMIT_S = 60.0
MIB = 1024 * 1024
Gguf = Callable[..., bytes]


@dataclass
class Desk:
    """The command line with a cache and a catalog of its own, and the hub that it asks."""

    root: Path
    hub: Any

    @property
    def catalog(self) -> Path:
        return self.root / "catalog.toml"

    @property
    def environment(self) -> dict[str, str]:
        config = self.root / "config.toml"
        config.write_text(f'[models]\nendpoint = "{self.hub.url}"\nfolder = "{self.root / "models"}"\n')
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "COLUMNS": "200",
            "CARTDECK_CONFIG": str(config),
            "CARTDECK_CATALOG": str(self.catalog),
            "HF_TOKEN_PATH": os.devnull,
            "NO_PROXY": "127.0.0.1",
        }

    def run(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [CARTDECK, *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env=self.environment,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == status, done.stderr + done.stdout
        return done

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [CARTDECK, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            stdin=subprocess.DEVNULL,
        )


@pytest.fixture(scope="module")
def desk(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("adding"), hub)


def words(text: str) -> str:
    return " ".join(text.split())


def test_each_step_is_a_line_and_the_model_is_in_the_catalog(desk: Desk, small_gguf: Gguf) -> None:
    desk.hub.add({"tiny.Q4_0.gguf": small_gguf(), "tiny.Q8_0.gguf": small_gguf() + bytes(99)}, name="owner/Tiny-GGUF")
    plan = desk.run("add", "owner/Tiny-GGUF", "--dry-run", "--quiet").stdout.splitlines()
    assert [row.split("\t")[:4] for row in plan] == [
        ["tiny.Q4_0.gguf", "yes", "llama", "Q4_0"],
        ["tiny.Q8_0.gguf", "no", "llama", "Q8_0"],
    ]
    assert not desk.catalog.exists()

    done = desk.run("add", "owner/Tiny-GGUF")
    assert done.stdout == f"Tiny is in {desk.catalog}, and has answered\n"
    named = [line.split()[0] for line in done.stderr.splitlines() if not line.startswith(" ")]
    assert named == ["registry", "plan", "download", "header", "entry", "start", "smoke-test", "catalog"]
    assert "tokens" in next(line for line in done.stderr.splitlines() if line.startswith("smoke-test"))
    again = words(desk.run("add", "owner/Tiny-GGUF", status=2).stderr)
    assert "`cartdeck update Tiny` looks for newer weights" in again


def test_events_are_json_lines_and_so_is_an_error(desk: Desk, small_gguf: Gguf) -> None:
    desk.hub.add({"m.Q4_0.gguf": small_gguf(seed=1)}, name="owner/lines")
    lines = [json.loads(line) for line in desk.run("add", "owner/lines", "--json").stdout.splitlines()]
    ended = [one["step"] for one in lines if one["event"] == "step-end"]
    assert ended == ["registry", "plan", "download", "header", "entry", "start", "smoke-test", "catalog"]
    overall = [one["overall"] for one in lines[:-1]]
    assert overall == sorted(overall)
    assert (lines[-1]["event"], lines[-1]["name"], len(lines[-1]["steps"])) == ("end", "lines", 8)

    desk.hub.add({"m.bin": b"p"}, name="owner/pickles")
    done = desk.run("add", "owner/pickles", "--json", status=2)
    error = json.loads(done.stdout.splitlines()[-1])["error"]
    assert (error["code"], error["details"]["step"]) == ("UNSAFE_WEIGHTS", "registry")


def test_an_error_names_the_step_and_the_remedy(desk: Desk) -> None:
    desk.hub.add({"m.bin": b"p"}, name="owner/pickles")
    told = words(desk.run("add", "owner/pickles", status=2).stderr)
    assert "error: registry: owner/pickles holds neither" in told
    assert "Use weights in safetensors or GGUF form." in told


def test_ctrl_c_in_the_middle_leaves_no_entry_and_the_next_goes_on(desk: Desk, small_gguf: Gguf) -> None:
    name, file = "owner/left", "left.Q4_0.gguf"
    slow = sys.modules["fake_hub"].File(small_gguf(seed=2) + bytes(8 * MIB), stalls_at=6 * MIB)
    desk.hub.add({file: slow}, name=name)
    before = desk.catalog.read_text() if desk.catalog.exists() else None
    with desk.start("add", name) as process:
        end_s = time.monotonic() + LIMIT_S
        while desk.hub.sent[file] <= 4 * MIB:  # one of them goes for its header
            assert time.monotonic() < end_s
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, told
    assert "stopped: what was fetched is kept" in told
    assert desk.hub.wait_idle(LIMIT_S)
    assert (desk.catalog.read_text() if desk.catalog.exists() else None) == before
    slow.stalls_at = None
    lines = [json.loads(line) for line in desk.run("add", name, "--json").stdout.splitlines()]
    (download,) = [one for one in lines if one["event"] == "step-end" and one["step"] == "download"]
    assert download["resumed_bytes"] > 0


def test_newer_weights_are_taken_when_they_have_answered_and_given_back(desk: Desk, small_gguf: Gguf) -> None:
    first = desk.hub.add({"m.Q4_0.gguf": small_gguf(seed=3)}, name="owner/moving").branches["main"]
    desk.run("add", "owner/moving", "--name", "m", "--quiet")
    assert "m is of the newest weights there are" in desk.run("update", "m").stdout
    second = desk.hub.add({"m.Q4_0.gguf": small_gguf(seed=4)}, name="owner/moving").branches["main"]
    assert desk.run("update", "m").stdout == f"m is of hf:owner/moving@{second}:m.Q4_0.gguf now\n"
    assert desk.run("rollback", "m").stdout == f"m is of hf:owner/moving@{first}:m.Q4_0.gguf again\n"
