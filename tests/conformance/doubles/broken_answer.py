"""Cartridges whose answers break a law: `broken_answer.py FAULT [manifest]`. Some of their frames are raw bytes."""

import os
import sys
import time
from typing import Any

from small_cartridge import Small

from cartdeck_protocol import wire
from cartdeck_protocol.errors import Code, failure


class Fails(Small):
    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        raise failure(Code.HANDLER_FAILED, "no voice today")


class NeverEnds(Small):
    """Its output goes on for as long as it gets credit."""

    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        stream = self.connection.open_stream(exchange)

        def more() -> None:
            if stream.error is None:
                stream.write(b"more" * 65536)

        stream.on_writable = more
        more()


class Trickles(Small):
    """Its output goes on for ever, a letter with each heartbeat."""

    def __init__(self) -> None:
        super().__init__()
        self._outputs: list[Any] = []

    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        self._outputs.append(self.connection.open_stream(exchange))

    def beat(self) -> None:
        super().beat()
        for stream in self._outputs:
            if stream.error is None:
                stream.write(b"a")


class Mute(Small):
    """It takes the call, and says nothing of it until it is cancelled."""

    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        pass


class IsNoText(Small):
    """Its definition says that it is."""

    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        self.connection.open_stream(exchange).write(b"\xff")
        self.connection.end(exchange)


class NamesItself(Small):
    """An output that its definition does not have."""

    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        self.connection.open_stream(exchange, name="extra").write(text)
        self.connection.end(exchange)


class ServesAnything(Small):
    def answer(self, exchange: wire.Exchange, cap: str, given: dict[str, bytes]) -> None:
        if cap in {str(one.urn) for one in self.manifest.caps}:
            super().answer(exchange, cap, given)
        else:
            self.connection.end(exchange)


class ChecksNothing(Small):
    def check(self, given: dict[str, bytes]) -> None:
        given.setdefault("text", b"")


class WrongClass(Small):
    """NO_SUCH_CAP is an error of class input."""

    def answer(self, exchange: wire.Exchange, cap: str, given: dict[str, bytes]) -> None:
        if cap in {str(one.urn) for one in self.manifest.caps}:
            super().answer(exchange, cap, given)
            return
        self.raw({1: 6, 2: exchange.id, 5: {"code": "NO_SUCH_CAP", "class": "user", "message": "what is that"}})
        self.connection.close_exchange(exchange)


class WrongIndex(Small):
    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        self.raw({1: 8, 2: exchange.id, 11: 0})
        self.raw({1: 3, 2: exchange.id, 11: 0, 14: 7, 6: text})
        exchange.close()


class EndsTwice(Small):
    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        number = exchange.id
        super().shout(exchange, text)
        self.raw({1: 4, 2: number, 5: {"progress": 1.0}})


class EndsWithOpenStream(Small):
    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        self.raw({1: 8, 2: exchange.id, 11: 0})
        self.raw({1: 4, 2: exchange.id})
        self.connection.close_exchange(exchange)


class GoesBack(Small):
    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        for progress in (0.2, 0.7, 0.4):
            self.connection.log(exchange, "progress", "on the way", progress=progress, phase="shouting")
        super().shout(exchange, text)


class Silent(Small):
    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        self.flush()
        time.sleep(1.5)
        super().shout(exchange, text)


class Prints(Small):
    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        self.flush()
        os.write(1, b"loading the shouting library, version 3\n")
        super().shout(exchange, text)


class WritesTracebacks(Small):
    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        os.write(2, b'Traceback (most recent call last):\n  File "voice.py", line 1\nValueError: hoarse\n')
        super().shout(exchange, text)


class WrongCode(Small):
    """What is wrong in a request has the code INTERNAL here."""

    def __init__(self) -> None:
        super().__init__()
        connection: Any = self.connection
        connection.damage = lambda exchange, error: connection.fail(exchange, failure(Code.INTERNAL, error.message))


class NoCredit(Small):
    """Its streams act as if they had all the credit of the world."""

    def identity(self, exchange: wire.Exchange, data: bytes) -> None:
        stream = self.connection.open_stream(exchange)
        stream.credit = 1 << 30
        stream.write(data)
        self.connection.end(exchange)


class GrantsNothing(Small):
    def grant(self, stream: wire.InStream) -> None:
        pass


class IgnoresCancel(Small):
    def on_cancel(self, exchange: wire.Exchange) -> None:
        pass


class CutsMegabytes(Small):
    def identity(self, exchange: wire.Exchange, data: bytes) -> None:
        super().identity(exchange, data[: 1 << 20])


class OneForAll(Small):
    """All requests that are open share one place for their argument."""

    def __init__(self) -> None:
        super().__init__()
        self._shared = bytearray()

    def on_event(self, event: wire.Event) -> None:
        if isinstance(event, wire.ChunkReceived):
            self._shared += event.payload
            self.grant(event.stream)
            return
        if isinstance(event, wire.ArgumentsEnded):
            for data in self.arguments[event.exchange.id].values():
                data.extend(self._shared)
        super().on_event(event)
        if isinstance(event, wire.ArgumentsEnded | wire.CancelReceived):
            self._shared.clear()


class DropsRequests(Small):
    """Of what comes at once it takes fifty, and forgets the rest."""

    def take(self, data: bytes) -> None:
        taken = 0
        for event in self.connection.receive(data):
            taken += isinstance(event, wire.RequestReceived)
            if taken <= 50 or not isinstance(event, wire.RequestReceived):
                self.on_event(event)


class ForgetsItsPeer(Small):
    """It asks a peer, and does not call it off when it is cancelled itself."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[int, tuple[wire.Exchange, bytes]] = {}

    def shout(self, exchange: wire.Exchange, text: bytes) -> None:
        peer = self.connection.request("cap:effect=none", {"data": text}, parent=exchange)
        self._asked[peer.id] = (exchange, text)

    def on_event(self, event: wire.Event) -> None:
        number = getattr(getattr(event, "exchange", None), "id", 0)
        if number not in self._asked:
            super().on_event(event)
            return
        exchange, text = self._asked[number]
        if isinstance(event, wire.Finished):
            super().shout(exchange, text)
        elif isinstance(event, wire.Failed):
            self.connection.fail(exchange, event.error)


class Hoards(Small):
    def __init__(self) -> None:
        super().__init__()
        self._kept: list[bytes] = []

    def on_request(self, event: wire.RequestReceived) -> None:
        self._kept.append(os.urandom(200_000))
        super().on_request(event)


FAULTS: dict[str, type[Small]] = {
    "6": Fails,
    "6-endless": NeverEnds,
    "6-trickle": Trickles,
    "6-mute": Mute,
    "7": NamesItself,
    "7-form": IsNoText,
    "8": ServesAnything,
    "9": ChecksNothing,
    "10": WrongClass,
    "11": WrongIndex,
    "12": EndsTwice,
    "12-open": EndsWithOpenStream,
    "13": GoesBack,
    "14": Silent,
    "16": Prints,
    "17": WritesTracebacks,
    "19": WrongCode,
    "22": NoCredit,
    "23": GrantsNothing,
    "24": IgnoresCancel,
    "25": CutsMegabytes,
    "26": OneForAll,
    "27": DropsRequests,
    "28": ForgetsItsPeer,
    "30": Hoards,
}
fault = FAULTS[sys.argv.pop(1)]
fault().run()
