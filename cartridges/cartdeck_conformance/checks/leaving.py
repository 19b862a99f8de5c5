"""Owns the check of the end: at the end of stdin, or at SIGTERM, the process is gone, with all that it started."""

import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from cartdeck_conformance import catalogue
from cartdeck_conformance.bench import SMALL, Bench, open_identity
from cartdeck_conformance.conversation import Conversation
from cartdeck_conformance.sample_call import SampledCap

_LOOK_S: Final = 0.05


def host_death(bench: Bench) -> None:
    """One process for each moment."""
    moments: list[tuple[str, Callable[[Conversation], object]]] = [
        ("stdin ended before HELLO", lambda _: None),
        ("stdin ended while it was idle", lambda talk: talk.greet()),
        ("stdin ended in the middle of an input", _in_the_input),
        ("stdin ended while an output waited for credit", _in_the_output),
    ]
    for one in bench.quick[:1] if bench.is_fast else bench.working:
        moments.append((f"stdin ended while it worked on {one.alias}", partial(_in_the_work, one)))
    for what, come_there in moments:
        with Conversation(bench.setup, limits=SMALL) as talk:
            talk.watch.is_deaf = True
            come_there(talk)
            talk.listen(_LOOK_S)
            started = time.monotonic()
            talk.process.close_stdin()
            _gone(bench, talk, what)
            bench.figures["exit_s"] = max(bench.figures.get("exit_s", 0.0), time.monotonic() - started)
    with Conversation(bench.setup) as talk:
        talk.greet()
        talk.process.terminate()
        _gone(bench, talk, "SIGTERM came")


def _in_the_work(one: SampledCap, talk: Conversation) -> None:
    talk.greet()
    one.begin(talk)


def _in_the_input(talk: Conversation) -> None:
    talk.greet()
    call = open_identity(talk)
    talk.connection.open_stream(call.exchange, name="data").write(b"half of it")


def _in_the_output(talk: Conversation) -> None:
    talk.greet()
    call = open_identity(talk, takes=False)
    talk.connection.open_stream(call.exchange, name="data").write(secrets.token_bytes(32 * 1024))
    talk.connection.end(call.exchange)
    talk.wait(lambda: call.chunks >= SMALL.initial_credit, talk.durations.quiet_s * 4)


def _gone(bench: Bench, talk: Conversation, what: str) -> None:
    tell, exit_s = bench.findings.tell, bench.durations.exit_s
    if not talk.process.wait(exit_s):
        tell(catalogue.HOST_DEATH, f"{what}: it had not left after {exit_s:g} s")
        return
    end = time.monotonic() + exit_s
    while (left := talk.process.leftovers()) and time.monotonic() < end:
        time.sleep(_LOOK_S)
    if left:
        tell(catalogue.HOST_DEATH, f"{what}: it left {len(left)} processes behind that it had started")
