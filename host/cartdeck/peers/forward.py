"""Owns a peer call: a request that a cartridge makes, carried to the session that serves it and back.

It does not know what is said: streams, progress, logs, errors and cancel are handed on hop by hop, and ids and indices
are each connection's own.
"""

from collections.abc import Sequence
from typing import Any

from cartdeck.calls.arguments import prepare_peer
from cartdeck.peers.link import Link
from cartdeck.peers.pump import Pump
from cartdeck.request import Request
from cartdeck.router import Route
from cartdeck.sessions.session import Session
from cartdeck.switch import Switch
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import InStream, Logged, RequestReceived


class PeerSide:
    """The caller's end of a peer call: the exchange at the session whose cartridge calls. It is that exchange's owner,
    so the session tells it what the cartridge sends."""

    __slots__ = ("_pumps", "advanced_at_s", "exchange", "forward", "has_all_arguments", "heard_at_s", "session")

    is_answered = False  # what still comes for a closed exchange never gets here

    def __init__(self, session: Link, event: RequestReceived, forward: "Forward") -> None:
        exchange = event.exchange
        self.session = session
        self.exchange = exchange
        self.forward = forward
        # As the request said: the exchange may know of an END that is still to come in this batch of events.
        self.has_all_arguments = event.complete
        self.heard_at_s = self.advanced_at_s = 0.0
        self._pumps: dict[int, Pump] = {}
        exchange.owner = self

    # what the calling cartridge sends

    def on_stream(self, stream: InStream, payload: bytes | None) -> None:
        pump = self._pumps[stream.number] = Pump(stream, self.session)
        self.forward.open_argument(pump)
        if payload is not None:
            pump.put_whole(payload)

    def on_chunk(self, stream: InStream, payload: bytes) -> None:
        self._pumps[stream.number].put(payload)

    def on_stream_end(self, stream: InStream) -> None:
        self._pumps[stream.number].end()

    def on_arguments_end(self) -> None:
        self.has_all_arguments = True
        self.forward.end_arguments()

    def on_caller_gone(self, error: CartdeckError) -> None:
        """It cancelled, broke a law of the wire, or its process is gone."""
        self.forward.withdraw(error)

    # what it is sent

    def open_output(self, stream: InStream, origin: Link) -> Pump:
        out = self.session.connection.open_stream(
            self.exchange, name=stream.name, media=stream.media, is_sequence=stream.is_sequence
        )
        pump = Pump(stream, origin)
        pump.attach(out, self.session)
        return pump

    def log(self, event: Logged) -> None:
        self.session.connection.log(
            self.exchange,
            event.level,
            event.message,
            progress=event.progress,
            phase=event.phase,
            work=event.work,
            total=event.total,
        )
        self.session.flush_soon()

    def end(self, progress: float, provenance: dict[str, Any]) -> None:
        """Success; END leaves behind the outputs that are still on their way."""
        self.session.connection.end(self.exchange, progress=progress, provenance=provenance)
        self.session.flush_soon()

    def fail(self, error: CartdeckError) -> None:
        self.session.connection.fail(self.exchange, error)
        self.session.flush_soon()

    def arguments(self) -> Sequence[Pump]:
        return tuple(self._pumps.values())


class Forward(Request):
    """The far end of a peer call: the request at the session that serves it."""

    __slots__ = ("_engine", "_event", "_lost_logs", "_outputs", "_side", "_waiting_progress")

    def __init__(self, engine: Switch, session: Link, event: RequestReceived, parent: Request | None) -> None:
        super().__init__(parent)
        self._engine = engine
        self._event = event
        self._side = PeerSide(session, event, self)
        self._outputs: dict[int, Pump] = {}
        self._waiting_progress: Logged | None = None
        self._lost_logs = 0

    def submit(self) -> None:
        """Route the call and send it on. Raises what refuses it."""
        engine, event = self._engine, self._event
        route = engine.router.route_text(event.cap, event.arguments)
        prepared = prepare_peer(route.definition, route.instance, event.arguments, is_complete=event.complete)
        if self.parent is not None:
            self._refuse_cycle(route, prepared.instance)
            self.parent.peers.add(self)
        try:
            engine.submit(self, route, prepared)
        except CartdeckError:
            if self.parent is not None:
                self.parent.peers.discard(self)
            raise

    def _refuse_cycle(self, route: Route, instance: str) -> None:
        assert self.parent is not None
        chain = self.parent.chain()
        titles = [one.title for one in reversed(chain)]
        titles.append(f"{route.definition.alias} on {route.cartridge.name}")
        is_cycle = any(
            one.route is not None
            and one.route.definition.alias == route.definition.alias
            and one.key == (route.cartridge.name, instance)
            for one in chain
        )
        limit = self._engine.settings.call.peer_depth
        if is_cycle or len(titles) > limit:
            what = "calls itself through its peers" if is_cycle else f"is a chain of more than {limit} calls"
            raise failure(
                Code.PEER_CYCLE,
                f"{titles[-1]} {what}: {' → '.join(titles)}",
                details={"chain": titles},
            )

    # -- towards the session that serves

    def open_argument(self, pump: Pump) -> None:
        """An argument stream began; it is opened there as soon as the request is."""
        session, exchange = self.session, self.exchange
        if session is not None and exchange is not None:
            source = pump.source
            try:
                out = session.connection.open_stream(
                    exchange, name=source.name, media=source.media, is_sequence=source.is_sequence
                )
            except CartdeckError as error:
                self._refuse(error)
            else:
                pump.attach(out, session)

    def end_arguments(self) -> None:
        if self.session is not None and self.exchange is not None:
            self.session.connection.end(self.exchange)
            self.session.flush_soon()

    def can_be_sent_again(self) -> bool:
        return self.prepared is not None and self.prepared.is_complete  # what came as streams is gone

    def withdraw(self, error: CartdeckError) -> None:
        """The caller is gone: cancel, wherever it stands. Its own answer, if it still can have one, follows the
        terminal, or comes from the engine when there is none in time."""
        if self.is_answered:
            return
        if self.is_waiting:
            self._engine.leave(self)
            self.fail(error)
        elif self.session is not None and self.exchange is not None:
            self.session.give_up(self.exchange, error)

    def _refuse(self, error: CartdeckError) -> None:
        """One of the two connections cannot carry what the other brought: this call alone ends, on both sides."""
        if not self.is_answered and self.session is not None and self.exchange is not None:
            self.session.give_up(self.exchange, error)
        self.fail(error)

    # -- from there to the caller

    def on_opened(self) -> None:
        for pump in self._side.arguments():
            self.open_argument(pump)
        prepared = self.prepared
        if self.is_answered:
            return
        if self._side.has_all_arguments and prepared is not None and not prepared.is_complete:
            self.end_arguments()

    def on_stream(self, stream: InStream, payload: bytes | None) -> None:
        assert self.session is not None
        try:
            pump = self._side.open_output(stream, self.session)
        except CartdeckError as error:  # the caller takes fewer streams than these
            self._refuse(error)
            return
        if payload is None:
            self._outputs[stream.number] = pump
        else:
            pump.put_whole(payload)

    def on_chunk(self, stream: InStream, payload: bytes) -> None:
        self._outputs[stream.number].put(payload)

    def on_stream_end(self, stream: InStream) -> None:
        self._outputs.pop(stream.number).end()

    def on_log(self, event: Logged) -> None:
        if not self._side.session.is_blocked:
            self._flush_logs()
            self._side.log(event)
        elif event.progress is None and event.phase is None:
            # A caller that does not read must not be drowned in control frames: lines are dropped and counted.
            self._lost_logs += 1
        else:
            self._waiting_progress = event

    def _flush_logs(self) -> None:
        waiting, self._waiting_progress = self._waiting_progress, None
        if waiting is not None:
            self._side.log(waiting)
        lost, self._lost_logs = self._lost_logs, 0
        if lost:
            message = f"{lost} log lines of a peer call were not read in time and are lost"
            self._side.session.connection.log(self._side.exchange, "warning", message)

    def on_notice(self, message: str, phase: str) -> None:
        self._side.session.connection.log(self._side.exchange, "info", message, progress=0.0, phase=phase)
        self._side.session.flush_soon()

    def on_finished(self, progress: float, provenance: dict[str, Any]) -> None:
        self._flush_logs()
        try:
            self._side.end(progress, provenance)
        except CartdeckError as error:  # a provenance that fits no frame beside what this end adds
            self._side.fail(error)

    def on_failed(self, error: CartdeckError) -> None:
        self._flush_logs()
        self._side.fail(error)

    def reader_since_s(self, now_s: float) -> float | None:
        return None  # the caller is a cartridge: its own call's clocks see when it does not read


def parent_of(session: Session, event: RequestReceived) -> Request | None:
    """The request for which a cartridge makes a peer call. Raises CANCELLED when that one has ended.

    A cartridge that does not say it can mean only the one open request; with several open, the chain is unknown.
    """
    open_requests = session.requests()
    if event.parent is None:
        return open_requests[0] if len(open_requests) == 1 else None
    for request in open_requests:
        if request.exchange is not None and request.exchange.id == event.parent and not request.is_answered:
            return request
    raise failure(Code.CANCELLED, f"request {event.parent}, for which the peer call was made, has ended")
