"""A cartridge for tests that breaks the wire: `program.py MODE NAME`, where MODE says when and how.

It speaks frames with the library alone, so that it can stop speaking them at any point.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from cartdeck_protocol import wire
from cartdeck_protocol.wire.frames import encode
from cartdeck_protocol.wire.templates import encode_chunk

MODE, NAME = sys.argv[1:3]
ASKED: list[wire.Exchange] = []
"""Requests that wait for the answer of a peer."""
MANIFEST = (Path(__file__).parent / "manifest.json").read_bytes()


def send(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def flush(connection: wire.Connection) -> None:
    for buffer in connection.outgoing():
        send(bytes(buffer))


def garbage() -> bytes | None:
    """What goes out instead of a frame, by mode; None for the modes that send frames."""
    return {
        "four-gigabytes": b"\xff\xff\xff\xff\x83\x01\x03",
        "no-frame": bytes.fromhex("9ffd74f7dd74fffdbd") * 3,
        "hundred-megabytes": (100 * 1024 * 1024).to_bytes(4, "big") + b"\x85\x01\x03" + b"\0" * 64,
        "text": b"Loading weights...\n",
        "cut": (200).to_bytes(4, "big") + b"\x83\x01\x04",
    }.get(MODE.removeprefix("start-"))


def answer(connection: wire.Connection, event: wire.RequestReceived) -> None:
    exchange = event.exchange
    if event.cap != "cap:effect=none":
        data = garbage()
        if data is not None:
            send(data)
            if MODE == "cut":
                sys.exit(0)
            time.sleep(600)
        if MODE == "unknown-stream":
            send(wire_chunk(exchange.id, 7))
            return
        if MODE == "log-without-message":
            log = {1: wire.Kind.LOG, 2: exchange.id, 5: {"level": "info"}}
            connection.end(exchange)
            send(encode(log) + b"".join(bytes(part) for part in connection.outgoing()))
            return
        if MODE == "cut-item":
            stream = connection.open_stream(exchange, is_sequence=True)
            stream.write(b"\xa5whole\xa5cut")
        if MODE == "two-outputs":
            connection.open_stream(exchange).write(b"one")
            connection.open_stream(exchange, name="more").write(b"two")
        if MODE == "full-provenance":
            send(full_end(exchange.id))
            return
        if MODE == "one-stream" and event.arguments.get("data") == b"ask":
            ASKED.append(exchange)
            connection.request("cap:echo;two-outputs", {"data": b"x"}, parent=exchange)
            flush(connection)
            return
    else:
        stream = connection.open_stream(exchange)
        stream.write(b"wrong" if MODE == "identity" else event.arguments["data"])
    connection.end(exchange)
    flush(connection)


def full_end(request_id: int) -> bytes:
    """An END as large as a frame may be, that says no progress: whoever adds one cannot hand it on."""
    from cartdeck_protocol.wire.frames import encode

    room = 65_536 - len(encode({1: 4, 2: request_id, 5: {"provenance": {"a": ""}}})) + 4
    return encode({1: 4, 2: request_id, 5: {"provenance": {"a": "x" * (room - 2)}}})


def wire_chunk(request_id: int, stream: int) -> bytes:
    return b"".join(bytes(part) for part in encode_chunk(request_id, stream, 0, b"x"))


def main() -> None:
    data = garbage()
    if MODE.startswith("start-") and data is not None:
        send(data)
    if MODE == "silent":
        time.sleep(600)
    if MODE == "talkative":
        for _ in range(1000):
            os.write(2, b"still loading\n")
            time.sleep(0.05)
    if MODE == "dies":
        os.write(2, b"cannot find libexample.so\n")
        sys.exit(3)
    manifest = MANIFEST
    if MODE == "manifest":
        manifest = manifest.replace(b'"name": "%s"' % NAME.encode(), b'"name": "other"')
    limits = wire.Limits(streams_per_request=1) if MODE == "one-stream" else wire.Limits()
    connection = wire.Connection(wire.Role.CARTRIDGE, manifest=manifest, software="hostile 1.0", limits=limits)
    while data := os.read(0, 65536):
        events: list[Any] = connection.receive(data)
        if MODE == "version" and any(isinstance(event, wire.HelloReceived) for event in events):
            hello = b"".join(bytes(part) for part in connection.outgoing())
            send(hello.replace(b"\xa8protocol\x01", b"\xa8protocol\x63"))
        flush(connection)
        for event in events:
            if isinstance(event, wire.RequestReceived):
                answer(connection, event)
            elif isinstance(event, wire.Failed):
                connection.fail(ASKED.pop(), event.error)
                flush(connection)


main()
