"""Owns the forms in which a transcript with times is written: lines with times, SubRip and WebVTT.

It does not know where the segments come from.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

VTT_HEADER: Final = "WEBVTT\n"


def with_times(segments: Iterable[Mapping[str, Any]]) -> str:
    """A line for each segment: [start - end] text, in minutes and seconds."""
    return "".join(map(timed_line, segments))


def as_srt(segments: Iterable[Mapping[str, Any]]) -> str:
    """SubRip: numbered blocks, a comma before the milliseconds."""
    return "".join(srt_block(number, one) for number, one in enumerate(segments, start=1))


def as_vtt(segments: Iterable[Mapping[str, Any]]) -> str:
    """WebVTT (W3C): a header, blocks without numbers, a dot before the milliseconds."""
    return VTT_HEADER + "".join(map(vtt_block, segments))


def timed_line(segment: Mapping[str, Any]) -> str:
    """One segment of `with_times`."""
    start, end = (_clock(segment[name], ".", hours=False) for name in ("start_s", "end_s"))
    return f"[{start} - {end}] {_line(segment)}\n"


def srt_block(number: int, segment: Mapping[str, Any]) -> str:
    """One segment of `as_srt`, counted from 1, with the empty line before it."""
    start, end = (_clock(segment[name], ",") for name in ("start_s", "end_s"))
    return f"{'' if number == 1 else chr(10)}{number}\n{start} --> {end}\n{_line(segment)}\n"


def vtt_block(segment: Mapping[str, Any]) -> str:
    """One segment of `as_vtt`, with the empty line before it."""
    return f"\n{_clock(segment['start_s'], '.')} --> {_clock(segment['end_s'], '.')}\n{_cue(segment)}\n"


def _clock(seconds: float, dot: str, *, hours: bool = True) -> str:
    milliseconds = max(0, round(seconds * 1000))
    minutes, rest = divmod(milliseconds, 60_000)
    tail = f"{rest // 1000:02d}{dot}{rest % 1000:03d}"
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{tail}" if hours else f"{minutes:02d}:{tail}"


def _line(segment: Mapping[str, Any]) -> str:
    """The text on one line, without what a terminal would obey: an empty line would end its block."""
    return "".join(one for one in " ".join(str(segment["text"]).split()) if one.isprintable())


def _cue(segment: Mapping[str, Any]) -> str:
    """The text with what WebVTT reads as markup escaped."""
    return _line(segment).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
