"""Owns what a caller sees of a call: its events, and the result at its end.

It does not know where they come from. Plain slotted dataclasses: one is made for every chunk of output.
"""

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

from cartdeck_protocol.errors import Code, failure


@dataclass(slots=True)
class Progress:
    """How far the call is. `fraction` is in [0, 1] and never falls, None while nothing is known.

    `work` of `total` counts bytes, tokens, files or steps of the `phase`; `cartridge` is who reports.
    """

    fraction: float | None
    message: str
    phase: str | None
    work: float | None
    total: float | None
    cartridge: str


@dataclass(slots=True)
class Log:
    """One line of a cartridge about this call."""

    level: str
    message: str
    cartridge: str


@dataclass(slots=True)
class Data:
    """A piece of an output, "" being the main one.

    `value` is bytes of a byte output, cut anywhere but inside a character of a text output; of a sequence it is one
    item, decoded.
    """

    output: str
    value: Any

    @property
    def text(self) -> str:
        """The value as text: bytes decoded, an item as it would be printed."""
        if isinstance(self.value, bytes):
            return self.value.decode("utf-8", "replace")
        return self.value if isinstance(self.value, str) else json.dumps(self.value, ensure_ascii=False)


@dataclass(slots=True)
class End:
    """The call has succeeded; always the last event."""

    progress: float
    provenance: dict[str, Any]


Event: TypeAlias = Progress | Log | Data | End


class KeptOutput:
    """What a result keeps of one output: pieces of bytes, joined when they are asked for, or items."""

    __slots__ = ("is_sequence", "lost_bytes", "pieces", "size")

    def __init__(self, *, is_sequence: bool) -> None:
        self.is_sequence = is_sequence
        self.pieces: list[Any] = []
        self.size = 0
        """Bytes of what is kept, as they came."""
        self.lost_bytes = 0
        """All that came, once it was more than is kept: a part is of no use."""


@dataclass(slots=True)
class Result:
    """What a call gave. The properties are about the main output; `output` and `items_of` take any by name."""

    outputs: dict[str, KeptOutput]
    progress: float
    provenance: dict[str, Any]

    @property
    def data(self) -> bytes:
        return self.output("")

    @property
    def text(self) -> str:
        """The main output as text. Raises INVALID_TEXT where it is not UTF-8."""
        try:
            return self.output("").decode("utf-8")
        except UnicodeDecodeError as error:
            raise failure(Code.INVALID_TEXT, f"The output is not text: {error}. Use .data for the bytes.") from None

    @property
    def items(self) -> list[Any]:
        return self.items_of("")

    def json(self) -> Any:
        """The main output, parsed. Raises INVALID_TEXT where it is not JSON."""
        try:
            return json.loads(self.output(""))
        except ValueError as error:
            raise failure(Code.INVALID_TEXT, f"The output is not JSON: {error}. Use .data for the bytes.") from None

    def output(self, name: str) -> bytes:
        """All bytes of an output; b"" where it had none. Items that are bytes are joined, others have no bytes."""
        kept = self._whole(name)
        if kept is None:
            return b""
        if not kept.is_sequence:
            if len(kept.pieces) > 1:
                kept.pieces = [b"".join(kept.pieces)]
            return kept.pieces[0] if kept.pieces else b""
        if all(isinstance(item, bytes) for item in kept.pieces):
            return b"".join(kept.pieces)
        raise failure(Code.UNSUPPORTED, f"The output {name or 'main'} is a sequence: use .items_of({name!r}).")

    def items_of(self, name: str) -> list[Any]:
        """All items of a sequence output; [] where it had none."""
        kept = self._whole(name)
        if kept is None:
            return []
        if not kept.is_sequence:
            raise failure(Code.UNSUPPORTED, f"The output {name or 'main'} is no sequence: use .output({name!r}).")
        return kept.pieces

    def _whole(self, name: str) -> KeptOutput | None:
        kept = self.outputs.get(name)
        if kept is not None and kept.lost_bytes:
            raise failure(
                Code.UNSUPPORTED,
                f"The output {name or 'main'} was larger than the call keeps ({kept.lost_bytes} bytes came). "
                "Use the data as it comes, raise keep_bytes, or use run().",
            )
        return kept
