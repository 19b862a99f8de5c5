"""Owns the items of a sequence: one msgpack value each, free of chunk bounds.

It does not know streams or credit.
"""

from typing import Any, Final, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]  # msgpack ships no stubs

from cartdeck_protocol.errors import CartdeckError, Code, failure

DEFAULT_MAX_ITEM: Final = 64 * 1024 * 1024
_FIRST_BUFFER: Final = 16 * 1024
"""It grows with what is fed at once; msgpack's own choice is 1 MiB for each decoder, all of it used in time."""


def encode_item(value: Any) -> bytes:
    """One item. BAD_ARGUMENT for a value that msgpack does not know."""
    try:
        return cast("bytes", cast("Any", msgpack).packb(value, use_bin_type=True))
    except (TypeError, ValueError, OverflowError) as error:
        raise failure(
            Code.BAD_ARGUMENT,
            f"a sequence item must be made of text, numbers, bytes, lists and maps; found {type(value).__name__}: "
            f"{error}",
        ) from error


class ItemDecoder:
    """Chunks in, items out. An item may span chunks; a chunk may hold many."""

    __slots__ = ("_end_of_item", "_max_item", "_received_bytes", "_unpacker")

    def __init__(self, max_item: int = DEFAULT_MAX_ITEM) -> None:
        self._max_item = max_item
        self._received_bytes = 0
        self._end_of_item = 0
        self._unpacker = cast("Any", msgpack).Unpacker(
            strict_map_key=False,
            use_list=True,
            raw=False,
            ext_hook=_refuse_ext,
            max_ext_len=0,  # refuses timestamps too, which msgpack makes without asking the hook
            max_buffer_size=max_item + 16 * 1024 * 1024,
            read_size=_FIRST_BUFFER,
        )

    def feed(self, chunk: bytes | memoryview) -> list[Any]:
        """The items that `chunk` completes. PROTOCOL_VIOLATION for what is not msgpack, FRAME_TOO_LARGE for an item
        beyond the limit: both are damage inside one request, and end it."""
        unpacker, most = self._unpacker, self._max_item
        items: list[Any] = []
        begin = self._end_of_item
        self._received_bytes += len(chunk)
        try:
            unpacker.feed(chunk)
            # tell() runs ahead into an unfinished item, so the end of the last whole one is kept item by item
            for item in unpacker:
                items.append(item)
                end = unpacker.tell()
                if end - begin > most:
                    raise self._too_large()
                begin = end
        except (msgpack.BufferFull, MemoryError) as error:
            raise self._too_large() from error
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            message = str(error) or type(error).__name__
            raise failure(
                Code.PROTOCOL_VIOLATION, f"a sequence holds what is not a msgpack value: {message}"
            ) from error
        self._end_of_item = begin
        if self._received_bytes - begin > most:
            raise self._too_large()
        return items

    def finish(self) -> None:
        """The stream ended. PROTOCOL_VIOLATION when it ended inside an item."""
        partial = self._received_bytes - self._end_of_item
        if partial:
            raise failure(
                Code.PROTOCOL_VIOLATION,
                f"a sequence ended inside an item: {partial} bytes of it came, the rest did not",
            )

    def _too_large(self) -> CartdeckError:
        return failure(Code.FRAME_TOO_LARGE, f"one item of a sequence is larger than {self._max_item} bytes")


def _refuse_ext(code: int, _data: bytes) -> Any:
    raise ValueError(f"msgpack extension type {code}")
