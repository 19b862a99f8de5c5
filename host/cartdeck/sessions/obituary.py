"""Owns the words on a process that ended by itself: which error its callers get.

It does not know who they are. What the process's own last frames said goes before what its exit code tells.
"""

from typing import Any

from cartdeck.sessions.process import Process
from cartdeck_protocol.errors import CartdeckError, Code, failure


def obituary(
    name: str, process: Process, *, was_ready: bool, pipe_error: CartdeckError | None, lines: int
) -> CartdeckError:
    """CARTRIDGE_DIED, START_FAILED before it was ready, or the damage that was in its frames.

    `details` holds pid, exit_code or signal, and the last `lines` of its log. A frame that is cut off is no damage of
    its own: a process that is killed while it writes leaves one.
    """
    if pipe_error is not None and pipe_error.code is not Code.CARTRIDGE_DIED:
        return named(pipe_error, name, process, lines=lines)
    how = "closed its output and went on" if process.is_running else process.exit_text
    details = last_details(process, lines=lines)
    last = f" Its last log line: {details['log'][-1]}" if details["log"] else ""
    if was_ready:
        return failure(Code.CARTRIDGE_DIED, f"{name} {how}.{last}", details=details)
    return failure(Code.START_FAILED, f"{name} {how} before it was ready.{last}", phase="starting", details=details)


def named(error: CartdeckError, name: str, process: Process | None, *, lines: int) -> CartdeckError:
    """The same error, saying whose it is, with the last lines of the log."""
    details = {**error.details, **last_details(process, lines=lines)}
    return failure(error.code, f"{name}: {error.message}", phase=error.phase, details=details)


def mistake_of_ours(what: str, mistake: Exception) -> CartdeckError:
    """`what` came and could not be dealt with, which is the engine's mistake: INTERNAL; or no memory was left."""
    if isinstance(mistake, MemoryError):
        return failure(Code.OUT_OF_MEMORY, f"{what} could not be dealt with: the engine's process has no memory left")
    return failure(Code.INTERNAL, f"{what} could not be dealt with: {type(mistake).__name__}: {mistake}")


def last_details(process: Process | None, *, lines: int) -> dict[str, Any]:
    """Process id, exit and the last log lines."""
    if process is None:
        return {"log": []}
    details: dict[str, Any] = {"pid": process.pid, "log": process.log.tail(lines)}
    if process.returncode is not None and process.returncode >= 0:
        details["exit_code"] = process.returncode
    elif process.returncode is not None:
        details["signal"] = process.signal_name
    if process.log.dropped_bytes:
        details["log_dropped_bytes"] = process.log.dropped_bytes
    return details
