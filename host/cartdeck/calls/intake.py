"""Owns what a caller has not taken yet: pieces of output, log lines and the last progress, in their order.

It does not know tasks: it says whether something waits. What waits is bounded: data by the credit of its streams and
the engine's backlog, progress by one, log lines by a ring.
"""

from collections import deque
from typing import Any, Final, cast

from cartdeck.calls.backlog import Backlog, Stored
from cartdeck.calls.window import Window
from cartdeck.events import Data, Event, KeptOutput, Log, Progress
from cartdeck_protocol.errors import CartdeckError
from cartdeck_protocol.wire import InStream, ItemDecoder

_HIGHEST_ASCII: Final = 0x7F
_LOG_BYTES: Final = 256 * 1024
"""Of waiting log lines together, beside their number: a line may have 64 KiB."""
KEEP_ALL: Final = 1 << 62
_ALWAYS_KEPT: Final = 64 * 1024
"""So much a result keeps however much others keep."""
_ITEM_BYTES: Final = 56
"""What an item takes in memory beside its encoding, about."""
_FEW_ITEMS: Final = 256
_MANY_ITEMS: Final = 1024
_LEAST_BITE: Final = 4 * 1024
_MOST_BITE: Final = 1024 * 1024


class _Deaf:
    """Something in a sequence was no item: what follows cannot be told apart, and none of it comes."""

    def feed(self, _chunk: bytes | memoryview) -> list[Any]:
        return []

    def finish(self) -> None: ...


_DEAF: Final = _Deaf()


class Incoming:
    """One output stream on its way to the caller."""

    __slots__ = ("bite_bytes", "decoder", "is_text", "kept", "name", "rest", "stream", "window")

    def __init__(
        self, stream: InStream, kept: KeptOutput, window: Window | None, *, max_item: int, is_text: bool
    ) -> None:
        self.stream = stream
        self.name = stream.name
        self.kept = kept
        self.window = window
        """None for an output that came whole, with its beginning."""
        self.is_text = is_text and not stream.is_sequence
        self.decoder: ItemDecoder | _Deaf | None = ItemDecoder(max_item) if stream.is_sequence else None
        self.rest = b""
        """The first bytes of a character whose others are still to come."""
        self.bite_bytes = _LEAST_BITE
        """How much of a chunk's items is decoded for a caller at once: a chunk of 256 KiB may hold as many items, which
        take 64 times as much memory, and a caller takes them one by one."""


class Intake:
    """A queue of pieces, filled by the session's reader and emptied by the caller.

    `keep_bytes` bounds what results keep of the outputs; with `is_sharing` they keep less while other calls keep much.
    `take` turns the next entry into events, and grants credit for it.
    """

    __slots__ = (
        "_backlog", "_cartridge", "_entries", "_is_cut", "_is_sharing", "_keep_bytes", "_kept_bytes", "_log_bytes",
        "_log_count", "_log_limit", "_log_lost", "_progress", "_shared_bytes", "_unshared_bytes", "_waiting_bytes",
        "outputs", "waiting_chunks",
    )  # fmt: skip  # one is made for each call

    def __init__(
        self, backlog: Backlog, *, keep_bytes: int, is_sharing: bool = False, log_lines: int, cartridge: str
    ) -> None:
        self.outputs: dict[str, KeptOutput] = {}
        self._backlog = backlog
        self._waiting_bytes = 0
        """In memory, of what is in the entries."""
        self._entries: deque[Any] = deque()
        self._is_cut = False
        self._keep_bytes = keep_bytes
        self._is_sharing = is_sharing
        self._kept_bytes = 0
        self._unshared_bytes = 0
        self._shared_bytes = 0
        """What is kept takes so much memory: not counted in the backlog, and counted there."""
        self._log_limit = log_lines
        self._log_count = 0
        self._log_bytes = 0
        self._log_lost = 0
        self._progress: Progress | None = None
        self._cartridge = cartridge
        self.waiting_chunks = 0

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __del__(self) -> None:
        if self._waiting_bytes or self._shared_bytes or self.waiting_chunks:
            self.drop()
            self._backlog.abandon(0, self._shared_bytes, [])

    @property
    def is_whole(self) -> bool:
        """All output that came was taken: what is kept lacks nothing."""
        return not (self._is_cut or any(type(entry) is tuple for entry in self._entries))

    def drop(self) -> None:
        """Nobody will take what waits. Safe in any thread, as the interpreter may free an intake in any."""
        self._is_cut = not self.is_whole
        entries, self._entries = self._entries, deque()
        stored = [entry[1] for entry in entries if type(entry) is tuple and isinstance(entry[1], Stored)]
        self._backlog.abandon(self._waiting_bytes, 0, stored)
        self._waiting_bytes = self.waiting_chunks = self._log_count = self._log_bytes = 0
        self._progress = None

    # -- filling

    def start(self, stream: InStream, window: Window | None, *, max_item: int, is_text: bool) -> Incoming:
        kept = self.outputs.get(stream.name)
        if kept is None:
            kept = self.outputs[stream.name] = KeptOutput(is_sequence=stream.is_sequence)
        return Incoming(stream, kept, window, max_item=max_item, is_text=is_text)

    def add_chunk(self, incoming: Incoming, payload: bytes) -> None:
        """Raises what the backlog raises when there is no room left."""
        held = self._backlog.put(payload)
        if held is payload:
            self._waiting_bytes += len(payload)
        self._entries.append((incoming, held))
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
        self._log_bytes += len(log.message)
        while self._log_count and (self._log_count >= self._log_limit or self._log_bytes > _LOG_BYTES):
            # Near the front: of other entries no more can stand there than the windows of the streams.
            place = next(place for place, entry in enumerate(self._entries) if type(entry) is Log)
            self._log_bytes -= len(self._entries[place].message)
            del self._entries[place]
            self._log_lost += 1
            self._log_count -= 1
        self._log_count += 1
        self._entries.append(log)

    # -- emptying

    def take(self) -> list[Event]:
        """The events of the next entry. Raises what is wrong inside a sequence; the call is damaged then."""
        entry: Any = self._entries.popleft()
        if isinstance(entry, tuple):
            incoming, payload = cast("tuple[Incoming, Any]", entry)
            if type(payload) is bytes and (incoming.decoder is None or len(payload) <= incoming.bite_bytes):
                self.waiting_chunks -= 1
                self._waiting_bytes -= len(payload)
                pieces = self.absorb(incoming, self._backlog.take(payload))
            elif payload is None:
                pieces = self.absorb_end(incoming)
            elif incoming.decoder is not None:
                pieces = self._bite(incoming, payload)
            else:
                self.waiting_chunks -= 1
                pieces = self.absorb(incoming, self._stored(cast("Stored", payload)))
            name = incoming.name
            return [Data(name, piece) for piece in pieces]
        if isinstance(entry, Progress):
            self._progress = None
            return [entry]
        self._log_count -= 1
        self._log_bytes -= len(entry.message)
        if self._log_lost:
            lost, self._log_lost = self._log_lost, 0
            return [Log("warning", f"{lost} log lines were not taken in time and are lost", self._cartridge), entry]
        return [entry]

    def _bite(self, incoming: Incoming, payload: Any) -> list[Any]:
        """The items of a part of a chunk, or of what is left of it; the chunk counts as taken with its last part."""
        bite = incoming.bite_bytes
        size = payload.size if isinstance(payload, Stored) else len(payload)
        if size > bite:
            items = self._decode(incoming, self._part(incoming, payload, bite))
        else:
            items = self._decode(incoming, self._last_part(incoming, payload))
        if len(items) < _FEW_ITEMS:
            incoming.bite_bytes = min(2 * bite, _MOST_BITE)
        elif len(items) > _MANY_ITEMS:
            incoming.bite_bytes = max(bite // 2, _LEAST_BITE)
        return items

    def _part(self, incoming: Incoming, payload: Any, size: int) -> bytes | memoryview:
        """The first `size` bytes; what is left stays in front."""
        if isinstance(payload, Stored):
            part = self._stored(payload, size)
            self._entries.appendleft((incoming, payload))
            return part
        view = memoryview(payload)
        self._entries.appendleft((incoming, view[size:]))
        return view[:size]

    def _last_part(self, incoming: Incoming, payload: Any) -> bytes | memoryview:
        self.waiting_chunks -= 1
        if isinstance(payload, Stored):
            self._grant(incoming, payload.start + payload.size)
            return self._stored(payload)
        whole = cast("bytes", payload.obj) if type(payload) is memoryview else cast("bytes", payload)
        self._grant(incoming, len(whole))
        self._waiting_bytes -= len(whole)
        self._backlog.take(whole)
        return payload

    def _stored(self, payload: Stored, size: int = -1) -> bytes:
        """The payload, or its next `size` bytes."""
        try:
            return self._backlog.take(payload) if size < 0 else self._backlog.take_part(payload, size)
        except CartdeckError:
            self.drop()  # a piece is missing: nobody must take what comes behind it for the next one
            raise

    def _grant(self, incoming: Incoming, size: int) -> None:
        if incoming.window is not None:
            incoming.window.take(size, is_last=not self.waiting_chunks)

    def _decode(self, incoming: Incoming, payload: bytes | memoryview) -> list[Any]:
        assert incoming.decoder is not None
        try:
            items = incoming.decoder.feed(payload)
        except CartdeckError:
            incoming.decoder = _DEAF
            raise
        return self._keep(incoming.kept, len(payload), items)

    def absorb(self, incoming: Incoming, payload: bytes) -> list[Any]:
        """What a chunk adds to its output: items, or one piece of bytes; none while a character or an item is cut.
        It counts as taken. For a caller who wants no events this is all there is to do."""
        if incoming.window is not None:
            incoming.window.take(len(payload), is_last=not self.waiting_chunks)
        if incoming.decoder is not None:
            return self._decode(incoming, payload)
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
        if kept.lost_bytes:
            kept.lost_bytes += size
        elif self._kept_bytes + size > self._keep_bytes or not self._has_room(kept, size, pieces):
            self._lose(kept, size)
        else:
            self._kept_bytes += size
            kept.size += size
            kept.pieces += pieces
        return pieces

    def _has_room(self, kept: KeptOutput, size: int, pieces: list[Any]) -> bool:
        if not self._is_sharing:
            return True
        memory = size + _ITEM_BYTES * len(pieces) if kept.is_sequence else size
        if self._unshared_bytes + memory <= _ALWAYS_KEPT:
            self._unshared_bytes += memory
            return True
        if not self._backlog.keep(memory):
            return False
        self._shared_bytes += memory
        return True

    def _lose(self, kept: KeptOutput, size: int) -> None:
        """What has a part missing is of no use to anybody: nothing of that output is kept from now on."""
        self._kept_bytes -= kept.size
        kept.lost_bytes += size + kept.size
        kept.size = 0
        kept.pieces = []
        if not self._kept_bytes:
            self.hand_over()

    def hand_over(self) -> None:
        """What is kept is the caller's from now on, and counts no more."""
        self._backlog.let_go(self._shared_bytes)
        self._shared_bytes = 0


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
