"""`cartdeck pull`, `models`, `verify`, `rm` and `config show` as a person runs them, against a hub on loopback."""

import contextlib
import hashlib
import importlib.util
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyte
import pytest

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
FAKE_HUB = Path(__file__).parents[1] / "data" / "hub" / "fake_hub.py"
LIMIT_S = 60.0
MIB = 1024 * 1024


def load_fake_hub() -> ModuleType:
    if "fake_hub" not in sys.modules:
        spec = importlib.util.spec_from_file_location("fake_hub", FAKE_HUB)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["fake_hub"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["fake_hub"])
    return sys.modules["fake_hub"]


@dataclass
class Desk:
    """The command line with caches of its own, and the hub that it asks."""

    root: Path
    hub: Any

    @property
    def environment(self) -> dict[str, str]:
        config = self.root / "config.toml"
        if not config.exists():
            config.write_text(f'[models]\nendpoint = "{self.hub.url}"\nfolder = "{self.root / "models"}"\n')
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "COLUMNS": "200",
            "CARTDECK_CONFIG": str(config),
            "HF_TOKEN_PATH": os.devnull,
            "NO_PROXY": "127.0.0.1",
        }

    def run(self, *arguments: str, status: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [CARTDECK, *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == status, done.stderr + done.stdout
        return done

    def read(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    for hub in load_fake_hub().serving():
        yield Desk(tmp_path, hub)


def gguf(size_bytes: int) -> bytes:
    """A file that begins as a GGUF file of a small llama does, of `size_bytes` in all."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    numbers = {
        "block_count": 2,
        "context_length": 2048,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }
    pairs = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    pairs += b"".join(text(f"llama.{name}") + struct.pack("<II", 4, value) for name, value in numbers.items())
    return (b"GGUF" + struct.pack("<IQQ", 3, 0, len(numbers) + 1) + pairs).ljust(size_bytes, b"\x07")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_pull_prints_the_path_and_models_verify_and_rm_know_what_came(desk: Desk) -> None:
    data = gguf(3 * MIB)
    desk.hub.add({"m.Q4_K_M.gguf": data, "m.Q8_0.gguf": gguf(5 * MIB), "config.json": b"{}"})
    done = desk.run("pull", "hf:owner/name")
    path = Path(done.stdout.strip())
    assert path.name == "m.Q4_K_M.gguf"
    assert path.read_bytes() == data
    assert "m.Q4_K_M.gguf: 3.1 MB" in done.stderr
    (listed,) = desk.read("models")["models"]
    assert listed["refs"] == ["main"]
    assert [(Path(file["path"]), file["sha256"]) for file in listed["files"]] == [(path, sha256(data))]
    assert listed["verified"] is not None
    row = desk.run("models").stdout.rstrip("\n").split("\t")
    assert row[:2] == ["hf:owner/name@main", "3.1 MB"]
    assert desk.run("verify", row[0]).stdout == f"intact\t{sha256(data)}\t{path}\n"
    path.resolve().chmod(0o644)
    path.resolve().write_bytes(data[:-1] + b"\x08")
    damaged = desk.run("verify", str(path), status=6)
    assert "is damaged" in " ".join(damaged.stderr.split())
    assert desk.run("rm", row[0], "--yes").stdout == f"{path}\n3.1 MB were freed.\n"
    assert desk.read("models") == {"models": []}
    assert not path.exists()


def test_pull_as_json_is_one_record_with_hashes_commit_and_what_was_resumed(desk: Desk) -> None:
    data = gguf(2 * MIB)
    repository = desk.hub.add({"q/m.gguf": data})
    record = desk.read("pull", "hf:owner/name:m.gguf", "--revision", "main")
    assert record["spec"] == "hf:owner/name:m.gguf"
    assert (record["revision"], record["source"]) == (repository.branches["main"], "hub")
    assert (record["sha256"], record["resumed_bytes"]) == (sha256(data), 0)
    assert record["path"].endswith("/q/m.gguf")


def test_include_and_exclude_choose_the_files(desk: Desk) -> None:
    desk.hub.add({"m.Q4_K_M.gguf": gguf(MIB), "m.Q8_0.gguf": gguf(MIB), "a.json": b"{}", "b.txt": b"b", "c.bin": b"c"})
    record = desk.read("pull", "owner/name", "--include", "*.gguf", "--include", "*.json", "--exclude", "*Q8*")
    assert [Path(file["path"]).name for file in record["files"]] == ["m.Q4_K_M.gguf", "a.json"]
    narrowed = desk.run("pull", "/etc/hosts", "--include", "x", status=2)
    assert "hub" in narrowed.stderr


def test_a_model_comes_with_its_projector_where_that_is_asked_for(desk: Desk) -> None:
    desk.hub.add({"m.Q4_K_M.gguf": gguf(MIB), "mmproj-F16.gguf": gguf(MIB), "mmproj-F32.gguf": gguf(2 * MIB)})
    record = desk.read("pull", "hf:owner/name", "--with-projector")
    assert [Path(file["path"]).name for file in record["files"]] == ["m.Q4_K_M.gguf", "mmproj-F16.gguf"]
    assert record["path"].endswith("/m.Q4_K_M.gguf")


def test_fit_only_fetches_nothing_and_judges_every_candidate(desk: Desk) -> None:
    desk.hub.add({"m.Q4_K_M.gguf": gguf(3 * MIB), "m.Q8_0.gguf": gguf(5 * MIB), "mmproj-f16.gguf": gguf(MIB)})
    record = desk.read("pull", "hf:owner/name", "--fit-only")
    assert [(one["quantization"], one["fits"]) for one in record["candidates"]] == [("Q4_K_M", True), ("Q8_0", True)]
    assert record["advised"] == "m.Q4_K_M.gguf"
    assert record["candidates"][0]["own_context"] == 2048
    assert record["candidates"][0]["projector"]["path"] == "mmproj-f16.gguf"
    sent = sum(desk.hub.sent.values())
    assert sent <= MIB + 1024, "one range of one header"
    rows = desk.run("pull", "hf:owner/name", "--fit-only", "--context-size", "512").stdout.splitlines()
    assert rows[0].split("\t")[:2] == ["m.Q4_K_M.gguf", "Q4_K_M"]
    assert rows[-1] == "Advised: m.Q4_K_M.gguf"
    refused = desk.run("pull", "hf:owner/name", "--context-size", "512", status=2).stderr
    assert "--context-size is for --fit-only" in " ".join(refused.split())
    one = desk.run("pull", "hf:owner/name:Q8_0", "--fit-only").stdout
    assert one.count("It fits") == 1
    assert desk.read("models") == {"models": []}


def test_what_cannot_be_fetched_is_an_error_with_its_exit_code(desk: Desk) -> None:
    desk.hub.add({"pytorch_model.bin": b"pickle", "README.md": b"r"})
    assert "neither a GGUF model nor safetensors" in " ".join(
        desk.run("pull", "hf:owner/name", status=2).stderr.split()
    )
    error = json.loads(desk.run("pull", "hf:owner/nothere", "--json", status=6).stdout)["error"]
    assert error["code"] in ("MODEL_NOT_FOUND", "AUTH_REQUIRED")


def test_while_an_index_does_not_answer_what_is_waited_for_is_said(desk: Desk) -> None:
    with socket.socket() as closed:  # its port is taken, and nobody listens
        closed.bind(("127.0.0.1", 0))
        index = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
        more = {"PIP_INDEX_URL": index, "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
        told = desk.run("pull", "pypi:not-here==1.0/not_here/m.gguf", status=6, **more).stderr
    assert "0% download: Asking pip's index for not-here==1.0\n" in told


def test_rm_without_a_terminal_wants_yes_and_says_what_is_not_there(desk: Desk) -> None:
    assert "not kept here" in desk.run("rm", "hf:owner/name", status=2).stderr
    for command in (["rm", "nope", "--yes"], ["verify", "nope"]):
        error = json.loads(desk.run(*command, "--json", status=2).stdout)["error"]
        assert (error["code"], error["message"]) == ("MODEL_NOT_FOUND", "'nope' is not kept here. Nothing is.")
    desk.hub.add({"m.gguf": gguf(MIB)})
    desk.run("pull", "hf:owner/name")
    assert "--yes" in desk.run("rm", "hf:owner/name", status=2).stderr


def test_rm_tells_which_files_went(desk: Desk) -> None:
    desk.hub.add({"m.Q4_K_M.gguf": gguf(MIB), "m.Q8_0.gguf": gguf(2 * MIB), "config.json": b"{}"})
    desk.run("pull", "hf:owner/name", "--include", "*")
    (listed,) = desk.read("models")["models"]
    paths = sorted(file["path"] for file in listed["files"])
    assert len(paths) == 3
    lines = desk.run("rm", "hf:owner/name:m.Q8_0.gguf", "--yes").stdout.splitlines()
    assert [Path(line).name for line in lines] == ["m.Q8_0.gguf", "2.1 MB were freed."]
    told = desk.read("rm", "hf:owner/name", "--yes")
    assert told["files"] == [path for path in paths if "Q8_0" not in path]
    assert not any(Path(path).exists() for path in paths)


def test_a_name_of_the_catalog_is_pulled_verified_and_removed_but_for_what_another_name_needs(desk: Desk) -> None:
    desk.hub.add({"m.Q4_K_M.gguf": gguf(2 * MIB), "m.Q8_0.gguf": gguf(MIB), "mmproj-F16.gguf": gguf(3 * MIB)})
    catalog = desk.root / "models.toml"
    catalog.write_text(
        '[models.seeing]\nsource = "hf:owner/name:m.Q4_K_M.gguf"\nprojector = "hf:owner/name:mmproj-F16.gguf"\n'
        'capabilities = ["chat", "vision"]\n[models.blind]\nsource = "hf:owner/name:m.Q4_K_M.gguf"\n'
    )
    named = ("--catalog", str(catalog))
    paths = [Path(line) for line in desk.run("pull", "seeing", *named).stdout.splitlines()]
    assert [one.name for one in paths] == ["m.Q4_K_M.gguf", "mmproj-F16.gguf"]
    assert catalog.read_text().count("sha256") == 2, "what came is written down"
    assert desk.run("verify", "seeing", *named).stdout.count("intact\t") == 2
    assert desk.read("pull", "blind", *named)["sources"][0]["path"] == str(paths[0])

    told = desk.read("rm", "seeing", "--yes", *named)
    assert [Path(one).name for one in told["removed"]] == ["mmproj-F16.gguf"]
    assert [one["needed_by"] for one in told["stays"]] == [["blind"]]
    assert (paths[0].exists(), paths[1].exists()) == (True, False)
    refused = desk.run("pull", "seeing", "--revision", "main", *named, status=2).stderr
    assert "--revision is for a spec" in " ".join(refused.split())


def test_what_goes_with_another_source_of_the_same_name_is_removed_once(desk: Desk) -> None:
    desk.hub.add({"m.Q4_K_M.gguf": gguf(2 * MIB), "mmproj-F16.gguf": gguf(3 * MIB)})
    desk.run("pull", "hf:owner/name", "--with-projector")
    catalog = desk.root / "models.toml"
    catalog.write_text(
        '[models.seeing]\nsource = "hf:owner/name"\nprojector = "hf:owner/name:mmproj-F16.gguf"\n'
        'capabilities = ["chat", "vision"]\n'
    )
    told = desk.read("rm", "seeing", "--yes", "--catalog", str(catalog))
    assert (told["freed_bytes"] // MIB, len(told["removed"])) == (5, 1), told
    assert desk.run("models").stdout == ""


def test_config_show_tells_what_is_in_force_and_never_the_token(desk: Desk) -> None:
    shown = desk.run("config", "show", HF_TOKEN="hf_s3cret", HF_HUB_OFFLINE="1").stdout
    assert f"#   hub              {desk.hub.url}, offline: nothing is asked of it" in shown
    assert "#   token            there is one" in shown
    assert f"#   hub's models in  {desk.root / 'models' / 'hub'}" in shown
    assert "s3cret" not in shown
    (desk.root / "config.toml").write_text('[models]\nxet = false\noffline = true\ncache_folder = "/somewhere/hub"\n')
    in_force = desk.read("config", "show")["models_in_force"]
    assert (in_force["uses_xet"], in_force["is_offline"], in_force["has_token"]) == (False, True, False)
    assert in_force["cache_folder"] == "/somewhere/hub"


def test_ctrl_c_keeps_what_came_and_the_next_pull_goes_on_there(desk: Desk) -> None:
    data = os.urandom(8 * MIB)
    fake_hub = load_fake_hub()
    desk.hub.add({"m.gguf": fake_hub.File(data, stalls_at=4 * MIB)})  # it cannot come to its end before the signal
    command = [CARTDECK, "pull", "hf:owner/name:m.gguf", "--json"]
    with subprocess.Popen(command, env=desk.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert fake_hub.wait_until(lambda: kept_bytes(desk.root) >= 2 * MIB, LIMIT_S)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert json.loads(output)["error"]["code"] == "CANCELLED"
    desk.hub.file("m.gguf").stalls_at = None
    record = desk.read("pull", "hf:owner/name:m.gguf")
    assert record["resumed_bytes"] >= MIB
    assert record["sha256"] == sha256(data)


def kept_bytes(root: Path) -> int:
    """How much of what is being fetched has been written down."""
    with contextlib.suppress(FileNotFoundError):  # it is whole now, and has another name
        return sum(path.stat().st_size for path in root.rglob("content.part"))
    return 0


class Terminal:
    """The command on a terminal of 24 lines and 100 columns."""

    def __init__(self, desk: Desk, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 100))
        environment = {**desk.environment, "TERM": "xterm"}
        environment.pop("COLUMNS")
        self.process = subprocess.Popen(
            [CARTDECK, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.screen = pyte.Screen(100, 24)
        self.stream = pyte.ByteStream(self.screen)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def until(self, wanted: str, *more: str) -> list[str]:
        """What the screen shows as soon as lines match `wanted` and `more`; "" waits for the end of the command."""
        while not wanted or not all(any(re.search(one, line) for line in self.lines) for one in (wanted, *more)):
            try:
                block = os.read(self.master, 65536)
            except OSError:  # Linux: the last process has closed the terminal
                block = b""
            if not block:
                assert not wanted, f"the command ended without {wanted!r}: {self.lines}"
                return self.lines
            self.stream.feed(block)
        return self.lines

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def end(self) -> int:
        self.until("")
        os.close(self.master)
        return self.process.wait(LIMIT_S)


Open = Callable[..., Terminal]


@pytest.fixture
def open_terminal(desk: Desk) -> Iterator[Open]:
    """Opens terminals whose command is gone behind the test, also where that failed."""
    opened: list[Terminal] = []

    def open_one(*arguments: str) -> Terminal:
        opened.append(Terminal(desk, *arguments))
        return opened[-1]

    yield open_one
    for terminal in opened:
        terminal.process.kill()
        terminal.process.wait(LIMIT_S)


def test_on_a_terminal_each_file_has_a_bar_and_all_together_one(desk: Desk, open_terminal: Open) -> None:
    fake_hub = load_fake_hub()
    slow = {f"part{number}.safetensors": fake_hub.File(os.urandom(2 * MIB), rate_bytes_s=5e5) for number in (1, 2)}
    desk.hub.add({**slow, "config.json": b"{}"})
    terminal = open_terminal("pull", "owner/name", "--include", "*")
    terminal.until(r"part1\.safetensors .* MB", r"part2\.safetensors .* MB")
    assert terminal.end() == 0
    assert sorted(line.partition(":")[0] for line in terminal.lines[:3]) == sorted(["config.json", *slow])
    assert "snapshots" in "".join(terminal.lines[3:])


def test_what_a_terminal_echoes_of_ctrl_c_leaves_no_bar_behind(desk: Desk, open_terminal: Open) -> None:
    desk.hub.add({"m.safetensors": load_fake_hub().File(os.urandom(2 * MIB), rate_bytes_s=2e5)})
    terminal = open_terminal("pull", "owner/name", "--include", "*")
    terminal.until(" MB")
    terminal.stream.feed(b"^C")  # as the terminal does, at the end of the bar
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert not any("download" in line for line in terminal.lines), terminal.lines


def test_what_a_terminal_echoes_of_ctrl_c_does_not_stand_before_the_error(open_terminal: Open) -> None:
    terminal = open_terminal("call", "work", "--arg", "steps=1000")
    terminal.until("working")
    terminal.stream.feed(b"^C")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert terminal.lines == ["error: A signal cancelled the call. [CANCELLED]"]


def test_rm_on_a_terminal_asks_and_only_a_yes_removes(desk: Desk, open_terminal: Open) -> None:
    desk.hub.add({"m.gguf": gguf(MIB)})
    desk.run("pull", "hf:owner/name")
    for answer, is_removed in (("\n", False), ("y\n", True)):
        terminal = open_terminal("rm", "hf:owner/name")
        asked = terminal.until(r"\[y/N\]")
        assert "models--owner--name" in "".join(asked)  # a long path goes over the end of a line
        terminal.type(answer)
        assert terminal.end() == 0
        assert ("Nothing was removed." in terminal.lines) == (not is_removed)
        assert (desk.read("models")["models"] == []) == is_removed
