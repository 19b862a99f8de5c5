"""What a person sees: a real terminal of 60 by 12 is filled, and its screen is read."""

import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pyte

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
COLUMNS, LINES = 60, 12
# Text streams above the bar, with a log line in between; the process ends without taking the bar away.
STREAMING = """
import os, sys
from cartdeck.cli.bar import open_display
from cartdeck.events import Log, Progress
display = open_display(is_quiet=False, is_verbose=False)
display.progress(Progress(0.1, "file.gguf", "download", 5e7, 1e8, "models"))
for index in range(int(sys.argv[1])):
    os.write(1, display.around(f"{index:05d} ".encode()))
display.log(Log("warning", "half\\x1b[2Jway", "gguf"))
display.progress(Progress(0.6, "generating", "inference", 31, 48, "gguf"))
os.write(1, display.around("end".encode()))
if sys.argv[2] == "close":
    display.close()
"""


def screen_after(command: list[str]) -> list[str]:
    """The lines of the terminal's screen when the command has ended, without empty ones at the end."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    environment.pop("NO_COLOR", None)
    termios.tcsetwinsize(slave, (LINES, COLUMNS))
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
    lines = [line.rstrip() for line in screen.display]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def test_text_streams_above_one_bar() -> None:
    lines = screen_after([sys.executable, "-P", "-c", STREAMING, "12", "stay"])
    assert lines[0] == "00000 00001 00002 00003 00004 00005 00006 00007 00008 00009"
    assert lines[1:4] == ["00010 00011", "gguf: warning: half\ufffd[2Jway", "end"]
    assert len(lines) == 5
    assert lines[4].startswith("inference ")
    assert " 60% generating " in lines[4]
    assert " 31/48 " in lines[4]


def test_the_bar_stays_one_line_when_the_screen_scrolls() -> None:
    lines = screen_after([sys.executable, "-P", "-c", STREAMING, "300", "stay"])
    assert len(lines) == LINES
    assert [line.startswith("inference ") for line in lines] == [False] * (LINES - 1) + [True]
    assert lines[:-3] == [" ".join(f"{row * 10 + word:05d}" for word in range(10)) for row in range(21, 30)]
    assert lines[-2] == "end"


def test_the_bar_is_gone_at_the_end_and_the_text_is_left() -> None:
    lines = screen_after([sys.executable, "-P", "-c", STREAMING, "3", "close"])
    assert lines == ["00000 00001 00002", "gguf: warning: half\ufffd[2Jway", "end"]


def test_a_call_on_a_terminal_leaves_its_text_alone() -> None:
    lines = screen_after([CARTDECK, "call", "work", "--arg", "steps=10", "--arg", "seconds=0.05"])
    assert lines == ["10 steps done"]


def test_without_a_bar_the_text_still_ends_its_line_on_a_terminal() -> None:
    script = f"'{CARTDECK}' call echo --arg data=hello --quiet; printf prompt"
    assert screen_after(["bash", "-c", script]) == ["hello", "prompt"]
    script = f"TERM=dumb '{CARTDECK}' call echo --arg data=hello 2>/dev/null; printf prompt"
    assert screen_after(["bash", "-c", script]) == ["hello", "prompt"]


def test_binary_output_is_not_thrown_at_a_terminal() -> None:
    lines = screen_after([CARTDECK, "call", "emit-items", "--arg", "count=1", "--arg", "size=2"])
    assert lines == ['{"base64": "eHg="}']
    refused = " ".join(screen_after([CARTDECK, "call", "echo", "--arg", f"data=@{sys.executable}"]))
    assert "--out FILE" in refused
