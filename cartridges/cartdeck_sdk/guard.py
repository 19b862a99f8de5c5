"""Owns the first moments of a cartridge's process: the frame pipes move out of reach, the parent is watched.

It does not know the protocol. It must run before the cartridge is imported: whatever a native library prints, at
import, while loading or at exit, then lands in the log.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from fcntl import F_DUPFD_CLOEXEC, fcntl
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_FIRST_PRIVATE: Final = 3


@dataclass(slots=True, frozen=True)
class FramePipes:
    """Two private descriptors above 2, closed on exec: where frames come from and where they go."""

    read_fd: int
    write_fd: int


def claim_pipes() -> FramePipes:
    """Move stdin and stdout to private descriptors, point fd 0 at nothing and fd 1 at stderr.

    Leaves with code 2 and one sentence where stdin or stdout is a terminal: frames are not for people.
    """
    if os.isatty(0) or os.isatty(1):
        print(  # the command line is the only place where a person can read it
            "cartdeck_sdk speaks frames on stdin and stdout; a host starts it. For people: python -m PACKAGE --help",
            file=sys.stderr,
        )
        raise SystemExit(2)
    pipes = FramePipes(fcntl(0, F_DUPFD_CLOEXEC, _FIRST_PRIVATE), fcntl(1, F_DUPFD_CLOEXEC, _FIRST_PRIVATE))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    # print() writes through sys.stdout, which still buffers for the old descriptor: line by line from now on
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    return pipes


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent dies; leave if it is gone already. Linux only: elsewhere the end of
    file on stdin ends the process."""
    if sys.platform != "linux":
        return
    host = os.environ.get("CARTDECK_HOST_PID")
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if host is not None and host.isdigit() and os.getppid() != int(host):
        os._exit(0)
