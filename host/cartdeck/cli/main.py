"""Owns the console command's first and last steps: signals, the standard descriptors, and how the process ends.

It does not know the commands, and loads them only when a signal already has its exit code.
"""

import os
import sys

_INTERRUPTED = 130


def main() -> int:
    """The console command. Every end has an exit code, and no traceback reaches a user."""
    try:
        return _main()
    except KeyboardInterrupt:  # so early that nothing else watches signals yet
        os._exit(_INTERRUPTED)


def _main() -> int:
    from cartdeck.cli.endings import end_at_signals, ignore_signals

    if sys.platform == "win32":
        sys.exit("cartdeck runs on Linux and macOS; on Windows, use it inside WSL.")
    end_at_signals()
    _open_standard_descriptors()
    import contextlib
    import threading

    from cartdeck.cli.commands import run

    status = run(as_json="--json" in sys.argv)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    ignore_signals()  # the rest takes no time, and the interpreter would answer one with a traceback
    if threading.active_count() > 1:
        # A thread still waits for standard input, or for a reader of standard output: nobody waits for it.
        os._exit(status)
    return status


def _open_standard_descriptors() -> None:
    """Occupies 0, 1 and 2 where the caller closed them, so that no pipe of ours gets such a number.

    A closed standard output stays one that cannot be written: the first write then ends the command quietly.
    """
    for descriptor, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)
    # Python starts with None where a descriptor is closed.
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115  # for the life of the process
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115  # as above
