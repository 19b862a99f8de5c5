"""A cartridge for tests, `program.py [MOMENT [DEATH]]`, written with the wire's library alone.

MOMENT says where its start goes wrong, DEATH how it ends there: a signal's name or an exit code. With a DEATH it dies
once, and works when it is started again. What a call asks for by `how` goes wrong in that call.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

MOMENT, DEATH = [*sys.argv[1:], "", ""][:2]
FOLDER = Path(__file__).parent
OUTPUTS = 30
WINDOW = 4  # what the host of these tests grants at first


def die() -> NoReturn:
    """Once: the file remembers it."""
    (FOLDER / "died").touch()
    os.write(2, b"last words\n")
    if DEATH.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[DEATH])
    os._exit(int(DEATH))


def dies_at(moment: str) -> bool:
    return moment == MOMENT and bool(DEATH) and not (FOLDER / "died").exists()


def linger() -> NoReturn:
    time.sleep(600)
    os._exit(0)


with (FOLDER / "starts").open("a", encoding="ascii") as starts:
    starts.write(f"{os.getpid()}\n")
if dies_at("spawn"):
    die()

from cartdeck_protocol import wire  # noqa: E402  # a death at the spawn comes before
from cartdeck_protocol.errors import Code, failure  # noqa: E402  # the same
from cartdeck_protocol.wire.frames import encode  # noqa: E402  # the same
from cartdeck_protocol.wire.templates import encode_chunk  # noqa: E402  # the same

connection = wire.Connection(
    wire.Role.CARTRIDGE, manifest=(FOLDER / "manifest.json").read_bytes(), software="foreign 1.0"
)
ignored: set[int] = set()
"""Requests whose CANCEL is not answered."""


def send(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def frame(kind: int, number: int, **fields: Any) -> None:
    keys = {
        "meta": 5, "payload": 6, "cap": 10, "stream": 11, "media": 12, "count": 15, "sequence": 17, "credit": 19,
        "name": 21,
    }  # fmt: skip  # a list to scan
    send(encode({1: kind, 2: number} | {keys[name]: value for name, value in fields.items()}))


def chunk(number: int, stream: int, index: int, data: bytes = b"x") -> None:
    send(b"".join(bytes(part) for part in encode_chunk(number, stream, index, data)))


def flush() -> None:
    for buffer in connection.outgoing():
        send(bytes(buffer))


# -- what a call may ask for: `number` is its request, the stream that is used is 0


def second_start(number: int) -> None:
    frame(8, number, stream=0, media="media:")
    frame(8, number, stream=0, media="media:")


def wrong_index(number: int) -> None:
    frame(8, number, stream=0, media="media:")
    chunk(number, 0, 5)


def wrong_count(number: int) -> None:
    frame(8, number, stream=0, media="media:")
    chunk(number, 0, 0)
    frame(9, number, stream=0, count=9)


def chunk_after_end(number: int) -> None:
    frame(8, number, stream=0, media="media:")
    frame(9, number, stream=0, count=0)
    chunk(number, 0, 0)


def beyond_window(number: int) -> None:
    frame(8, number, stream=0, media="media:")
    # in one write, so that no credit can come between
    send(b"".join(bytes(encode_chunk(number, 0, index, b"x")[0]) for index in range(WINDOW + 1)))


def endless_item(number: int) -> None:
    frame(8, number, stream=0, media="media:", sequence=True)
    for index in range(WINDOW):
        chunk(number, 0, index, b"x" * 40_000 if index else b"\xc6\xff\xff\xff\xff")


def end_with_open_stream(number: int) -> None:
    frame(8, number, stream=0, media="media:")
    frame(4, number, meta={"progress": 1.0})


def end_twice(number: int) -> None:
    frame(8, number, stream=0, media="media:", payload=b"once")
    frame(4, number, meta={"progress": 1.0})
    frame(4, number, meta={"progress": 1.0})
    frame(6, number, meta={"code": "INTERNAL", "class": "internal", "message": "an error behind the end"})


def other_ids(number: int) -> None:
    for other in range(number + 1000, number + 1020, 2):
        frame(5, other, meta={"level": "info", "message": "who is this"})
        frame(4, other, meta={"progress": 1.0})


def lower_request_id(number: int) -> None:
    frame(1, 3, cap="cap:echo", meta={"complete": True})
    frame(1, 1, cap="cap:echo", meta={"complete": True})


def drip(number: int) -> None:
    data = encode({1: 8, 2: number, 11: 0, 12: "media:", 6: b"dripped"})
    for place in range(len(data)):
        send(data[place : place + 1])
        time.sleep(0.001)
    frame(4, number, meta={"progress": 1.0})


def odd_progress(number: int) -> None:
    told = [0.5, float("nan"), float("inf"), -1.0, 2.0, 0.25, 0.75]
    for place, progress in enumerate(told):
        frame(5, number, meta={"level": "progress", "message": str(place), "progress": progress})
        time.sleep(0.02)
    frame(4, number, meta={"progress": 1.0})


def many_outputs(number: int) -> None:
    """Right, and more than a slow reader's window: what comes whole needs no credit."""
    for stream in range(OUTPUTS):
        frame(8, number, stream=stream, name=f"out-{stream}", payload=bytes((stream,)) * 60_000)
    frame(4, number, meta={"progress": 1.0})


def low_end(number: int) -> None:
    frame(5, number, meta={"level": "progress", "message": "almost", "progress": 0.9})
    frame(4, number, meta={"progress": 0.25})


def ignore_cancel(number: int) -> None:
    ignored.add(number)


def grandchild(number: int) -> None:
    import subprocess

    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    frame(8, number, stream=0, media="media:", payload=str(child.pid).encode())
    frame(4, number, meta={"progress": 1.0})


MISDEEDS: dict[str, Callable[[int], None]] = {
    "second start": second_start,
    "wrong index": wrong_index,
    "wrong count": wrong_count,
    "chunk after end": chunk_after_end,
    "beyond window": beyond_window,
    "endless item": endless_item,
    "end with open stream": end_with_open_stream,
    "end twice": end_twice,
    "other ids": other_ids,
    "unknown kind": lambda number: frame(99, number),
    "second hello": lambda _number: frame(0, 0, meta={}),
    "even request id": lambda _number: frame(1, 1000, cap="cap:echo", meta={"complete": True}),
    "lower request id": lower_request_id,
    "boolean for a number": lambda number: frame(9, number, stream=0, count=True),
    "half frame": lambda _number: send((4000).to_bytes(4, "big") + b"\x85\x01\x03"),
    "stop reading": lambda _number: linger(),
    "drip": drip,
    "odd progress": odd_progress,
    "many outputs": many_outputs,
    "low end": low_end,
    "ignore cancel": ignore_cancel,
    "grandchild": grandchild,
    "silence": lambda _number: None,
    "die": lambda _number: os._exit(1),
}


def answer(event: wire.RequestReceived) -> None:
    exchange = event.exchange
    if event.cap == "cap:effect=none":
        if dies_at("identity"):
            die()
        if MOMENT == "no identity":
            return
        if MOMENT == "identity under another id":
            frame(8, exchange.id + 2, stream=0, media="media:", payload=event.arguments["data"])
            frame(4, exchange.id + 2, meta={"progress": 1.0})
            return
        if MOMENT == "identity refused":
            connection.fail(exchange, failure(Code.OUT_OF_MEMORY, "no room for 64 bytes"))
            return
    how = event.arguments.get("how", b"well").decode()
    if how == "well":
        connection.open_stream(exchange).write(event.arguments.get("data", b""))
        connection.end(exchange)
    else:
        flush()
        MISDEEDS[how](exchange.id)


def start() -> None:
    if dies_at("hello"):
        die()
    if MOMENT == "half hello":
        send((300).to_bytes(4, "big") + b"\x83\x01\x00")
        linger()
    if MOMENT == "closed output":
        os.close(1)
        linger()
    if MOMENT == "grandchild and exit":
        import subprocess

        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (FOLDER / "grandchild").write_text(str(child.pid), "ascii")
        os._exit(3)


def main() -> None:
    start()
    while data := os.read(0, 65536):
        for event in connection.receive(data):
            if isinstance(event, wire.RequestReceived):
                answer(event)
            elif isinstance(event, wire.CancelReceived) and event.exchange.id not in ignored:
                connection.fail(event.exchange, failure(Code.CANCELLED, "as you like"))
        flush()


main()
