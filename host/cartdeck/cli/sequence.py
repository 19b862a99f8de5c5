"""Owns how the records of a trace look to a person: one line for each frame, in columns, repeats folded.

It does not know the file, nor which records are wanted.
"""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from cartdeck.cli.display import harmless

_FOLDED: Final = ("CHUNK", "CREDIT", "HEARTBEAT")
_SAME: Final = ("kind", "session", "pid", "direction", "id", "stream")
_WIDEST: Final = 160
_CODES: Final = {"level", "message", "code", "class"}


@dataclass(slots=True)
class _Line:
    """A frame, or a run of frames that differ in size and number alone."""

    record: dict[str, Any]
    whom: str
    count: int = 1
    payload_bytes: int = 0
    credit: int = 0

    def continues(self, record: dict[str, Any]) -> bool:
        return record.get("kind") in _FOLDED and all(self.record.get(name) == record.get(name) for name in _SAME)


class Sequence:
    """Lines in columns. `measure` comes first and sees the same records."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, int], str] = {}
        self._whom_width = self._request_width = self._kind_width = 0
        self._began_at_s = 0.0

    def measure(self, records: Iterable[dict[str, Any]]) -> None:
        for record in records:
            if "session" in record:
                self._whom_width = max(self._whom_width, len(self._whom(record)))
                self._request_width = max(self._request_width, len(_request(record)))
                self._kind_width = max(self._kind_width, len(str(record.get("kind", ""))) + 5)

    def lines(self, records: Iterable[dict[str, Any]]) -> Iterator[str]:
        last: _Line | None = None
        told: set[tuple[str, int]] = set()
        for record in records:
            is_frame = "session" in record
            if last is not None and is_frame and "damaged" not in record and last.continues(record):
                last.count += 1
                last.payload_bytes += record.get("payload_bytes", 0)
                last.credit += record.get("credit", 0)
                continue
            if last is not None:
                yield self._frame(last)
                last = None
            if not is_frame:
                yield self._about_trace(record)
                continue
            self._began_at_s = self._began_at_s or record["time"]
            name = self._name(record)
            process = (str(record["session"]), int(record.get("pid", 0)))
            if process not in told:
                told.add(process)
                key = "" if process[0] == name else f"{harmless(process[0])}, "
                yield f"{name}: {key}process {process[1]}"
            last = _Line(record, self._whom(record), 1, record.get("payload_bytes", 0), record.get("credit", 0))
        if last is not None:
            yield self._frame(last)

    def _about_trace(self, record: dict[str, Any]) -> str:
        if "trace" in record:
            self._began_at_s = float(record["time"])
            day = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["time"]))
            return f"── an engine in process {record.get('pid')}, {day}"
        return f"── {record.get('dropped', 'some')} frames are not here: they came faster than they could be written"

    def _frame(self, line: _Line) -> str:
        record = line.record
        when = f"{record['time'] - self._began_at_s:9.3f}"
        kind = str(record.get("kind", "")) + (f" x{line.count}" if line.count > 1 else "")
        words = record["damaged"] if "damaged" in record else "  ".join(_words(record, line))
        columns = (
            when,
            line.whom.ljust(self._whom_width),
            _request(record).rjust(self._request_width),
            kind.ljust(self._kind_width),
            words if len(words) <= _WIDEST else words[:_WIDEST] + "…",
        )
        return harmless("  ".join(columns).rstrip())

    def _name(self, record: dict[str, Any]) -> str:
        """A short name for a process: its cartridge, with a number from the second process on."""
        process = (str(record["session"]), int(record.get("pid", 0)))
        if process not in self._names:
            cartridge = process[0].partition("[")[0]
            others = sum(1 for key, _ in self._names if key.partition("[")[0] == cartridge)
            self._names[process] = cartridge if not others else f"{cartridge}-{others + 1}"
        return self._names[process]

    def _whom(self, record: dict[str, Any]) -> str:
        name = self._name(record)
        return f"{name} → host" if record.get("direction") == "in" else f"host → {name}"


def _request(record: dict[str, Any]) -> str:
    """Even ids are the host's requests; odd ones are peer calls, which the cartridge makes."""
    number = record.get("id")
    if not isinstance(number, int) or number == 0:
        return "-"
    return f"peer {number}" if number % 2 else str(number)


def _words(record: dict[str, Any], line: _Line) -> Iterator[str]:
    """What a frame says beside who, whom and kind."""
    if "cap" in record:
        yield str(record["cap"])
    if "stream" in record:
        yield f"stream {record['stream']}" + (f" ({record['name']})" if "name" in record else "")
    if "media" in record:
        yield str(record["media"]) + (", items" if record.get("is_sequence") else "")
    if "credit" in record:
        yield f"+{line.credit}"
    if "chunk_count" in record:
        yield f"{record['chunk_count']} chunks"
    if "payload_bytes" in record:
        yield _size(line.payload_bytes)
    meta: Any = record.get("meta")
    if isinstance(meta, dict):
        yield from _meta_words(record, cast("dict[str, Any]", meta))
    if "payload" in record and line.count == 1:
        yield _short(record["payload"])


def _meta_words(record: dict[str, Any], meta: dict[str, Any]) -> Iterator[str]:
    for name in ("code", "level"):
        if name in meta and meta[name] != "progress":
            yield str(meta[name])
    if isinstance(meta.get("progress"), int | float):
        yield f"{meta['progress']:.0%}"
    if meta.get("message"):
        yield str(meta["message"])
    if record.get("kind") == "HELLO":
        yield f"{meta.get('software') or 'unnamed'}, protocol {meta.get('protocol')}, API {meta.get('api')}"
        return
    for name, value in meta.items():
        if name not in _CODES and name != "progress" and value not in ({}, [], None):
            yield name if value is True else f"{name} {_short(value)}"


def _short(value: Any) -> str:
    """A value in a line: an omitted one as its size."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if set(fields) == {"bytes"}:
            return _size(fields["bytes"])
        return "{" + ", ".join(f"{name}: {_short(one)}" for name, one in fields.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _size(count: int) -> str:
    return "1 byte" if count == 1 else f"{count:,} bytes"
