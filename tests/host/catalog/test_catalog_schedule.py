"""When windows are open, to the second, in time zones whose clocks are set forward and back."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cartdeck import CartdeckError, Code
from cartdeck.catalog.schedule import moment, standing
from cartdeck.catalog.time_zone import time_zone
from cartdeck.catalog.window import DAYS, ScheduleWindow

BERLIN = ZoneInfo("Europe/Berlin")  # forward 2026-03-29 02:00 to 03:00, back 2026-10-25 03:00 to 02:00
SECOND = timedelta(seconds=1)


def window(begin: str, end: str, *days: str, prewarm_s: int = 0) -> ScheduleWindow:
    keys: dict[str, Any] = {"from": begin, "to": end, "prewarm_s": prewarm_s, **({"days": days} if days else {})}
    return ScheduleWindow.model_validate_json(json.dumps(keys))


def at(text: str, zone: Any = BERLIN, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def is_open(windows: list[ScheduleWindow], text: str, fold: int = 0) -> bool:
    return standing(windows, at(text, fold=fold), BERLIN).is_open


def test_a_window_past_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    night = [window("22:00", "06:00", "sun", prewarm_s=600)]
    assert not is_open(night, "2026-06-07 21:59:59")  # a Sunday
    assert standing(night, at("2026-06-07 21:49:59"), BERLIN).is_held is False
    warm = standing(night, at("2026-06-07 21:50"), BERLIN)
    assert (warm.is_held, warm.is_open, warm.until) == (True, False, None)
    assert warm.next_begin == at("2026-06-07 22:00")
    assert warm.next_load == at("2026-06-07 21:50")
    assert is_open(night, "2026-06-07 22:00")
    assert is_open(night, "2026-06-08 05:59:59")
    assert not is_open(night, "2026-06-08 06:00")
    assert not is_open(night, "2026-06-08 22:30")
    assert str(standing(night, at("2026-06-08 12:00"), BERLIN)) == "next sun 2026-06-14 22:00"
    assert str(standing(night, at("2026-06-07 23:00"), BERLIN)) == "open until mon 2026-06-08 06:00"


def test_several_windows_that_touch_are_one_and_the_next_is_the_one_behind_them() -> None:
    day = [window("08:00", "12:00", prewarm_s=60), window("12:00", "18:00", prewarm_s=7200), window("20:00", "24:00")]
    now = standing(day, at("2026-06-08 09:00"), BERLIN)
    assert (now.since, now.until) == (at("2026-06-08 08:00"), at("2026-06-08 18:00"))
    assert now.next_begin == at("2026-06-08 20:00")
    assert standing(day, at("2026-06-08 07:59:30"), BERLIN).is_held
    assert not standing(day, at("2026-06-08 19:59:59"), BERLIN).is_held
    always = [window("00:00", "13:00"), window("13:00", "24:00")]
    for month in range(1, 10):
        found = standing(always, at(f"2026-0{month}-28 23:59:59"), BERLIN)
        assert (found.is_held, found.until, found.next_begin, str(found)) == (True, None, None, "always open")
    most = [window("00:00", "24:00", *DAYS[:6]), window("00:00", "23:59", "sun")]
    assert str(standing(most, at("2026-06-08 09:00"), BERLIN)) == "open until sun 2026-06-14 23:59"


def test_no_windows_are_never_open() -> None:
    none = standing([], at("2026-06-08 09:00"), BERLIN)
    assert (none.is_held, none.next_begin, str(none)) == (False, None, "no windows")


def test_the_prewarm_before_a_clock_that_is_set_forward_is_as_long_as_any() -> None:
    # 03:00 is what the clock shows right behind 01:59:59
    windows = [window("03:00", "05:00", prewarm_s=1800)]
    assert standing(windows, at("2026-03-29 01:30"), BERLIN).is_held
    assert not standing(windows, at("2026-03-29 01:29:59"), BERLIN).is_held
    assert not is_open(windows, "2026-03-29 01:59:59")
    assert is_open(windows, "2026-03-29 03:00")


def test_a_time_that_is_left_out_is_the_moment_at_which_the_clock_is_set() -> None:
    change = datetime(2026, 3, 29, 1, tzinfo=UTC)
    for text in ("2026-03-29 02:00", "2026-03-29 02:30", "2026-03-29 02:59"):
        assert moment(datetime.fromisoformat(text), BERLIN, last=False) == change
        assert moment(datetime.fromisoformat(text), BERLIN, last=True) == change
    begins = [window("02:30", "04:00")]
    assert is_open(begins, "2026-03-29 03:00")
    assert not is_open(begins, "2026-03-29 01:59:59")
    ends = [window("01:00", "02:30")]
    assert is_open(ends, "2026-03-29 01:59:59")
    assert not is_open(ends, "2026-03-29 03:00")
    gone = [window("02:10", "02:50")]
    assert standing(gone, at("2026-03-29 00:00"), BERLIN).next_begin == at("2026-03-30 02:10")


def test_an_hour_that_comes_twice_is_in_the_window_both_times() -> None:
    windows = [window("02:15", "02:45")]
    assert is_open(windows, "2026-10-25 02:20", fold=0)
    assert is_open(windows, "2026-10-25 02:50", fold=0)  # between the two
    assert is_open(windows, "2026-10-25 02:44:59", fold=1)
    assert not is_open(windows, "2026-10-25 02:45", fold=1)
    opened = standing(windows, at("2026-10-25 02:20"), BERLIN)
    assert opened.since is not None
    assert opened.until is not None
    assert opened.until.astimezone(UTC) - opened.since.astimezone(UTC) == timedelta(minutes=90)


DAY_SETS = st.lists(st.sampled_from(DAYS), min_size=1, max_size=7, unique=True)
TIMES = st.integers(0, 1439).map(lambda minute: f"{minute // 60:02d}:{minute % 60:02d}")
ZONES = st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"])


@given(DAY_SETS, TIMES, TIMES, st.integers(0, 7200), ZONES, st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1)))
def test_whatever_the_zone_what_is_said_of_the_next_and_the_end_comes_true(
    days: list[str], begin: str, end: str, prewarm_s: int, name: str, local: datetime
) -> None:
    if begin == end:
        return
    zone = ZoneInfo(name)
    windows = [window(begin, end, *days, prewarm_s=prewarm_s)]
    now = local.replace(tzinfo=UTC, microsecond=0)
    found = standing(windows, now, zone)
    assert found.next_begin is not None
    assert found.next_load is not None
    assert found.next_begin > now
    assert standing(windows, found.next_begin.astimezone(UTC), zone).is_open
    assert standing(windows, found.next_load.astimezone(UTC), zone).is_held
    assert not standing(windows, found.next_begin.astimezone(UTC) - SECOND, zone).is_open
    if found.until is not None:
        assert found.is_open
        assert found.is_held
        assert standing(windows, found.until.astimezone(UTC) - SECOND, zone).is_open
        assert not standing(windows, found.until.astimezone(UTC), zone).is_open
    plain = found.to_plain()
    # in UTC: for Python, a time in an hour that a zone has twice is equal to none of another zone
    assert datetime.fromisoformat(plain["next_begin"]).astimezone(UTC) == found.next_begin.astimezone(UTC)


def test_a_zone_is_named_or_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    summer = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert summer.astimezone(time_zone("Europe/Berlin")).hour == 14
    for text in ("Europe/Berlin", ":Europe/Berlin", "CET-1CEST,M3.5.0,M10.5.0/3"):
        monkeypatch.setenv("TZ", text)
        assert summer.astimezone(time_zone()).hour == 14
    file = Path("/usr/share/zoneinfo/Europe/Berlin")
    if file.exists():
        monkeypatch.setenv("TZ", str(file))
        assert summer.astimezone(time_zone()).hour == 14
    monkeypatch.delenv("TZ")
    assert summer.astimezone(time_zone()).utcoffset() == summer.astimezone().utcoffset()


@pytest.mark.parametrize("name", ["Europe/Atlantis", "../etc/passwd", "/etc/passwd", "nowhere at all", "Ä"])
def test_a_zone_that_nobody_knows_is_refused(name: str) -> None:
    with pytest.raises(CartdeckError, match="expected one such as Europe/Berlin") as caught:
        time_zone(name)
    assert caught.value.code is Code.BAD_ARGUMENT
    assert caught.value.argument == "--time-zone"
