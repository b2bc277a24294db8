"""Warning signs of a training that will collapse, named from a run's own metrics while it still goes well.

INTELLECT-2 (arXiv:2505.07291, figures 9 and 10) saw, long before its reward fell: a gradient norm and a share of
clipped tokens that crept up, and an entropy that fell and then rose; a KL divergence to the base model that shoots up
is the fourth. A sign compares two medians, so that one wild step is not a sign: that of the last `window` steps, and
the lowest such median before (for the KL divergence, which grows in every run that learns, that of the window before).
It shows while their ratio is at least the sign's factor. The first steps of a run are left out.

No input or output: metrics in, signs out.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from statistics import median
from typing import Literal, get_args

from shoal.config import WatchConfig

Sign = Literal["grad_norm", "entropy", "clip", "kl"]
SIGNS: tuple[Sign, ...] = get_args(Sign)
# Below such a value nothing is a sign: a share of clipped tokens that triples from nothing is still next to nothing.
FLOORS: dict[Sign, float] = {"grad_norm": 1e-6, "entropy": 0.05, "clip": 0.02, "kl": 0.2}
SAYS: dict[Sign, str] = {
    "grad_norm": "gradient norm",
    "entropy": "entropy",
    "clip": "share of clipped tokens",
    "kl": "KL divergence to the base model",
}


@dataclass(frozen=True, slots=True)
class Look:
    """What one step shows."""

    ratios: Mapping[Sign, float]
    """How far each value is above what it is compared with; nothing until there is something to compare."""
    showing: tuple[Sign, ...]
    began: tuple[Sign, ...]
    """Signs that the step before did not show."""


@dataclass(slots=True)
class _Series:
    """One metric: the last values, and medians of windows that ended at least a window ago."""

    window: int
    values: deque[float]
    medians: deque[float]
    lowest: float = float("inf")

    def add(self, value: float) -> tuple[float, float, float] | None:
        """Median of the last window, lowest median before it, and that of the window before; None if too early."""
        self.values.append(value)
        if len(self.values) < self.window:
            return None
        level = median(self.values)
        before = None
        if len(self.medians) == self.window:
            before = self.medians[0]
            self.lowest = min(self.lowest, before)
        self.medians.append(level)
        return None if before is None else (level, self.lowest, before)


@dataclass(slots=True)
class Watch:
    """Follows a run step by step. What it says depends on nothing but the metrics it was given."""

    config: WatchConfig
    steps: int = 0
    showing: tuple[Sign, ...] = ()
    _series: dict[Sign, _Series] = field(default_factory=dict)

    def look(self, metrics: Mapping[str, object]) -> Look:
        """What the next step's metrics show; a step without an update, or without finite values, shows nothing new."""
        values = _values(metrics)
        if values is None:
            return Look({}, self.showing, ())
        self.steps += 1
        if self.steps <= self.config.skip:
            return Look({}, (), ())
        ratios = {sign: ratio for sign, value in values.items() if (ratio := self._ratio(sign, value)) is not None}
        showing = tuple(sign for sign in SIGNS if ratios.get(sign, 0.0) >= getattr(self.config, sign))
        began = tuple(sign for sign in showing if sign not in self.showing)
        self.showing = showing
        return Look(ratios, showing, began)

    @property
    def stops(self) -> bool:
        """Whether so many signs show that the run is to stop."""
        return 0 < self.config.stop <= len(self.showing)

    def _ratio(self, sign: Sign, value: float) -> float | None:
        window = self.config.window
        series = self._series.setdefault(sign, _Series(window, deque(maxlen=window), deque(maxlen=window)))
        if (found := series.add(value)) is None:
            return None
        level, lowest, before = found
        return level / max(before if sign == "kl" else lowest, FLOORS[sign])


def first_look(config: WatchConfig) -> int:
    """The first step, counted from 0, whose metrics have a window before theirs: no sign can show earlier."""
    return config.skip + 2 * config.window - 1


def describe(sign: Sign, ratio: float, window: int) -> str:
    """A sign in words."""
    what = "window before" if sign == "kl" else "lowest before"
    return f"warning sign {sign}: the {SAYS[sign]} (median of {window} steps) is {ratio:.2g} times that of the {what}"


def _values(metrics: Mapping[str, object]) -> dict[Sign, float] | None:
    found = {key: metrics.get(key) for key in ("grad_norm", "entropy", "clip_low", "clip_high", "kl")}
    numbers = {key: float(value) for key, value in found.items() if isinstance(value, int | float)}
    if len(numbers) < len(found) or not all(map(isfinite, numbers.values())) or not numbers["grad_norm"]:
        return None
    return {
        "grad_norm": numbers["grad_norm"],
        "entropy": numbers["entropy"],
        "clip": numbers["clip_low"] + numbers["clip_high"],
        "kl": numbers["kl"],
    }
