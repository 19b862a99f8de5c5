"""Owns a flag that native code can ask without Python: whether the running computation is to be given up.

It does not know who computes. The question is libc's `strlen` on a buffer of two bytes: 0 while it is empty, 1 once
the first byte is set. A Python function in its place would be called some 600 times per token and take the
interpreter's lock each time.
"""

import ctypes


class AbortFlag:
    """Set and cleared from any thread; asked by native code at `address` with `strlen`."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)

    @property
    def is_set(self) -> bool:
        return self._buffer[0] != b"\0"

    @property
    def address(self) -> int:
        """Where the bytes lie; they stay there while the flag lives."""
        return ctypes.addressof(self._buffer)

    def set(self) -> None:
        """Gives up the computation: native code sees it at its next operation, within milliseconds."""
        self._buffer[0] = b"\1"

    def clear(self) -> None:
        """Says that the next computation is to be done."""
        self._buffer[0] = b"\0"
