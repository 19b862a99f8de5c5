"""A cartridge for measurements: one call of it has as many outputs as asked for, whole or in chunks.

Written with the wire's library alone, since the SDK has no reason to send a large output as a whole stream.
"""

import os
from pathlib import Path
from typing import Any

from cartdeck_protocol import wire
from cartdeck_protocol.errors import Code, failure

MANIFEST = (Path(__file__).parent / "manifest.json").read_bytes()


def answer(connection: wire.Connection, event: wire.RequestReceived) -> None:
    exchange = event.exchange
    if event.cap == "cap:effect=none":
        connection.open_stream(exchange).write(event.arguments["data"])
    else:
        given: dict[str, Any] = {name: value.decode() for name, value in event.arguments.items()}
        size = int(given.get("size", "262144"))
        block = bytes(size) if given.get("form") != "items" else wire.encode_item(bytes(16)) * (size // 18)
        for number in range(int(given.get("count", "1"))):
            stream = connection.open_stream(exchange, name=f"out-{number}", is_sequence=given.get("form") == "items")
            for _ in range(1 if given.get("form", "whole") == "whole" else 8):
                stream.write(block)
            stream.close()  # before anything has left: what fits one chunk is a whole stream
    connection.end(exchange)


def main() -> None:
    connection = wire.Connection(wire.Role.CARTRIDGE, manifest=MANIFEST, software="outputs 1.0")
    while data := os.read(0, 65536):
        for event in connection.receive(data):
            if isinstance(event, wire.RequestReceived):
                answer(connection, event)
            elif isinstance(event, wire.CancelReceived):
                connection.fail(event.exchange, failure(Code.CANCELLED, "as you like"))
        while buffers := connection.outgoing(1 << 20):
            for buffer in buffers:
                rest = memoryview(buffer)
                while rest:
                    rest = rest[os.write(1, rest) :]


main()
