"""Study `stability`: do gradient clip, entropy bonus and KL term keep a training up, and do signs precede its fall?

One setting at a time is moved away from the recipe, in a training that is fast enough to collapse. A run has collapsed
at the first step at which the mean reward of five steps is below half of the best before, or at which it diverged.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from shoal.config import WatchConfig
from shoal.studies.claims import Claim
from shoal.studies.configs import laptop_config
from shoal.studies.drawing import COLORS, band, bars, titled
from shoal.studies.gains import finals
from shoal.studies.intervals import UNKNOWN, mean_of, paired
from shoal.studies.one_run import config_of, train_here
from shoal.studies.study import Conclusion, Found, Job, Outcome, Setting, Size
from shoal.train.watch import first_look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Fast: at three times this rate a run without gradient clip collapses within ten steps, before any sign can show.
# Without the online filter, which would sample a collapsed policy for ever larger steps.
COMMON: dict[str, Any] = {
    "train.old_logprobs": "sampled",
    "train.lr": 1e-4,
    "train.optimizer_steps": 4,
    "train.online_filter": False,
    # Half of what a run has, because these runs are short.
    "train.watch.window": 5,
    "train.watch.skip": 5,
}
RECIPE = "recipe"
MOVED: dict[str, dict[str, Any]] = {
    RECIPE: {},
    "no-gradient-clip": {"train.grad_clip": 1e9},
    "no-entropy-bonus": {"train.loss.entropy_coef": 0.0},
    # A slower collapse, found with a seed that the study does not have; two thirds of it did not collapse there.
    "some-entropy-bonus": {"train.loss.entropy_coef": 0.03},
    "much-entropy-bonus": {"train.loss.entropy_coef": 0.1},
    "no-kl": {"train.loss.kl_coef": 0.0},
    "much-kl": {"train.loss.kl_coef": 0.1},
}
FIRST_LOOK = first_look(WatchConfig(window=COMMON["train.watch.window"], skip=COMMON["train.watch.skip"]))
AVERAGED = 5
FALLEN = 0.5


class StabilityStudy:
    """What keeps a fast training from collapsing, and what shows before it does."""

    name = "stability"
    summary = "Stability: reward with and without gradient clip, entropy bonus and KL term, and signs before a collapse"
    paper = (
        "a small gradient clip (0.05 .. 0.1) keeps training stable; gradient norm, clip share and entropy rise long "
        "before the reward falls (figures 9 and 10)"
    )
    loop = "in process, every rollout exactly two versions old"
    full = Size(steps=80, seeds=3, groups=16, heldout=512, every=80)
    quick = Size(steps=2, seeds=2, groups=4, heldout=4, every=2, smoke=True)

    def settings(self) -> Sequence[Setting]:
        return [Setting(name, {**COMMON, **changes}, lag=2) for name, changes in MOVED.items()]

    def run(self, job: Job) -> Outcome:
        config = config_of(job, laptop_config(), {"sampling.group_size": 8})
        return train_here(job, config)

    def conclude(self, found: Found) -> Conclusion:
        claims = [
            Claim(
                "A gradient clip of 0.1 keeps reward that training without it loses",
                "held-out pass@1 of the recipe minus that without gradient clip",
                paired(finals(found["no-gradient-clip"]), finals(found[RECIPE])),
                lower=0.0,
            ),
            Claim(
                "Signs come long before a collapse",
                "steps from the first sign to the collapse, 0 without a sign, mean over a seed's runs that collapsed,",
                mean_of(leads) if (leads := leads_by_seed(found)) else UNKNOWN,
                lower=AVERAGED,
            ),
        ]
        runs = [run for name in MOVED for run in found[name]]
        calm = [run for run in runs if collapse(run) is None]
        fallen = [run for run in runs if watched(run)]
        figures: dict[str, float | str] = {f"pass@1, {name}": str(mean_of(finals(found[name]))) for name in MOVED}
        figures |= {
            "runs that collapsed": f"{len(runs) - len(calm)} of {len(runs)}",
            f"of these, before step {FIRST_LOOK}, when signs are first looked for": len(runs) - len(calm) - len(fallen),
            "runs that collapsed later and had warned": f"{sum(lead(run) > 0 for run in fallen)} of {len(fallen)}",
            "other runs that showed a sign": f"{sum(bool(run['signs']) for run in calm)} of {len(calm)}",
        }
        return Conclusion(claims, figures)

    def draw(self, found: Found, figure: "Figure") -> None:
        panels = figure.subplots(1, 4)
        curves = (("reward", "Reward"), ("grad_norm", "Gradient norm"), ("entropy", "Entropy"))
        for axes, (key, title) in zip(panels[:3], curves, strict=True):
            for name, color in zip(MOVED, COLORS, strict=False):
                band(axes, found[name], key, name, color)
            titled(axes, title, "step")
        panels[0].legend()
        bars(panels[3], list(MOVED), [mean_of(finals(found[name])) for name in MOVED])
        titled(panels[3], "Held-out pass@1", "")


def collapse(run: Outcome) -> int | None:
    """The step at which a run had collapsed; None if it did not."""
    rewards = [point["reward"] for point in run["curve"]]
    best = 0.0
    for end in range(AVERAGED, len(rewards) + 1):
        mean = sum(rewards[end - AVERAGED : end]) / AVERAGED
        if mean < FALLEN * best:
            return end - 1
        best = max(best, mean)
    return len(rewards) - 1 if run["diverged"] else None


def watched(run: Outcome) -> bool:
    """Whether a run collapsed after the first step at which a sign can show: only then can signs be early or late."""
    fell = collapse(run)
    return fell is not None and fell > FIRST_LOOK


def lead(run: Outcome) -> int:
    """Steps from the first sign to the collapse of a run; 0 if nothing was shown before it."""
    fell = collapse(run)
    return max(0, fell - min(run["signs"].values(), default=fell)) if fell is not None else 0


def leads_by_seed(found: Found) -> list[float]:
    """Mean lead of each seed's runs that collapsed under watch, for the seeds that have any."""
    by_seed = zip(*(found[name] for name in MOVED), strict=True)
    leads = [[lead(run) for run in runs if watched(run)] for runs in by_seed]
    return [fmean(one) for one in leads if one]
