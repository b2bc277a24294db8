"""Study `filters`: do offline and online filters learn more, at equal samples and at equal time?

Half of the tasks are words that the base model never spells, a quarter words that it nearly always does, and a quarter
words in between. Sides that take more samples per step are compared where all have taken as many, and where all have
computed for as long; held-out tasks are those of the whole mixture. What the offline filter itself sampled, once for
all runs, is reported and not charged, as in the paper.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Console

from shoal.config import RunConfig
from shoal.evals.answers import Drawing
from shoal.evals.filter import filter_source
from shoal.files import locked
from shoal.studies.claims import Claim
from shoal.studies.configs import changed, laptop_config
from shoal.studies.drawing import COLORS, titled
from shoal.studies.gains import bases, finals
from shoal.studies.intervals import mean_of, paired, shared_confidence
from shoal.studies.one_run import config_of, fingerprint, train_here
from shoal.studies.study import Conclusion, Found, Job, Outcome, Setting, Size
from shoal.tasks.sources.filtered import Header

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# INTELLECT-2's, arXiv:2505.07291.
KEEP = (0.125, 0.5)
SAMPLES = 8
FILTERED, FILTERED_SMOKE = 2000, 60
PLAIN, OFFLINE, ONLINE = "plain", "offline", "online"
SIDES = (PLAIN, OFFLINE, ONLINE)
FILTER_S = 7200.0


def words(name: str, weight: float, shortest: int, longest: int) -> dict[str, Any]:
    options = {"min_word_len": shortest, "max_word_len": longest}
    return {"source": "reasoning-gym/spell_backward", "name": name, "weight": weight, "options": options}


MIXED = [words("easy", 1, 4, 5), words("between", 1, 6, 8), words("hard", 2, 9, 10)]
COMMON: dict[str, Any] = {"tasks": MIXED, "sampling.group_size": 8, "train.lr": 1e-4}


class FiltersStudy:
    """Each filter against none."""

    name = "filters"
    summary = "Filters: held-out reward with the offline and the online filter, against none"
    paper = "unfiltered, a 7B model hardly learned; filtered to pass rates of 12.5 % .. 50 %, it went from 0.34 to 0.42"
    loop = "in process, every rollout exactly one version old"
    full = Size(steps=40, seeds=24, first_seed=7, groups=16, heldout=512, every=10)
    quick = Size(steps=2, seeds=2, groups=2, heldout=4, every=1, smoke=True)

    def settings(self) -> Sequence[Setting]:
        return [Setting(side, {"train.online_filter": side == ONLINE}, lag=1) for side in SIDES]

    def run(self, job: Job) -> Outcome:
        common = {key: value for key, value in COMMON.items() if not (job.size.smoke and key == "tasks")}
        measured = config_of(job, laptop_config(), common)
        config = measured
        if job.setting.name == OFFLINE:
            kept = self._filtered(job, measured)
            config = changed(measured, {"tasks": [{"source": f"filtered/{kept}"}]})
        return train_here(job, config, measured)

    def _filtered(self, job: Job, config: RunConfig) -> Path:
        """The tasks that the base model solves sometimes; measured once for all seeds."""
        tasks = FILTERED_SMOKE if job.size.smoke else FILTERED
        kept = job.shared / f"kept-{fingerprint(config)}.jsonl"
        keep = (0.0, 1.0) if job.size.smoke else KEEP
        header = Header(config.tasks, config.model.source, SAMPLES, keep, 1.0, 0)
        sampling = config.sampling
        drawing = Drawing(SAMPLES, sampling.temperature, sampling.max_new_tokens, sampling.max_prompt_tokens)
        with locked(job.shared / "filter.lock", "study filters: the filter takes too long elsewhere", FILTER_S):
            if not kept.exists():
                job.said(f"filtering {tasks} tasks")
                filter_source(header, drawing, tasks, kept, Console(file=io.StringIO()))
        return kept

    def conclude(self, found: Found) -> Conclusion:
        confidence = shared_confidence(4)
        claims: list[Claim] = []
        for unit, what in (("samples", "samples"), ("seconds", "time")):
            at = {side: [at_equal(found, seed, side, unit) for seed in _seeds(found)] for side in SIDES}
            claims += [
                Claim(
                    f"The {side} filter learns more than none at equal {what} of training",
                    f"held-out pass@1 with the filter minus without, at equal {what}",
                    paired(at[PLAIN], at[side], confidence),
                    lower=0.0,
                )
                for side in (OFFLINE, ONLINE)
            ]
        base = mean_of(bases(found[PLAIN]))
        figures: dict[str, float | str] = {"pass@1, base": str(base)}
        for side in SIDES:
            figures[f"pass@1 after the last step, {side}"] = str(mean_of(finals(found[side])))
            figures[f"samples, {side}"] = mean_of([run["measured"][-1]["samples"] for run in found[side]]).mean
        figures["samples of the offline filter, once"] = float(FILTERED * SAMPLES)
        return Conclusion(claims, figures)

    def draw(self, found: Found, figure: "Figure") -> None:
        for axes, unit in zip(figure.subplots(1, 2), ("samples", "seconds"), strict=True):
            for side, color in zip(SIDES, COLORS, strict=False):
                together = list(zip(*(run["measured"] for run in found[side]), strict=True))
                xs = [fmean(point[unit] for point in points) for points in together]
                means = [mean_of([point["pass_at_1"] for point in points]) for points in together]
                for run in found[side]:
                    points = run["measured"]
                    ys = [point["pass_at_1"] for point in points]
                    axes.plot([point[unit] for point in points], ys, color=color, alpha=0.1, linewidth=1)
                reach = [one.high - one.mean if one.seeds > 1 else 0.0 for one in means]
                axes.errorbar(xs, [one.mean for one in means], reach, color=color, capsize=3, marker="o", label=side)
            titled(axes, f"By {unit}", unit, "held-out pass@1")
            axes.legend()


def _seeds(found: Found) -> range:
    return range(len(found[PLAIN]))


def at_equal(found: Found, seed: int, side: str, unit: str) -> float:
    """A side's held-out pass@1 where all sides of a seed have spent as much as the one that spent the least."""
    least = min(found[one][seed]["measured"][-1][unit] for one in SIDES)
    return interpolated(found[side][seed]["measured"], unit, least)


def interpolated(points: Sequence[dict[str, Any]], unit: str, at: float) -> float:
    """pass@1 at an amount between two measurements; at the ends, the nearest one."""
    before = points[0]
    for point in points:
        if point[unit] >= at:
            if point[unit] == before[unit]:
                return float(point["pass_at_1"])
            share = (at - before[unit]) / (point[unit] - before[unit])
            return float(before["pass_at_1"] + share * (point["pass_at_1"] - before["pass_at_1"]))
        before = point
    return float(before["pass_at_1"])
