"""Windows for moves and changes of MIG layouts, with daylight saving."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import yaml
from pydantic import ValidationError

from extender.settings import Settings, SettingsError, Window, next_window
from extender.settings_file import load
from tests.examples import examples

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "UTC")


def starts(window: Window, around: float) -> list[float]:
    """An obvious oracle, for ``MINUTE HOUR * * DAYS``: look at each day; a time that the clocks skip is the
    next one that they have."""
    minute, hour, _, _, days = window.cron.split()
    zone, found = ZoneInfo(window.zone), []
    first = datetime.fromtimestamp(around, zone).date() - timedelta(days=9)
    for day in (first + timedelta(days=number) for number in range(18)):
        if days != "*" and str(day.isoweekday()) not in days.split(","):
            continue
        naive = datetime(day.year, day.month, day.day, int(hour), int(minute))
        while naive.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) != naive:
            naive += timedelta(minutes=1)
        found.append(naive.replace(tzinfo=zone).timestamp())
    return found


def transitions(zone: str) -> list[float]:
    """The changes of the clocks in 2026 and 2027, to within an hour."""
    found, known = [], ZoneInfo(zone)
    for hour in range(2 * 366 * 24):
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hour)
        if at.astimezone(known).utcoffset() != (at + timedelta(hours=1)).astimezone(known).utcoffset():
            found.append(at.timestamp())
    return found


def test_no_time_outside_counts_as_inside() -> None:
    """Half of the random times are near a change of the clocks."""
    draw, changes = random.Random(1), {zone: transitions(zone) for zone in ZONES}
    inside = 0
    for number in range(examples(20_000, least=1000)):
        zone = draw.choice(ZONES)
        days = draw.choice(("*", "1,2,3,4,5", "6,7"))
        cron = f"{draw.randrange(60)} {draw.choice((0, 1, 2, 3, 22))} * * {days}"
        window = Window(cron=cron, zone=zone, duration=draw.choice((60, 1800, 6 * 3600, 86_400, 7 * 86_400)))
        now = draw.uniform(datetime(2026, 1, 1).timestamp(), datetime(2028, 1, 1).timestamp())
        if number % 2 and changes[zone]:
            now = draw.choice(changes[zone]) + draw.uniform(-1, 1) * 12 * 3600
        known = starts(window, now)
        is_open = any(start <= now < start + window.duration for start in known)
        opens = next_window([window], now)
        assert (opens == 0) == is_open, (window, datetime.fromtimestamp(now, ZoneInfo(zone)))
        assert is_open or opens == min(start for start in known if start > now)
        inside += is_open
    assert inside > 100


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_change_must_end_before_the_window_does() -> None:
    window = Window(cron="0 22 * * *", duration="2h")
    assert next_window([window], at("2026-03-01T23:00Z"), lasts=3600) == 0
    assert next_window([window], at("2026-03-01T23:01Z"), lasts=3600) == at("2026-03-02T22:00Z")
    assert next_window([window], at("2026-03-01T22:00Z"), lasts=1e9) == 0  # never too short for itself
    assert next_window([], at("2026-03-01T12:00Z"), lasts=3600) == 0


def test_the_first_of_several_windows_counts() -> None:
    windows = [Window(cron="0 22 * * *", duration="2h"), Window(cron="0 13 * * *", duration="1h")]
    assert next_window(windows, at("2026-03-01T12:00Z")) == at("2026-03-01T13:00Z")
    assert next_window(windows, at("2026-03-01T13:59Z")) == 0


def test_a_window_across_the_lost_hour_is_an_hour_shorter_on_the_clock() -> None:
    window = Window(cron="0 1 * * *", zone="Europe/Berlin", duration="2h")
    assert next_window([window], at("2026-03-29T03:59+02:00")) == 0
    assert next_window([window], at("2026-03-29T04:00+02:00")) == at("2026-03-30T01:00+02:00")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"cron": "61 * * * *"}, "windows.0.cron: '61 * * * *' is no time in crontab: Bad minute"),
        ({"cron": "0 22 * *"}, "windows.0.cron: '0 22 * *' has not the five fields of cron"),
        ({"cron": "* * */20 * 1L"}, "windows.0.cron: '* * */20 * 1L' never comes"),
        ({"zone": "Mars/Base"}, "windows.0.zone: 'Mars/Base' is not a time zone such as Europe/Berlin"),
        ({"zone": "../UTC"}, "windows.0.zone: '../UTC' is not a time zone"),
        ({"duration": 1}, "windows.0.duration: Input should be greater than or equal to 60"),
        ({"duration": "8d"}, "windows.0.duration"),
        ({"minutes": 5}, "windows.0.minutes: unknown setting"),
    ],
)
def test_what_cannot_be_read_stops_the_start(given: dict[str, object], problem: str) -> None:
    text = yaml.safe_dump([{"cron": "0 22 * * 1-5", "duration": "6h"} | given])
    with pytest.raises(SettingsError) as error:
        load(None, {"STOWAGE_WINDOWS": text})
    assert problem in str(error.value)


def test_it_can_be_written_as_in_the_documentation() -> None:
    windows = [{"cron": "0 22 * * 1-5", "zone": "Europe/Berlin", "duration": "6h"}]
    assert Settings(windows=windows).windows[0].duration == 6 * 3600  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        Settings(windows=windows * 33)  # type: ignore[arg-type]
