"""Owns what a plan gave: its outputs by name, what is missing, and what is known of each step.

It does not know how it came about.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast
from weakref import finalize

from cartdeck.plans.convert import Absent
from cartdeck.plans.flow import Flow
from cartdeck.plans.report import StepReport
from cartdeck.plans.spool import END, Reader
from cartdeck_protocol.caps import MediaUrn, ValueKind
from cartdeck_protocol.caps.argument import kind_of
from cartdeck_protocol.errors import Code, failure


class Output:
    """One output. A large one lies in a temporary file, and is read when it is asked for."""

    def __init__(self, flow: Flow, reader: Reader, media: MediaUrn) -> None:
        self.name = flow.name
        self.media = media
        self.depth = flow.depth
        """0: a value; 1: a sequence; 2: a sequence of sequences."""
        self._flow = flow
        self._reader = reader
        finalize(self, reader.close)

    @property
    def absent(self) -> Absent | None:
        """Why there is no value, of one that is missing."""
        return self._flow.absent

    def __iter__(self) -> Iterator[Any]:
        """Its entries: pieces of bytes, or items. An item that is missing is an `Absent`. Raises its error if the
        whole of it is missing."""
        if self._flow.absent is not None:
            raise self._flow.absent.error
        self._reader.rewind()
        while (entry := self._reader.take()) is not END:
            yield entry

    @property
    def data(self) -> bytes:
        """The bytes of a value; of a sequence of bytes, those of all items in a row."""
        return b"".join(_bytes_of(entry) for entry in self)

    @property
    def text(self) -> str:
        """The value as text. Raises INVALID_TEXT where it is not UTF-8."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            raise failure(Code.INVALID_TEXT, f"{self.name} is not text: {error}. Use .data for the bytes.") from None

    @property
    def items(self) -> list[Any]:
        """The items of a sequence, in order; an `Absent` stands for one that is missing."""
        if not self.depth:
            raise failure(Code.UNSUPPORTED, f"{self.name} is no sequence: use .data, .text or .json().")
        return list(self)

    def json(self) -> Any:
        """The value, parsed. Raises INVALID_TEXT where it is not JSON."""
        try:
            return json.loads(self.data)
        except ValueError as error:
            raise failure(Code.INVALID_TEXT, f"{self.name} is not JSON: {error}.") from None

    def write_to(self, file: BinaryIO) -> None:
        """Write it: a value and items of bytes as they are; items of text, numbers or JSON as JSON lines."""
        for entry in self:
            file.write(self.encoded(entry))

    def encoded(self, entry: Any) -> bytes:
        """An entry as `write_to` writes it."""
        if not self.depth or kind_of(self.media) is ValueKind.BYTES:
            return _bytes_of(entry)
        return (json.dumps(self._readable(entry), ensure_ascii=False, default=repr) + "\n").encode()

    async def follow(self, done: "asyncio.Future[None]") -> AsyncIterator[Any]:
        """Its entries as they come, until the run is `done`. Raises what ends the run, or why it is missing."""
        begun = done.get_loop().create_future()
        if not self._flow.has_begun:
            self._flow.when_begun(lambda: None if begun.done() else begun.set_result(None))
            await asyncio.wait((begun, done), return_when=asyncio.FIRST_COMPLETED)
        if self._flow.absent is not None:
            raise self._flow.absent.error
        reader = self._flow.reader(keeps=False)
        try:
            async for entry in reader.entries():
                yield entry
        finally:
            reader.close()
        if self._flow.absent is not None:
            raise self._flow.absent.error

    def _readable(self, entry: Any) -> Any:
        """An item as what it is of: a call gives the bytes of it."""
        if isinstance(entry, list):
            return [self._readable(one) for one in cast("list[Any]", entry)]
        if not isinstance(entry, bytes):
            return entry
        try:
            return entry.decode() if kind_of(self.media) is ValueKind.TEXT else json.loads(entry)
        except ValueError:
            return entry.decode("utf-8", "replace")


def _bytes_of(entry: Any) -> bytes:
    if isinstance(entry, bytes):
        return entry
    if isinstance(entry, str):
        return entry.encode()
    if isinstance(entry, Path):
        return entry.expanduser().read_bytes()
    if isinstance(entry, list):
        return b"".join(_bytes_of(one) for one in cast("list[Any]", entry))
    if isinstance(entry, Absent):
        return b""
    return json.dumps(entry, ensure_ascii=False, default=repr).encode()


class PlanResult:
    """What a plan gave. `steps` has each step's report, `missing` what could not be given and why."""

    def __init__(self, outputs: dict[str, Output], steps: dict[str, StepReport]) -> None:
        self.outputs = outputs
        self.steps = steps

    @property
    def missing(self) -> list[Absent]:
        """Of each step what it could not give itself, the first failure first."""
        return [one for report in self.steps.values() for one in report.missing if one.step == report.step]

    def output(self, name: str) -> Output:
        """The output of that name. Raises BAD_ARGUMENT, which lists the names."""
        found = self.outputs.get(name)
        if found is None:
            names = ", ".join(self.outputs) or "none"
            raise failure(Code.BAD_ARGUMENT, f"the plan has no output {name}; there are: {names}", argument=name)
        return found

    @property
    def only(self) -> Output:
        """The output of a plan that has one."""
        if len(self.outputs) != 1:
            names = ", ".join(self.outputs) or "none"
            raise failure(Code.UNSUPPORTED, f"the plan has {len(self.outputs)} outputs ({names}): name one")
        return next(iter(self.outputs.values()))
