"""The bars of many files on a small terminal: as many as have room, the rest counted, and no line left behind."""

import os
import pty
import subprocess
import sys
import termios

import pyte

COLUMNS, LINES = 60, 9
PROGRAM = """
import sys
from cartdeck.cli.file_bars import FileBars
from cartdeck.events import Log, Progress
bars = FileBars()
for step in range(1, 4):
    for number in range(12):
        bars.file({"path": f"a/long/folder/with/a/name/part-{number:02}.safetensors", "work": step * 10**8,
                   "total": 10**9, "is_done": False})
    work = step * 12 * 10**8
    bars.progress(Progress(step / 10, f"o/m, file 1 of 12, part: {step}.0 of 12.0 GB, 9 s left", f"p{step}",
                           work, 12 * 10**9, "models"))
bars.file({"path": "a/long/folder/with/a/name/part-00.safetensors", "work": 10**9, "total": 10**9, "is_done": True})
bars.log(Log("warning", "half\\x1b[2Jway", "models"))
if sys.argv[1] == "close":
    bars.close()
"""


def screen_after(how: str) -> list[str]:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (LINES, COLUMNS))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    command = [sys.executable, "-P", "-c", PROGRAM, how]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        received = bytearray()
        while True:
            try:
                block = os.read(master, 65536)
            except OSError:  # Linux: the last process has closed the terminal
                break
            received += block
        os.close(master)
        process.wait(60)
    screen = pyte.Screen(COLUMNS, LINES)
    pyte.ByteStream(screen).feed(bytes(received))
    return [line.rstrip() for line in screen.display if line.strip()]


def test_as_many_bars_as_have_room_stand_above_the_total_and_the_rest_is_counted() -> None:
    lines = screen_after("stay")
    assert lines[-1].startswith("p3 ")
    assert "3.0 of 12.0 GB" in lines[-1]
    assert lines[-2] == "and 7 more"
    bars = [line for line in lines if "300.0/1000.0 MB" in line]
    assert len(bars) == LINES // 2
    assert all(line.startswith("…") and "30%" in line for line in bars)
    assert lines[0].startswith("a/long/folder"), "what was said stays in sight"


def test_the_bars_go_and_what_was_said_stays() -> None:
    lines = screen_after("close")
    assert lines == ["a/long/folder/with/a/name/part-00.safetensors: 1.0 GB", "models: warning: half\ufffd[2Jway"]
