"""Owns the forms in which a transcript with times is written: lines with times, SubRip and WebVTT.

It does not know where the segments come from.
"""

from collections.abc import Iterable, Mapping
from typing import Any


def with_times(segments: Iterable[Mapping[str, Any]]) -> str:
    """A line for each segment: [start - end] text, in minutes and seconds."""
    return "".join(
        f"[{_clock(one['start_s'], '.', hours=False)} - {_clock(one['end_s'], '.', hours=False)}] {_line(one)}\n"
        for one in segments
    )


def as_srt(segments: Iterable[Mapping[str, Any]]) -> str:
    """SubRip: numbered blocks, a comma before the milliseconds."""
    blocks = (
        f"{number}\n{_clock(one['start_s'], ',')} --> {_clock(one['end_s'], ',')}\n{_line(one)}\n"
        for number, one in enumerate(segments, start=1)
    )
    return "\n".join(blocks)


def as_vtt(segments: Iterable[Mapping[str, Any]]) -> str:
    """WebVTT (W3C): a header, blocks without numbers, a dot before the milliseconds."""
    blocks = (f"{_clock(one['start_s'], '.')} --> {_clock(one['end_s'], '.')}\n{_cue(one)}\n" for one in segments)
    return "\n".join(["WEBVTT\n", *blocks])


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
