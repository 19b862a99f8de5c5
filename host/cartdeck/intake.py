"""Owns what a caller has not taken yet: pieces of output, log lines and the last progress, in their order.

It does not know tasks: it says whether something waits. What waits is bounded: data by the credit of its streams,
progress by one, log lines by a ring.
"""

from collections import deque
from typing import Any, Final, cast

from cartdeck.events import Data, Event, KeptOutput, Log, Progress
from cartdeck.window import Window
from cartdeck_protocol.wire import InStream, ItemDecoder

_HIGHEST_ASCII: Final = 0x7F


class Incoming:
    """One output stream on its way to the caller."""

    __slots__ = ("decoder", "is_text", "kept", "name", "rest", "stream", "window")

    def __init__(
        self, stream: InStream, kept: KeptOutput, window: Window | None, *, max_item: int, is_text: bool
    ) -> None:
        self.stream = stream
        self.name = stream.name
        self.kept = kept
        self.window = window
        """None for an output that came whole, with its beginning."""
        self.is_text = is_text and not stream.is_sequence
        self.decoder = ItemDecoder(max_item) if stream.is_sequence else None
        self.rest = b""
        """The first bytes of a character whose others are still to come."""


class Intake:
    """A queue of pieces, filled by the session's reader and emptied by the caller.

    `keep_bytes` bounds what results keep of the outputs; None keeps all. `take` turns the next entry into events, and
    grants credit for it.
    """

    def __init__(self, *, keep_bytes: int | None, log_lines: int, cartridge: str) -> None:
        self.outputs: dict[str, KeptOutput] = {}
        self._entries: deque[Any] = deque()
        self._keep_bytes = keep_bytes
        self._kept_bytes = 0
        self._log_limit = log_lines
        self._log_count = 0
        self._log_lost = 0
        self._progress: Progress | None = None
        self._cartridge = cartridge
        self.waiting_chunks = 0

    def __bool__(self) -> bool:
        return bool(self._entries)

    # -- filling

    def start(self, stream: InStream, window: Window | None, *, max_item: int, is_text: bool) -> Incoming:
        kept = self.outputs.get(stream.name)
        if kept is None:
            kept = self.outputs[stream.name] = KeptOutput(is_sequence=stream.is_sequence)
        return Incoming(stream, kept, window, max_item=max_item, is_text=is_text)

    def add_chunk(self, incoming: Incoming, payload: bytes) -> None:
        self._entries.append((incoming, payload))
        self.waiting_chunks += 1

    def add_end(self, incoming: Incoming) -> None:
        self._entries.append((incoming, None))

    def add_progress(self, progress: Progress) -> None:
        """Of waiting progress the latest is kept."""
        waiting = self._progress
        if waiting is None:
            self._progress = progress
            self._entries.append(progress)
        else:
            waiting.fraction, waiting.message, waiting.phase = progress.fraction, progress.message, progress.phase
            waiting.work, waiting.total, waiting.cartridge = progress.work, progress.total, progress.cartridge

    def add_log(self, log: Log) -> None:
        """Of waiting log lines the last `log_lines` are kept, and the number lost."""
        if self._log_count >= self._log_limit:
            # Near the front: of other entries no more can stand there than the windows of the streams.
            place = next(place for place, entry in enumerate(self._entries) if type(entry) is Log)
            del self._entries[place]
            self._log_lost += 1
        else:
            self._log_count += 1
        self._entries.append(log)

    # -- emptying

    def take(self) -> list[Event]:
        """The events of the next entry. Raises what is wrong inside a sequence; the call is damaged then."""
        entry: Any = self._entries.popleft()
        if isinstance(entry, tuple):
            incoming, payload = cast("tuple[Incoming, bytes | None]", entry)
            if payload is None:
                pieces = self.absorb_end(incoming)
            else:
                self.waiting_chunks -= 1
                pieces = self.absorb(incoming, payload)
            name = incoming.name
            return [Data(name, piece) for piece in pieces]
        if isinstance(entry, Progress):
            self._progress = None
            return [entry]
        self._log_count -= 1
        if self._log_lost:
            lost, self._log_lost = self._log_lost, 0
            return [Log("warning", f"{lost} log lines were not taken in time and are lost", self._cartridge), entry]
        return [entry]

    def absorb(self, incoming: Incoming, payload: bytes) -> list[Any]:
        """What a chunk adds to its output: items, or one piece of bytes; none while a character or an item is cut.
        It counts as taken. For a caller who wants no events this is all there is to do."""
        if incoming.window is not None:
            incoming.window.take(len(payload), is_last=not self.waiting_chunks)
        if incoming.decoder is not None:
            items = incoming.decoder.feed(payload)
            self._keep(incoming.kept, len(payload), items)
            return items
        if incoming.is_text and (incoming.rest or payload[-1:] > b"\x7f"):
            payload, incoming.rest = _split_text(incoming.rest + payload)
        return self._keep(incoming.kept, len(payload), [payload]) if payload else []

    def absorb_end(self, incoming: Incoming) -> list[Any]:
        """The end of an output: what was held back is all that comes."""
        if incoming.decoder is not None:
            incoming.decoder.finish()
        rest, incoming.rest = incoming.rest, b""
        return self._keep(incoming.kept, len(rest), [rest]) if rest else []

    def _keep(self, kept: KeptOutput, size: int, pieces: list[Any]) -> list[Any]:
        if self._keep_bytes is not None and self._kept_bytes + size > self._keep_bytes:
            kept.lost_bytes += size
        else:
            self._kept_bytes += size
            kept.pieces += pieces
        return pieces


def _split_text(data: bytes) -> tuple[bytes, bytes]:
    """`data` up to the last whole character, and the first bytes of one that is cut. Wrong UTF-8 is never held back."""
    for back in range(1, min(4, len(data) + 1)):
        lead = data[-back]
        if lead <= _HIGHEST_ASCII:
            break
        if lead >= 0xC0:  # the first byte of a character says how many it has
            size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return (data[:-back], data[-back:]) if back < size else (data, b"")
    return data, b""
