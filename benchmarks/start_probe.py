"""Starts a cartridge as a host does, without an engine, and takes the time to its first answer."""

import os
import subprocess
import sys
import time

from cartdeck_protocol import wire

PROBE = bytes(64)


def first_answer_s(package: str) -> float:
    """Seconds from the spawn to the end of an identity call, its start included in no other process's time."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "cartdeck_sdk", package], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert process.stdin is not None
    assert process.stdout is not None
    connection = wire.Connection(wire.Role.HOST)
    connection.send_hello()
    is_asked = is_answered = False
    while not is_answered:
        for buffer in connection.outgoing():
            process.stdin.write(buffer)
        size = os.readv(process.stdout.fileno(), [connection.buffer()])
        if not size:
            raise SystemExit(f"{package} ended with {process.wait()}")
        is_answered = any(isinstance(event, wire.Finished) for event in connection.received(size))
        if connection.is_greeted and not is_asked:
            is_asked = True
            connection.request("cap:effect=none", {"data": PROBE})
    taken_s = time.perf_counter() - begun
    process.stdin.close()
    process.wait()
    process.stdout.close()
    return taken_s
