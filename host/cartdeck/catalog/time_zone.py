"""Owns which time zone a server's schedule is in: the one that is named, or that of this machine.

It does not know schedules.
"""

import io
import os
import struct
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cartdeck_protocol.errors import Code, failure

_LOCAL: Final = Path("/etc/localtime")


def time_zone(name: str | None = None) -> tzinfo:
    """The zone of that name, such as Europe/Berlin; without one that of TZ, else of this machine, else UTC.

    Raises BAD_ARGUMENT for a zone that this machine does not know.
    """
    said = name if name is not None else os.environ.get("TZ", "").removeprefix(":")
    if not said:
        return _of_file(_LOCAL) if _LOCAL.exists() else UTC
    if name is None and said.startswith("/"):
        return _of_file(Path(said))
    try:
        return ZoneInfo(said)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # no such key, or none that could be a path
        pass
    try:
        return _of_rule(said)
    except (ValueError, UnicodeEncodeError):
        argument = "--time-zone" if name is not None else "TZ"
        message = f"{argument}: {said[:80]!r} is no time zone that is known here; expected one such as Europe/Berlin."
        raise failure(Code.BAD_ARGUMENT, message, argument=argument) from None


def _of_file(path: Path) -> tzinfo:
    try:
        with path.open("rb") as file:
            return ZoneInfo.from_file(file, key=_key_of(path))
    except (OSError, ValueError) as error:
        raise failure(Code.BAD_ARGUMENT, f"The time zone in {path} cannot be read: {error}", argument="TZ") from None


def _key_of(path: Path) -> str:
    """The name of a zone by where its file lies: /usr/share/zoneinfo/Europe/Berlin."""
    return str(path.resolve()).rpartition("/zoneinfo/")[2]


def _of_rule(text: str) -> tzinfo:
    """A zone that is written out, as TZ may have it: "CET-1CEST,M3.5.0,M10.5.0/3" (RFC 9636, section 3.3.1).

    It is read as the last line of a file without any transitions. Raises ValueError for what is no such rule.
    """
    block = b"TZif2" + bytes(15) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lbb", 0, 0, 0) + b"UTC\0"
    return ZoneInfo.from_file(io.BytesIO(block * 2 + b"\n" + text.encode("ascii") + b"\n"), key=text)
