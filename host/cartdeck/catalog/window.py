"""Owns the times of a week in which a model is held: days, from, to, past midnight, and how long before it is loaded.

It does not know a clock nor a time zone: its times are those that a clock on the wall shows.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES: Final = 24 * 60
WEEK_MINUTES: Final = 7 * DAY_MINUTES
_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00")

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class ScheduleWindow(BaseModel):
    """One span of time on each of its days. Where `to` is not after `from`, it ends on the day after."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    days: tuple[Day, ...] = Field(default=DAYS, min_length=1)
    start: str = Field(alias="from")
    end: str = Field(alias="to")
    prewarm_s: int = Field(default=0, ge=0, le=86_400)
    """So long before its beginning the model is loaded."""

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        for key, text in (("from", self.start), ("to", self.end)):
            if not _TIME.fullmatch(text):
                raise ValueError(f'{key}: {text[:40]!r} is no time of a day; expected "00:00" to "24:00"')
        if self.start == "24:00":
            raise ValueError('from: a window begins before "24:00"')
        if self.start == self.end:
            raise ValueError('from and to are the same; all day is from = "00:00", to = "24:00"')
        if len(set(self.days)) != len(self.days):
            raise ValueError("days: a day is there twice")
        return self

    def spans(self) -> list[tuple[int, int]]:
        """From and to, in minutes of the week, Monday 00:00 being 0; one past Sunday's end runs beyond WEEK_MINUTES."""
        start, end = minutes_of_day(self.start), minutes_of_day(self.end)
        length = end - start if end > start else end + DAY_MINUTES - start
        begins = [DAYS.index(day) * DAY_MINUTES + start for day in self.days]
        return sorted((begin, begin + length) for begin in begins)

    def __str__(self) -> str:
        days = "every day" if len(self.days) == len(DAYS) else ",".join(self.days)
        return f"{days} {self.start}-{self.end}"


def overlap(windows: Sequence[ScheduleWindow]) -> tuple[ScheduleWindow, ScheduleWindow] | None:
    """The first two windows that share a minute; None where there are none."""
    spans = sorted(((*span, index) for index, window in enumerate(windows) for span in window.spans()))
    if not spans:
        return None
    begin, end, first = spans[0]
    around = [*spans, (begin + WEEK_MINUTES, end + WEEK_MINUTES, first)]  # Sunday night runs into Monday
    for (_, end, index), (begin, _, following) in pairwise(around):
        if begin < end:
            return windows[index], windows[following]
    return None


def minutes_of_day(text: str) -> int:
    """Of a time such as "22:00"."""
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)
