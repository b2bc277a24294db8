"""Decimated series: however long a run is, a chart gets a few hundred points, and no peak is lost."""

import math
from bisect import bisect_right
from collections.abc import Sequence

from shoal.telemetry.metrics import Entry, number

MAX_POINTS = 600
LABELLED = 12
"""Bars of a histogram that the page writes a label under (`parts.js`)."""
Column = list[float | None]


def columns(entries: Sequence[Entry], keys: Sequence[str], max_points: int = MAX_POINTS) -> dict[str, object]:
    """Values by key over the entries' steps.

    A short series comes as it is. A long one comes in buckets of `per` steps: their mean, and where it differs the
    lowest and highest value, so that an outlier of one step in thousands is still seen.
    """
    per = max(1, math.ceil(len(entries) / max_points))
    buckets = [entries[at : at + per] for at in range(0, len(entries), per)]
    means: dict[str, Column] = {}
    lows: dict[str, Column] = {}
    highs: dict[str, Column] = {}
    for key in keys:
        found = [[value for entry in bucket if (value := number(entry, key)) is not None] for bucket in buckets]
        if not any(found):
            continue
        means[key] = [_plotted(math.fsum(values) / len(values)) if values else None for values in found]
        if per > 1:
            lows[key] = [_plotted(min(values)) if values else None for values in found]
            highs[key] = [_plotted(max(values)) if values else None for values in found]
    middle = [bucket[len(bucket) // 2]["step"] for bucket in buckets]
    return {"per": per, "x": middle, "mean": means, "low": lows, "high": highs}


def _plotted(value: float) -> float:
    """Seven digits: a chart is zoomed to its values, and of one that hardly moves would show how it was rounded."""
    return float(f"{value:.7g}")


def short(value: float) -> float:
    """Five digits: more than a screen shows, a third of the bytes."""
    return float(f"{value:.5g}")


def finite(value: float) -> float | None:
    """The same for a stranger's number, of which JSON knows neither NaN nor infinity."""
    return short(value) if math.isfinite(value) else None


def histogram(values: Sequence[float], bins: int) -> list[tuple[float, float, int]]:
    """(from, to, count): one bin per value where there are so few that each has a label; else of equal width, one per
    whole number where these fit, so that a place on the axis is a value."""
    distinct = sorted(set(values))
    if not distinct:
        return []
    low, high = distinct[0], distinct[-1]
    if len(distinct) <= min(LABELLED, bins):
        counts = dict.fromkeys(distinct, 0)
    elif high - low < bins and all(value.is_integer() for value in distinct):
        counts = {low + at: 0 for at in range(int(high - low) + 1)}
    else:
        return _equal_bins(values, low, high, bins)
    for value in values:
        counts[value] += 1
    return [(value, value, count) for value, count in counts.items()]


def is_in_bin(value: float, low: float, high: float, highest: float) -> bool:
    """Whether a histogram of values up to `highest` counts a value in this bin: an edge is of the upper one."""
    return low <= value < high or (value == high and high in (low, highest))


def _equal_bins(values: Sequence[float], low: float, high: float, bins: int) -> list[tuple[float, float, int]]:
    edges = [*(min(low + at * (high - low) / bins, high) for at in range(bins)), high]
    found = [0] * bins
    for value in values:
        found[bisect_right(edges, value, hi=bins) - 1] += 1
    return [(edges[at], edges[at + 1], count) for at, count in enumerate(found)]
