"""When a lent machine may work: idle, plugged in, within hours, or all of these. Pure functions of what was observed.

Hours are wall-clock time of this machine, compared at each look and never counted down: after a change of the time
zone, at the beginning and end of daylight saving time and after a clock was set, the next look is right.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import ConfigError

DAY = 24 * 60
# Nobody has typed for so long, and other programs use less than this share of the machine's CPUs.
IDLE_S = 300.0
IDLE_SHARE = 0.25
_HOURS = re.compile(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)")


@dataclass(frozen=True, slots=True)
class Hours:
    """A time of day, in minutes since midnight: from `begin` on and before `end`, which may be on the next day."""

    begin: int
    end: int

    def includes(self, minute: int) -> bool:
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end

    def __str__(self) -> str:
        return f"{_clock(self.begin)}-{_clock(self.end)}"


@dataclass(frozen=True, slots=True)
class When:
    """What must hold; of several hours one is enough."""

    idle: bool = False
    plugged: bool = False
    hours: tuple[Hours, ...] = ()

    def words(self) -> list[str]:
        """As a person writes it."""
        return ["idle"] * self.idle + ["plugged"] * self.plugged + [str(each) for each in self.hours]


@dataclass(frozen=True, slots=True)
class Observed:
    """What a machine is like at a moment; None for what the system does not tell."""

    minute: int
    """Of the local day, since midnight."""
    plugged: bool = True
    """A machine without a battery always is."""
    input_s: float | None = None
    """Seconds since somebody typed or moved the mouse."""
    others_cpus: float | None = None
    """CPUs that programs other than the worker keep busy."""
    cpus: int = 1


def parse_when(texts: Sequence[str]) -> When:
    """The conditions of `--when`, each given by itself or several with commas between them."""
    words = [word.strip() for text in texts for word in text.split(",") if word.strip()]
    hours = []
    for word in words:
        if word in ("idle", "plugged"):
            continue
        match = _HOURS.fullmatch(word)
        if match is None:
            raise ConfigError(f"--when {word!r:.40}: is unknown; give idle, plugged or hours such as 22:00-07:00")
        first, second = _minute(word, match[1], match[2]), _minute(word, match[3], match[4])
        if first % DAY == second % DAY:
            raise ConfigError(f"--when {word}: begins when it ends; leave it out to lend the machine all day")
        hours.append(Hours(first % DAY, second))
    return When("idle" in words, "plugged" in words, tuple(hours))


def why_not(when: When, now: Observed) -> str:
    """Why the machine may not work now; empty if it may."""
    if when.hours and not any(each.includes(now.minute) for each in when.hours):
        return f"it is {_clock(now.minute)}, outside {' and '.join(map(str, when.hours))} (local time)"
    if when.plugged and not now.plugged:
        return "the machine runs on battery"
    if when.idle and now.input_s is not None and now.input_s < IDLE_S:
        return (
            f"somebody used the machine {max(0.0, now.input_s):.0f} s ago; it is idle after {IDLE_S / 60:.0f} minutes"
        )
    if when.idle and now.others_cpus is not None and now.others_cpus > IDLE_SHARE * now.cpus:
        return f"other programs keep {now.others_cpus:.1f} of {now.cpus} CPUs busy"
    return ""


def _minute(word: str, hour: str, minute: str) -> int:
    found = 60 * int(hour) + int(minute)
    if int(minute) > 59 or found > DAY:
        raise ConfigError(f"--when {word}: {hour}:{minute} is not a time of day; the last one is 24:00")
    return found


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
