"""A well-behaved cartridge in one thread, written with the wire's library alone: what the broken ones are made from.

`python PROGRAM manifest` prints its manifest; without an argument it serves.
"""

import os
import select
import sys
import time
from pathlib import Path
from typing import Any

from cartdeck_protocol import wire
from cartdeck_protocol.caps import Manifest, build_manifest
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire.frames import encode

SHOUT = """
urn = 'cap:in="media:enc=utf-8;text";out="media:enc=utf-8;loud-text";shout'
title = "Shout"
documentation = "The text in capitals."
[arguments.text]
is_main = true
required = true
documentation = "Any text."
[arguments.times]
media = "media:integer;numeric;times"
default = 1
minimum = 1
documentation = "How often."
[output]
documentation = "The same text, louder."
"""
CARTRIDGE = """
name = "small"
version = "1.0.0"
title = "Small"
description = "Shouts."
caps = ["shout"]
capacity = 40
[samples.shout]
text = "hello"
"""


class Small:
    """One process. A request is answered when all its arguments are there."""

    def __init__(self) -> None:
        self.manifest: Manifest = build_manifest(CARTRIDGE, lambda alias: SHOUT if alias == "shout" else None)
        self.connection = wire.Connection(wire.Role.CARTRIDGE, manifest=self.manifest.to_json(), software="small 1.0.0")
        self.heartbeat_s = float(os.environ.get("CARTDECK_HEARTBEAT_S", "5"))
        self.next_beat_s = time.monotonic() + self.heartbeat_s
        self.waiting = bytearray()
        self.arguments: dict[int, dict[str, bytearray]] = {}

    # bytes

    def run(self) -> None:
        if sys.argv[1:] == ["manifest"]:
            sys.stdout.write(self.printed_manifest().to_json().decode())
            return
        os.set_blocking(1, False)
        self.begin()
        while True:
            self.flush()
            self.beat()
            self.flush()
            ready, _, _ = select.select([0], [1] if self.waiting else [], [], self.heartbeat_s / 4)
            if ready:
                data = os.read(0, 65536)
                if not data:
                    self.leave()
                self.take(data)

    def begin(self) -> None:
        pass

    def printed_manifest(self) -> Manifest:
        return self.manifest

    def leave(self) -> None:
        os._exit(0)

    def take(self, data: bytes) -> None:
        for event in self.connection.receive(data):
            self.on_event(event)

    def flush(self) -> None:
        for buffer in self.connection.outgoing():
            self.waiting += buffer
        try:
            while self.waiting:
                del self.waiting[: os.write(1, self.waiting)]
        except BlockingIOError:
            pass

    def raw(self, fields: dict[int, Any]) -> None:
        """A frame as it is, behind all that was said before."""
        for buffer in self.connection.outgoing():
            self.waiting += buffer
        self.waiting += encode(fields)

    def beat(self) -> None:
        if self.connection.hello_sent and time.monotonic() >= self.next_beat_s:
            self.next_beat_s = time.monotonic() + self.heartbeat_s
            connection = self.connection
            self.waiting += wire.encode_heartbeat(
                rss_bytes=self.rss_bytes(),
                open_requests=len(connection.exchanges),
                stragglers=connection.stragglers,
                strays=connection.strays,
            )

    @staticmethod
    def rss_bytes() -> int:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    # events

    def on_event(self, event: wire.Event) -> None:
        match event:
            case wire.ConnectionDamaged():
                self.on_damage(event.error)
            case wire.RequestReceived():
                self.on_request(event)
            case wire.StreamStarted():
                self.arguments[event.exchange.id][event.stream.name] = bytearray(event.payload or b"")
            case wire.ChunkReceived():
                self.arguments[event.exchange.id][event.stream.name] += event.payload
                self.grant(event.stream)
            case wire.ArgumentsEnded():
                self.complete(event.exchange)
            case wire.CancelReceived():
                self.on_cancel(event.exchange)
            case _:
                pass

    def on_damage(self, error: CartdeckError) -> None:
        self.connection.refuse(error)
        self.flush()
        os._exit(1)

    def on_request(self, event: wire.RequestReceived) -> None:
        exchange = event.exchange
        self.arguments[exchange.id] = {name: bytearray(data) for name, data in event.arguments.items()}
        exchange.owner = event.cap
        if event.complete:
            self.complete(exchange)

    def grant(self, stream: wire.InStream) -> None:
        stream.take()
        stream.settle()

    def on_cancel(self, exchange: wire.Exchange) -> None:
        self.connection.fail(exchange, failure(Code.CANCELLED, "as you like"))

    def complete(self, exchange: wire.Exchange) -> None:
        given = {name: bytes(data) for name, data in self.arguments.pop(exchange.id).items()}
        try:
            self.answer(exchange, exchange.owner, given)
        except CartdeckError as error:
            self.connection.fail(exchange, error)

    def answer(self, exchange: wire.Exchange, cap: str, given: dict[str, bytes]) -> None:
        definition = next((one for one in self.manifest.caps if str(one.urn) == cap), None)
        if definition is None:
            raise failure(Code.NO_SUCH_CAP, f"{cap} is not served here")
        if definition.alias == "identity":
            self.identity(exchange, given.get("data", b""))
        elif definition.alias == "discard":
            self.discard(exchange)
        else:
            self.check(given)
            self.shout(exchange, given["text"])

    def check(self, given: dict[str, bytes]) -> None:
        from cartdeck_protocol.caps import decode_value

        definition = self.manifest.cap("shout")
        for name, data in given.items():
            decode_value(definition.argument(name), data)
        definition.check_complete(given)

    def identity(self, exchange: wire.Exchange, data: bytes) -> None:
        self.connection.open_stream(exchange).write(data)
        self.connection.end(exchange)

    def discard(self, exchange: wire.Exchange) -> None:
        self.connection.end(exchange)

    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        self.connection.open_stream(exchange).write(text.upper())
        self.connection.end(exchange)


if __name__ == "__main__":
    Small().run()
