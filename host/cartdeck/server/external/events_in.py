"""Owns server-sent events as they come in (WHATWG HTML, section 9.2): bytes to the data of events.

It does not know what the data mean.
"""

from collections.abc import AsyncGenerator, AsyncIterable
from typing import Final

LONGEST_EVENT: Final = 16 * 1024 * 1024


async def data_of_events(pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """The data of each event; lines of one event are joined, comments and other fields are passed over.

    An event without its empty line, at the end of the stream, is none. Raises ValueError for one without end.
    """
    rest, lines = b"", list[bytes]()
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        if len(rest) + sum(map(len, lines)) > LONGEST_EVENT:
            raise ValueError(f"an event is larger than {LONGEST_EVENT} bytes")
        for line in whole:
            line = line.removesuffix(b"\r")  # noqa: PLW2901  # the other end of a line
            if line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
            elif not line and lines:
                yield b"\n".join(lines)
                lines = []
