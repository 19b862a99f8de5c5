"""Cartridges that go wrong at their start, or in what every cartridge serves: `broken_start.py FAULT [manifest]`."""

import sys
import time
from dataclasses import replace

from small_cartridge import Small

from cartdeck_protocol import wire
from cartdeck_protocol.caps import Manifest


class SpeaksFirst(Small):
    def begin(self) -> None:
        self.connection.send_hello()


class StartsLate(Small):
    def begin(self) -> None:
        time.sleep(0.6)


class Drifted(Small):
    def printed_manifest(self) -> Manifest:
        return replace(self.manifest, version="0.9.0")


class Reverses(Small):
    def identity(self, exchange: wire.Exchange, data: bytes) -> None:
        super().identity(exchange, data[::-1])


class DiscardTalks(Small):
    def discard(self, exchange: wire.Exchange) -> None:
        self.connection.open_stream(exchange).write(b"thank you")
        self.connection.end(exchange)


class NoHeartbeat(Small):
    def beat(self) -> None:
        pass


class CountsNothing(Small):
    def beat(self) -> None:
        self.connection.stragglers = self.connection.strays = 0
        super().beat()


class StaysAtDamage(Small):
    """The connection is finished, and the process waits for better times."""

    def on_damage(self, error: Exception) -> None:
        self.flush()
        time.sleep(600)


class StaysAtEnd(Small):
    def leave(self) -> None:
        time.sleep(600)


class TakesOneByteForNothing(Small):
    """What comes alone is taken for noise."""

    def take(self, data: bytes) -> None:
        if len(data) > 1:
            super().take(data)


FAULTS: dict[str, type[Small]] = {
    "1": SpeaksFirst,
    "2": StartsLate,
    "3": Drifted,
    "4": Reverses,
    "5": DiscardTalks,
    "15": NoHeartbeat,
    "18": StaysAtDamage,
    "20": CountsNothing,
    "21": TakesOneByteForNothing,
    "29": StaysAtEnd,
}
fault = FAULTS[sys.argv.pop(1)]
fault().run()
