"""Owns when the windows of a model begin and end, as moments: in a time zone, across its changes of the clock.

It does not know the time: it is asked about a moment. A time of day that comes twice, since the clock is set back, is
in a window both times: `from` is the first of them, `to` the last. One that is left out stands for the moment at which
the clock is set forward.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Final

from cartdeck.catalog.window import DAYS, ScheduleWindow, minutes_of_day

_AHEAD: Final = 9
"""Days that are looked at: a window comes once a week at least, and may fall out once, where its time is left out."""
_WEEK: Final = timedelta(days=7)
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Span:
    """One time that a window, or several that touch, are open. All in UTC."""

    loads_at: datetime
    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Standing:
    """How a model's windows stand at a moment. Moments are in the schedule's zone."""

    is_held: bool
    """It is to be in memory: a window is open, or its prewarm has begun."""
    is_open: bool
    since: datetime | None
    """When the window that is open began; None where none is, or one always was."""
    until: datetime | None
    """When it ends; None where it never does."""
    next_begin: datetime | None
    """When the next one begins; None where there are no windows, or one is always open."""
    next_load: datetime | None
    """When the model is loaded for it; that is over where `is_held` and not `is_open`."""

    def to_plain(self) -> dict[str, Any]:
        """For JSON; times as ISO 8601 with their offset."""
        moments = {"until": self.until, "next_begin": self.next_begin, "next_load": self.next_load}
        said = {name: None if at is None else at.isoformat(timespec="seconds") for name, at in moments.items()}
        return {"is_held": self.is_held, "is_open": self.is_open, **said}

    def __str__(self) -> str:
        if self.is_open:
            return "always open" if self.until is None else f"open until {_shown(self.until)}"
        if self.next_begin is None:
            return "no windows"
        return f"next {_shown(self.next_begin)}" + (", loaded already" if self.is_held else "")


def standing(windows: Sequence[ScheduleWindow], now: datetime, zone: tzinfo) -> Standing:
    """How the windows stand at the moment `now`, which knows its offset, in that zone."""
    now = now.astimezone(UTC)  # of one zone, moments would be compared by what the clock shows
    spans = list(_spans(windows, now.astimezone(zone).date(), zone))
    opened = next((one for one in spans if one.begin <= now < one.end), None)
    if opened is not None and opened.end - opened.begin >= _WEEK:
        return Standing(is_held=True, is_open=True, since=None, until=None, next_begin=None, next_load=None)
    coming = next((one for one in spans if one.begin > now), None)
    is_held = opened is not None or any(one.loads_at <= now < one.end for one in spans)
    return Standing(
        is_held=is_held,
        is_open=opened is not None,
        since=None if opened is None else opened.begin.astimezone(zone),
        until=None if opened is None else opened.end.astimezone(zone),
        next_begin=None if coming is None else coming.begin.astimezone(zone),
        next_load=None if coming is None else coming.loads_at.astimezone(zone),
    )


def _spans(windows: Sequence[ScheduleWindow], today: date, zone: tzinfo) -> Iterator[Span]:
    """The times around today at which a window is open, in order; those that touch are one."""
    days = [today + timedelta(days=shift) for shift in range(-2, _AHEAD)]
    opened = [_span_of(window, day, zone) for window in windows for day in days]
    found = sorted((one for one in opened if one is not None), key=lambda one: one.begin)
    current: Span | None = None
    for one in found:
        if current is None:
            current = one
        elif one.begin <= current.end:
            loads_at = min(current.loads_at, one.loads_at)
            current = Span(loads_at, current.begin, max(current.end, one.end))
        else:
            yield current
            current = one
    if current is not None:
        yield current


def _span_of(window: ScheduleWindow, day: date, zone: tzinfo) -> Span | None:
    """The window that begins on that day; None where it has none, or none that is left by a change of the clock."""
    if DAYS[day.weekday()] not in window.days:
        return None
    return _span(window.start, window.end, window.prewarm_s, day, zone)


@lru_cache(maxsize=4096)
def _span(start_text: str, end_text: str, prewarm_s: int, day: date, zone: tzinfo) -> Span | None:
    start, end = minutes_of_day(start_text), minutes_of_day(end_text)
    midnight = datetime.combine(day, time())
    begins = moment(midnight + timedelta(minutes=start), zone, last=False)
    ends = moment(midnight + timedelta(minutes=end, days=0 if end > start else 1), zone, last=True)
    if begins >= ends:
        return None
    return Span(begins - timedelta(seconds=prewarm_s), begins, ends)


def moment(local: datetime, zone: tzinfo, *, last: bool) -> datetime:
    """The moment, in UTC, at which clocks in that zone show `local`: the first one, or the `last`; where they never
    do, since they are set forward, the moment at which that is done."""
    at = local.replace(tzinfo=zone, fold=int(last)).astimezone(UTC)
    if at.astimezone(zone).replace(tzinfo=None) == local:
        return at
    # Left out: by the offset that holds afterwards it lies before the change, by the one before behind it.
    before = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    behind = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    offset = behind.astimezone(zone).utcoffset()
    while behind - before > _SECOND:
        middle = (before + (behind - before) / 2).replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == offset:
            behind = middle
        else:
            before = middle
    return behind


def _shown(at: datetime) -> str:
    return f"{DAYS[at.weekday()]} {at:%Y-%m-%d %H:%M}"
