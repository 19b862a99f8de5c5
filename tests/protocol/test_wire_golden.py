"""One frame of each kind as it lies on the wire: a change of the bytes is a change of the protocol.

`python tests/protocol/test_wire_golden.py` writes the file anew; a new file goes with a new protocol version, or with a
reason why the old bytes are still read.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgpack
import pytest

from cartdeck_protocol import wire
from cartdeck_protocol.errors import CartdeckError, Code, failure

GOLDEN = Path(__file__).parents[1] / "data" / "wire_golden.json"


def conversation() -> Iterator[tuple[str, wire.Connection, wire.Connection]]:
    """A short life of two ends: after each step, what it is called, who speaks and who hears."""
    host = wire.Connection(wire.Role.HOST, software="host 1")
    cartridge = wire.Connection(wire.Role.CARTRIDGE, manifest=b'{"name": "example"}', software="example 1")
    host.send_hello()
    yield "the host greets", host, cartridge
    yield "the cartridge greets", cartridge, host

    small = host.request("cap:op=echo", {"data": b"hi"})
    yield "a small call: its arguments are in the request", host, cartridge
    served = cartridge.exchanges[small.id]
    answer = cartridge.open_stream(served)
    answer.write(b"hi")
    cartridge.end(served, provenance={"seed": 7})
    yield "its answer: a whole stream, and END", cartridge, host

    large = host.request("cap:op=echo", complete=False)
    argument = host.open_stream(large, name="data", media="media:enc=utf-8")
    argument.write(b"one")
    yield "a call whose argument is a stream", host, cartridge
    received = cartridge.exchanges[large.id].in_streams[0]
    received.take()
    received.settle()
    yield "the first chunk was taken", cartridge, host
    argument.write(b"two")
    host.end(large)
    yield "the rest of the argument, and END", host, cartridge
    served = cartridge.exchanges[large.id]
    cartridge.log(served, "progress", "decoding", progress=0.5, phase="inference", work=8, total=16)
    cartridge.open_stream(served, name="events", is_sequence=True).write(wire.encode_item({"n": 1}))
    yield "progress, and the first item of a sequence", cartridge, host
    cartridge.request("cap:op=peer", parent=served)
    yield "a peer call for that request", cartridge, host
    host.fail(host.exchanges[1], failure(Code.MODEL_NOT_FOUND, "no model x", argument="model", details={"near": ["y"]}))
    yield "the peer call fails", host, cartridge
    host.cancel(large, "enough")
    yield "the caller gives up", host, cartridge
    cartridge.fail(served, failure(Code.CANCELLED, "the caller cancelled: enough"))
    yield "the terminal of the call that was cancelled", cartridge, host


def record() -> list[dict[str, Any]]:
    """The conversation as the golden file holds it."""
    found: list[dict[str, Any]] = []
    for step, speaker, hearer in conversation():
        data = b"".join(speaker.outgoing())
        while data:
            size = 4 + int.from_bytes(data[:4], "big")
            found.append(entry(step, speaker.role, data[:size], hearer.receive(data[:size])))
            data = data[size:]
    beat = wire.encode_heartbeat(rss_bytes=1 << 20, open_requests=1, stragglers=0, strays=0)
    host = wire.Connection(wire.Role.HOST)
    host.receive(bytes.fromhex(found[1]["hex"]))
    found.append(entry("a heartbeat", wire.Role.CARTRIDGE, beat, host.receive(beat)))
    return found


def entry(step: str, sender: wire.Role, data: bytes, heard: list[Any]) -> dict[str, Any]:
    assert len(heard) <= 1
    return {
        "step": step,
        "from": sender.name.lower(),
        "hex": data.hex(),
        "frame": decoded(data),
        "event": plain(heard[0]) if heard else None,
    }


def decoded(data: bytes) -> dict[str, Any]:
    """The map in a frame, with the names of its keys, by msgpack alone."""
    frame = msgpack.unpackb(data[4:], strict_map_key=False)
    named = {wire.Key(key).name.lower(): plain(value) for key, value in frame.items()}
    return {**named, "kind": wire.Kind(frame[1]).name}


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    for kind, short in SHORT.items():
        if isinstance(value, kind):
            return short(value)
    return value


SHORT: dict[type, Callable[[Any], Any]] = {
    bytes: lambda data: {"hex": data.hex()},
    frozenset: sorted,
    wire.Exchange: lambda exchange: exchange.id,
    wire.InStream: lambda stream: {name: getattr(stream, name) for name in ("number", "name", "media", "is_sequence")},
    CartdeckError: lambda error: plain(error.to_wire()),
}


def golden() -> list[dict[str, Any]]:
    return json.loads(GOLDEN.read_text("utf-8"))["frames"]


def test_the_encoder_makes_the_golden_bytes_and_the_decoder_gives_their_meaning() -> None:
    assert record() == golden()


def test_the_golden_bytes_mean_what_the_file_says_to_any_msgpack() -> None:
    for one in golden():
        assert decoded(bytes.fromhex(one["hex"])) == one["frame"], one["step"]


def test_there_is_a_golden_frame_of_each_kind() -> None:
    assert {one["frame"]["kind"] for one in golden()} == {kind.name for kind in wire.Kind}


@pytest.mark.parametrize("role", wire.Role)
def test_a_golden_conversation_is_heard_in_one_piece_and_byte_by_byte_alike(role: wire.Role) -> None:
    heard = [one for one in golden() if one["from"] != role.name.lower()]
    data = bytes.fromhex("".join(one["hex"] for one in heard))
    results = []
    for size in (1, len(data)):
        end = wire.Connection(role)
        if role is wire.Role.HOST:
            for complete in (True, False):
                exchange = end.request("cap:op=echo", complete=complete)
            end.open_stream(exchange)
            end.outgoing()
        results.append(
            [plain(event) for at in range(0, len(data), size) for event in end.receive(data[at : at + size])]
        )
    assert results[0] == results[1]
    assert not [event for event in results[0] if event["type"].endswith("Damaged")]


if __name__ == "__main__":
    about = "One frame of each kind, made by tests/protocol/test_wire_golden.py, which compares them."
    GOLDEN.write_text(json.dumps({"about": about, "frames": record()}, indent=1, ensure_ascii=False) + "\n", "utf-8")
