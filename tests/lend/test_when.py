"""When a lent machine works: hours across midnight and daylight saving time, power, and the person in front of it."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoal.lend.when import DAY, IDLE_S, Hours, Observed, When, parse_when, why_not

NIGHT = When(hours=(Hours(22 * 60, 7 * 60),))
BERLIN = ZoneInfo("Europe/Berlin")


def at(clock: str) -> Observed:
    hour, minute = clock.split(":")
    return Observed(60 * int(hour) + int(minute))


@pytest.mark.parametrize(
    ("clock", "works"),
    [("21:59", False), ("22:00", True), ("23:59", True), ("00:00", True), ("06:59", True), ("07:00", False)],
)
def test_hours_across_midnight_begin_and_end_on_the_minute(clock: str, works: bool) -> None:
    assert (why_not(NIGHT, at(clock)) == "") == works


@given(st.integers(0, DAY - 1), st.integers(0, DAY - 1), st.integers(0, DAY - 1))
def test_hours_and_those_between_them_are_the_whole_day_and_never_both(begin: int, end: int, minute: int) -> None:
    if begin != end:
        assert Hours(begin, end).includes(minute) != Hours(end, begin).includes(minute)


def test_all_conditions_must_hold_and_one_of_several_hours() -> None:
    when = parse_when(["idle,plugged", "22:00-07:00", "12:00-13:00"])
    fine = Observed(12 * 60 + 30, plugged=True, input_s=IDLE_S, others_cpus=0.1, cpus=8)
    assert why_not(when, fine) == ""
    assert why_not(when, Observed(12 * 60 + 30, False, IDLE_S, 0.1, 8)) == "the machine runs on battery"
    assert why_not(when, Observed(12 * 60 + 30, True, 3.0, 0.1, 8)).startswith("somebody used the machine 3 s ago")
    assert why_not(when, Observed(12 * 60 + 30, True, IDLE_S, 2.5, 8)) == "other programs keep 2.5 of 8 CPUs busy"
    assert why_not(when, Observed(13 * 60, True, IDLE_S, 0.1, 8)) == (
        "it is 13:00, outside 22:00-07:00 and 12:00-13:00 (local time)"
    )


def test_what_the_system_does_not_tell_keeps_nothing_from_working() -> None:
    assert why_not(When(idle=True), Observed(0, True, None, None, 4)) == ""


def test_an_input_in_the_future_counts_as_one_now() -> None:
    """The clock was set back."""
    assert "0 s ago" in why_not(When(idle=True), Observed(0, True, -3600.0, 0.0, 4))


@pytest.mark.parametrize(
    "text", ["nights", "22-07", "25:00-07:00", "22:60-07:00", "24:01-07:00", "22:00-22:00", "00:00-24:00"]
)
def test_a_condition_that_means_nothing_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--when '?" + text):
        parse_when([text])


def test_conditions_read_back_as_they_were_written() -> None:
    words = ["idle", "plugged", "22:00-07:00", "12:00-24:00"]
    assert parse_when(words).words() == words
    assert parse_when([",".join(words)]) == parse_when(words)
    assert parse_when([]).words() == []


def worked(hours: str, day: str) -> list[str]:
    """The moments of a day in Berlin at which a machine works, looked at every half hour of real time, in UTC."""
    begin = datetime.fromisoformat(day).replace(tzinfo=BERLIN).timestamp()
    moments = [datetime.fromtimestamp(begin + 1800 * number, UTC) for number in range(50)]
    seen = [(moment, moment.astimezone(BERLIN)) for moment in moments]
    when = parse_when([hours])
    works = [(m, b) for m, b in seen if not why_not(when, Observed(60 * b.hour + b.minute)) and f"{b:%F}" == day]
    return [f"{moment:%H:%M}" for moment, _ in works]


@pytest.mark.parametrize(
    ("hours", "day", "utc"),
    [
        ("03:00-04:00", "2026-06-01", ["01:00", "01:30"]),
        ("03:00-04:00", "2026-03-29", ["01:00", "01:30"]),  # an hour after 01:59
        ("02:00-03:00", "2026-03-29", []),  # these do not exist on that day
        ("02:00-03:00", "2026-10-25", ["00:00", "00:30", "01:00", "01:30"]),  # these come twice
        ("03:00-04:00", "2026-10-25", ["02:00", "02:30"]),
    ],
)
def test_hours_are_those_that_the_clock_on_the_wall_shows_when_daylight_saving_time_changes(
    hours: str, day: str, utc: list[str]
) -> None:
    assert worked(hours, day) == utc
