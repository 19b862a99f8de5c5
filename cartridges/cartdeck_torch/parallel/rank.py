"""Owns a rank's side: what the leader asks, done one after the other by the main thread, and answered.

It does not know torch; what it calls does.
"""

import os
import sys
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import ConnectionDamaged, Exchange, RequestReceived, Role
from cartdeck_sdk.guard import FramePipes
from cartdeck_torch.device import Meaning, meaning_of
from cartdeck_torch.parallel.link import Link
from cartdeck_torch.parallel.work import COMPUTE, LOAD, PREPARE, START, RankWork

_FAILED = 1


def serve(pipes: FramePipes) -> None:
    """Serves the leader. Leaves with 0 when it closes the pipe, with 1 behind the first failure: the group is of no use
    then. Does not return."""
    link = Link(Role.CARTRIDGE, read_fd=pipes.read_fd, write_fd=pipes.write_fd)
    requests: SimpleQueue[RequestReceived] = SimpleQueue()
    Thread(target=lambda: _read(link, requests), name="leader", daemon=True).start()
    rank = _Rank()
    while True:
        request = requests.get()
        exchange = request.exchange
        try:
            rank.answer(request, lambda part, exchange=exchange: _report(link, exchange, part))
        except BaseException as error:  # it goes to the leader, whatever it is
            if not isinstance(error, CartdeckError):
                traceback.print_exc()
            told = _typed(error)
            _send(link, lambda connection, exchange=exchange, told=told: connection.fail(exchange, told))
            _leave(_FAILED)
        _send(link, lambda connection, exchange=exchange: connection.end(exchange))


class _Rank:
    """The one share of a model that this process holds."""

    def __init__(self) -> None:
        self._device: Any = None
        self._model: Any = None

    def answer(self, request: RequestReceived, report: Callable[[float], None]) -> None:
        from cartdeck_torch.engine import rank_model  # noqa: PLC0415 - heavy: the first request waits for it

        if request.cap == PREPARE:
            return
        if request.cap == START:
            self._device = rank_model.open_rank_device(RankWork.from_bytes(request.arguments["work"]))
        elif request.cap == LOAD:
            work = RankWork.from_bytes(request.arguments["work"])
            self._model = rank_model.RankModel(work, self._device, report=report)
        elif request.cap == COMPUTE:
            self._model.compute()
        else:
            raise failure(Code.NO_SUCH_CAP, f"a rank does not know {request.cap}")


def _read(link: Link, requests: "SimpleQueue[RequestReceived]") -> None:
    for event in link.events():
        if isinstance(event, RequestReceived):
            requests.put(event)
        elif isinstance(event, ConnectionDamaged):
            print(f"the leader's frames are damaged: {event.error}", file=sys.stderr)
            _leave(_FAILED)
    _leave(0)


def _report(link: Link, exchange: Exchange, part: float) -> None:
    _send(link, lambda connection: connection.log(exchange, "progress", "Loading", progress=part))


def _send(link: Link, command: Callable[[Any], object]) -> None:
    try:
        link.send(command)
    except OSError:  # the leader is gone
        _leave(0)


def _leave(code: int) -> None:
    """At once: the main thread may wait for other ranks inside the library."""
    sys.stderr.flush()
    os._exit(code)


def _typed(error: BaseException) -> CartdeckError:
    if isinstance(error, CartdeckError):
        return error
    words = (str(error).strip() or type(error).__name__).splitlines()[0][:500]
    code = Code.OUT_OF_MEMORY if meaning_of(error) is Meaning.OUT_OF_MEMORY else Code.DEVICE_FAULT
    return failure(code, words, details={"error": type(error).__name__})
