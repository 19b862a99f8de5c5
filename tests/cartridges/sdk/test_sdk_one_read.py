"""What comes in one read: a call that ends there takes nothing else with it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck_protocol import wire
from cartdeck_protocol.caps import build_manifest
from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk.service import WORKERS

SOURCE = Path(__file__).parents[2] / "data" / "cartridges" / "letters"


@pytest.fixture
def letters(start: Callable[..., Any], tmp_path: Path) -> Any:
    """A driver of the cartridge `letters`."""
    package = tmp_path / "letters"
    shutil.copytree(SOURCE, package)
    manifest = build_manifest(
        (SOURCE / "manifest.toml").read_text("utf-8"),
        lambda alias: path.read_text("utf-8") if (path := SOURCE / f"{alias}.toml").exists() else None,
    )
    (package / "manifest.json").write_bytes(manifest.to_json())
    known = os.environ.get("PYTHONPATH", "")
    return start("letters", environment={"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), known]))})


def begun(letters: Any, argument: str) -> tuple[Any, list[Any]]:
    """A call whose argument stream has begun, and the frames that say so, none of them sent: two chunks of it."""
    connection = letters.connection
    exchange = connection.request("cap:file", complete=False)
    stream = connection.open_stream(exchange, name=argument)
    stream.write(b"one")
    frames = connection.outgoing()
    stream.write(b"two")
    return exchange, frames + connection.outgoing()


def send(letters: Any, frames: list[Any]) -> None:
    """In one write, which is less than a pipe holds at once: the other end reads it whole."""
    data = b"".join(bytes(frame) for frame in [*frames, *letters.connection.outgoing()])
    assert os.write(letters.process.stdin.fileno(), data) == len(data) < 4096


def answer(letters: Any, exchange: Any) -> Any:
    assert isinstance(letters.terminal(exchange), wire.Finished)
    own = [one for one in letters.events if getattr(one, "exchange", None) is exchange]
    return json.loads(next(one.payload for one in own if isinstance(one, wire.StreamStarted) and not one.stream.name))


def test_a_call_with_a_stream_that_is_cancelled_in_the_read_it_came_in_is_cancelled(letters: Any) -> None:
    exchange, frames = begun(letters, "pages")
    letters.connection.cancel(exchange, "at once")
    other = letters.connection.request("cap:file", {"label": b"other"})
    send(letters, frames)
    assert letters.terminal(exchange).error.code is Code.CANCELLED
    assert answer(letters, other) == ["o", 5, 0]


def test_an_unknown_stream_ends_its_call_alone(letters: Any) -> None:
    exchange, frames = begun(letters, "stamps")
    other = letters.connection.request("cap:file", {"label": b"other"})
    send(letters, frames)
    assert letters.terminal(exchange).error.code is Code.UNKNOWN_ARGUMENT
    assert answer(letters, other) == ["o", 5, 0]


def test_a_callback_that_raises_on_a_cancel_holds_up_nobody(letters: Any) -> None:
    exchange = letters.connection.request("cap:shrug")
    assert answer(letters, letters.connection.request("cap:file", {"label": b"a"})) == ["a", 1, 0]
    letters.connection.cancel(exchange, "now")
    other = letters.connection.request("cap:file", {"label": b"other"})
    send(letters, [])
    assert letters.terminal(exchange).error.code is Code.CANCELLED
    assert answer(letters, other) == ["o", 5, 0]
    assert "what is a cancel?" in letters.stderr()


def test_an_argument_that_comes_twice_is_refused(letters: Any) -> None:
    exchange, frames = begun(letters, "pages")
    letters.connection.open_stream(exchange, name="pages").write(b"three")
    send(letters, frames)
    assert letters.terminal(exchange).error.code is Code.BAD_ARGUMENT
    exchange = letters.connection.request("cap:file", {"label": b"a"}, complete=False)
    letters.connection.open_stream(exchange, name="label").write(b"b")
    error = letters.terminal(exchange).error
    assert (error.code, error.argument) == (Code.BAD_ARGUMENT, "label")


def test_an_argument_that_is_gathered_and_comes_behind_a_streamed_one_is_refused(letters: Any) -> None:
    exchange, frames = begun(letters, "pages")
    letters.connection.open_stream(exchange, name="label").write(b"late")
    send(letters, frames)
    error = letters.terminal(exchange).error
    assert (error.code, error.argument) == (Code.BAD_ARGUMENT, "label")


def test_a_stream_that_began_while_another_argument_came_is_read_when_that_is_there(letters: Any) -> None:
    connection = letters.connection
    exchange = connection.request("cap:file", complete=False)
    label = connection.open_stream(exchange, name="label")
    label.write(b"la")
    letters.send()
    pages = connection.open_stream(exchange, name="pages")
    pages.write(bytes(5_000_000))  # more than the credit of a stream that nobody reads
    letters.send()
    label.write(b"bel")
    label.close()
    pages.close()
    connection.end(exchange)
    assert answer(letters, exchange) == ["l", 5, 5_000_000]


def test_streamed_arguments_come_in_any_order_and_each_as_it_comes(letters: Any) -> None:
    connection = letters.connection
    exchange = connection.request("cap:two-piles", complete=False)
    left = connection.open_stream(exchange, name="left")
    left.write(b"one")
    letters.send()
    letters.until(lambda event: isinstance(event, wire.StreamStarted))  # the handler runs, and has the left
    right = connection.open_stream(exchange, name="right")
    right.write(bytes(5_000_000))
    left.close()
    right.close()
    connection.end(exchange)
    assert answer(letters, exchange) == [3, 5_000_000]


def test_a_streamed_argument_that_is_needed_and_never_comes_is_told_at_the_end_of_the_arguments(letters: Any) -> None:
    connection = letters.connection
    exchange = connection.request("cap:two-piles", complete=False)
    left = connection.open_stream(exchange, name="left")
    left.write(b"one")
    left.close()
    connection.end(exchange)
    error = letters.terminal(exchange).error
    assert (error.code, error.argument) == (Code.MISSING_ARGUMENT, "right")


@pytest.mark.parametrize(("fails", "code"), [("ValueError", Code.HANDLER_FAILED), ("EMPTY_INPUT", Code.EMPTY_INPUT)])
def test_a_source_that_fails_is_the_end_of_the_peer_call_and_its_error(letters: Any, fails: str, code: Code) -> None:
    arguments = {"pages": b"300", "label": b"1", "asynchronous": b"true", "fails": fails.encode()}
    exchange = letters.connection.request('cap:in=media:void;out="media:json;receipt";send', arguments)
    assert letters.terminal(exchange).error.code is code
    assert any(isinstance(event, wire.CancelReceived) for event in letters.events)


def test_a_source_is_left_when_the_peer_call_is_over(letters: Any) -> None:
    arguments = {"pages": b"300", "label": b"1", "asynchronous": b"true", "fails": b"never"}
    exchange = letters.connection.request('cap:in=media:void;out="media:json;receipt";send', arguments)
    asked = letters.until(lambda event: isinstance(event, wire.StreamStarted))
    letters.connection.fail(asked.exchange, failure(Code.BAD_ARGUMENT, "enough pages"))
    assert letters.terminal(exchange).error.code is Code.BAD_ARGUMENT
    assert answer(letters, letters.connection.request("cap:file", {"label": b"a"})) == ["a", 1, 0]
    assert "never retrieved" not in letters.stderr()


def test_a_blocking_handler_that_waits_for_a_thread_is_cancelled_at_once(letters: Any) -> None:
    busy = [letters.connection.request("cap:thread") for _ in range(WORKERS)]
    waiting = letters.connection.request("cap:thread")
    assert answer(letters, letters.connection.request("cap:file", {"label": b"a"})) == ["a", 1, 0]
    letters.connection.cancel(waiting, "no thread is free")
    assert letters.terminal(waiting).error.code is Code.CANCELLED
    assert all(exchange.is_open for exchange in busy)
    for exchange in busy:
        letters.connection.cancel(exchange, "enough")
    assert {letters.terminal(exchange).error.code for exchange in busy} == {Code.CANCELLED}
