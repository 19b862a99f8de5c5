"""The clocks of a request: silence, no advance, a reader that does not read; and time in which the loop stood."""

from typing import Any

import pytest

from cartdeck.request import Request
from cartdeck.sessions.clock import Clock
from cartdeck.sessions.overdue import overdue
from cartdeck.settings import CallSettings
from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_protocol.wire import Exchange, InStream, Logged

LIMITS = CallSettings(silence_s=10.0, stall_s=50.0, reader_s=30.0)
EXCHANGE = Exchange(2, is_requester=True)


class Listener(Request):
    """A request whose answers nobody wants."""

    __slots__ = ("reader_since",)

    def __init__(self, parent: Request | None = None) -> None:
        super().__init__(parent)
        self.reader_since: float | None = None
        if parent is not None:
            parent.peers.add(self)

    def reader_since_s(self, now_s: float) -> float | None:
        return self.reader_since

    def on_opened(self) -> None: ...
    def on_stream(self, stream: InStream, payload: bytes | None) -> None: ...
    def on_chunk(self, stream: InStream, payload: bytes) -> None: ...
    def on_stream_end(self, stream: InStream) -> None: ...
    def on_log(self, event: Logged) -> None: ...
    def on_notice(self, message: str, phase: str) -> None: ...
    def on_finished(self, progress: float, provenance: dict[str, Any]) -> None: ...
    def on_failed(self, error: CartdeckError) -> None: ...


def code_of(request: Request, now_s: float) -> Code | None:
    error = overdue(request, now_s, LIMITS)
    return None if error is None else error.code


def test_silence_ends_a_call_and_any_frame_breaks_it() -> None:
    request = Listener()
    assert code_of(request, 10.0) is None
    assert code_of(request, 10.1) is Code.TIMED_OUT
    request.heard_at_s = 9.0
    assert code_of(request, 18.0) is None


def test_a_keepalive_proves_alive_and_not_advancing() -> None:
    request = Listener()
    for now_s in range(0, 60, 5):
        request.heard_at_s = float(now_s)
        request.note_progress(Logged(EXCHANGE, "info", "loading", 0.1, "loading", 7, 10), float(now_s))
    assert request.advanced_at_s == 0.0
    assert code_of(request, 50.0) is None
    assert code_of(request, 55.0) is Code.STALLED


@pytest.mark.parametrize(
    "event",
    [
        Logged(EXCHANGE, "info", "", 0.2, "loading", 7, 10),
        Logged(EXCHANGE, "info", "", 0.1, "loading", 8, 10),
        Logged(EXCHANGE, "info", "", 0.1, "inference", 0, 10),
        Logged(EXCHANGE, "info", "", None, "inference", None, None),
    ],
    ids=["more progress", "more work", "a new phase", "a phase alone"],
)
def test_more_progress_more_work_or_a_new_phase_is_an_advance(event: Logged) -> None:
    request = Listener()
    request.note_progress(Logged(EXCHANGE, "info", "", 0.1, "loading", 7, 10), 1.0)
    request.note_progress(event, 2.0)
    assert request.advanced_at_s == 2.0


def test_work_that_falls_back_within_a_phase_is_no_advance_until_it_passes_its_mark() -> None:
    request = Listener()
    request.note_progress(Logged(EXCHANGE, "info", "", None, "loading", 7, 10), 1.0)
    request.note_progress(Logged(EXCHANGE, "info", "", None, "loading", 3, 10), 2.0)
    assert request.advanced_at_s == 1.0
    request.note_progress(Logged(EXCHANGE, "info", "", None, "loading", 8, 10), 3.0)
    assert request.advanced_at_s == 3.0


def test_a_peer_calls_frames_count_for_all_that_wait_for_it() -> None:
    grandparent = Listener()
    parent = Listener(grandparent)
    peer = Listener(parent)
    peer.heard_at_s = peer.advanced_at_s = 95.0
    assert code_of(grandparent, 100.0) is None
    assert code_of(parent, 100.0) is None
    peer.is_waiting = True  # in a queue there are no frames, and nobody is to blame
    assert code_of(grandparent, 500.0) is None
    peer.fail(CartdeckError(Code.CANCELLED, ""))
    assert code_of(parent, 106.0) is Code.TIMED_OUT


def test_while_the_reader_holds_a_call_up_the_readers_clock_runs() -> None:
    request = Listener()
    request.reader_since = 5.0
    assert code_of(request, 35.0) is None
    assert code_of(request, 35.1) is Code.READER_STALLED
    request.reader_since = None
    assert code_of(request, 40.0) is None  # the cartridge's clock stood meanwhile
    assert code_of(request, 46.0) is Code.TIMED_OUT


def test_time_in_which_the_loop_stood_counts_two_ticks_at_most() -> None:
    clock = Clock(100.0, tick_s=1.0)
    assert clock.tick(101.0) == pytest.approx(1.0)
    assert clock.tick(500.0) == pytest.approx(3.0)  # the host was stopped, or a call blocked its loop
    assert clock.tick(501.0) == pytest.approx(4.0)
    assert clock.tick(500.5) == pytest.approx(4.0)
