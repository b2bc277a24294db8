"""Warning signs: found in recorded runs that went wrong, not in recorded runs that went well."""

import json
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest

from shoal.config import WatchConfig
from shoal.train.watch import Sign, Watch, describe

DATA = Path(__file__).parents[1] / "data" / "watch"
SERIES: dict[str, list[dict[str, float]]] = {
    file.stem: [dict(zip(tree["columns"], row, strict=True)) for row in tree["steps"]]
    for file in sorted(DATA.glob("*.json"))
    for tree in [json.loads(file.read_text())]
}
HEALTHY = sorted(name for name in SERIES if name.startswith("healthy"))
COLLAPSED = sorted(name for name in SERIES if name.startswith("collapsed"))


def calm(**changes: float) -> dict[str, Any]:
    return {"grad_norm": 1.0, "entropy": 0.5, "clip_low": 0.01, "clip_high": 0.01, "kl": 0.3, **changes}


def begun(series: list[dict[str, Any]], config: WatchConfig | None = None) -> dict[Sign, int]:
    """The step at which each sign showed first."""
    watch = Watch(config or WatchConfig())
    found: dict[Sign, int] = {}
    for step, metrics in enumerate(series):
        for sign in watch.look(metrics).began:
            found.setdefault(sign, step)
    return found


@pytest.mark.parametrize("name", HEALTHY)
def test_a_recorded_run_that_went_well_shows_no_sign(name: str) -> None:
    assert begun(SERIES[name]) == {}


@pytest.mark.parametrize("name", COLLAPSED)
def test_a_recorded_run_that_collapsed_shows_a_sign(name: str) -> None:
    assert begun(SERIES[name])


def test_a_collapse_within_the_first_steps_is_over_before_the_watch_begins() -> None:
    """What the detector cannot do: the recorded run had lost its reward by step five."""
    assert begun(SERIES["sudden-learning-rate"]) == {}


def without_trend(series: list[dict[str, float]], around: int = 10) -> list[dict[str, float]]:
    """Each value in multiples of the median around it, times the median of the run: the noise of the run alone."""
    later = series[20:]

    def level(key: str, at: int) -> float:
        return median(step[key] for step in later[max(0, at - around) : at + around + 1])

    whole = {key: median(step[key] for step in later) for key in later[0]}
    return [
        {key: whole[key] * (value / near if (near := level(key, at)) else 1.0) for key, value in step.items()}
        for at, step in enumerate(later)
    ]


def shuffled(noise: list[dict[str, float]], steps: int, rng: Random, block: int = 10) -> list[dict[str, float]]:
    """Blocks of steps in random order, which keeps the noise and its short memory."""
    starts = [rng.randrange(len(noise) - block) for _ in range(-(-steps // block))]
    return [noise[at + k] for at in starts for k in range(block)][:steps]


def test_the_false_alarm_rate_is_what_the_docs_say() -> None:
    """Runs of 200 steps that have the noise of recorded healthy runs and no trend: at most 5 % of them alarm."""
    rng = Random(1)
    noises = [without_trend(SERIES[name]) for name in HEALTHY]
    alarms = [bool(begun(shuffled(noise, 200, rng))) for noise in noises for _ in range(200 // len(noises))]
    assert sum(alarms) / len(alarms) <= 0.05


@pytest.mark.parametrize(
    ("sign", "metric", "worse"),
    [("grad_norm", "grad_norm", 4.0), ("entropy", "entropy", 0.9), ("clip", "clip_low", 0.15), ("kl", "kl", 1.2)],
)
def test_each_sign_is_named_by_its_own_metric_alone(sign: Sign, metric: str, worse: float) -> None:
    series = [calm() for _ in range(60)] + [calm(**{metric: worse}) for _ in range(20)]
    found = begun(series)
    assert list(found) == [sign]
    assert 60 < found[sign] <= 70
    assert "warning sign" in describe(sign, 4.0, 10)


def test_a_slow_creep_is_a_sign_however_slow() -> None:
    assert "grad_norm" in begun([calm(grad_norm=1.003**step) for step in range(600)])


def test_one_wild_step_and_a_policy_that_only_learns_are_no_signs() -> None:
    rng = Random(0)
    series = [
        calm(
            grad_norm=rng.lognormvariate(0, 0.3),
            entropy=4.0 * 0.99**step + 0.1,
            kl=0.002 * step,
            clip_low=0.03 * 0.99**step,
        )
        for step in range(400)
    ]
    series[200] = calm(grad_norm=1e4, entropy=9.0, clip_low=1.0, kl=50.0)
    assert begun(series) == {}


def test_the_first_steps_of_a_run_are_not_looked_at() -> None:
    series = [calm(grad_norm=0.01) for _ in range(20)] + [calm() for _ in range(60)]
    assert begun(series) == {}


def test_steps_without_an_update_or_without_finite_numbers_change_nothing() -> None:
    bad: list[dict[str, Any]] = [calm(grad_norm=0.0), calm(kl=float("nan")), calm(entropy=float("inf")), {"step": 3}]
    series = [calm() for _ in range(60)] + bad * 10 + [calm() for _ in range(60)]
    assert begun(series) == {}


def test_a_run_is_to_stop_once_as_many_signs_show_as_its_config_says() -> None:
    one = [calm() for _ in range(60)] + [calm(grad_norm=9.0) for _ in range(20)]
    two = [calm() for _ in range(60)] + [calm(grad_norm=9.0, entropy=2.0) for _ in range(20)]
    for series, stop, stops in ((one, 0, False), (one, 1, True), (one, 2, False), (two, 2, True)):
        watch = Watch(WatchConfig(stop=stop))
        for metrics in series:
            watch.look(metrics)
        assert watch.stops is stops


def test_a_sign_that_goes_away_can_begin_again() -> None:
    series = [calm() for _ in range(60)] + [calm(grad_norm=9.0)] * 20 + [calm()] * 40 + [calm(grad_norm=9.0)] * 20
    watch = Watch(WatchConfig())
    assert [sign for metrics in series for sign in watch.look(metrics).began] == ["grad_norm", "grad_norm"]
