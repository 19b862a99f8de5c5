"""Lines of a log that waits for nobody: what waits at its end is written as long as somebody reads."""

import fcntl
import os
import sys
import time

import pytest

from cartdeck.cli.log_lines import LogLines

LIMIT_S = 30.0


def wait_for(lines: LogLines, size: int) -> None:
    """Until so many bytes are known to be written."""
    end = time.monotonic() + LIMIT_S
    while lines._written < size:
        assert time.monotonic() < end, f"{lines._written} of {size} bytes were written, though it is read"
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="asks how much a pipe holds")
def test_who_reads_slowly_is_seen_to_read() -> None:
    reader, writer = os.pipe()
    room = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    lines = LogLines(lambda count: f"{count} dropped\n", descriptor=writer)
    try:
        lines.write("x" * (3 * room) + "\n")
        wait_for(lines, room)  # the pipe is full
        read = len(os.read(reader, 8192))
        wait_for(lines, room + read - 4096)
        read += len(os.read(reader, 8192))
        wait_for(lines, room + read - 4096)
    finally:
        os.close(reader)
        lines.close()
        os.close(writer)
