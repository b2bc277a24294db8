"""Study `clip`: does the second bound of the ratio, delta, prevent the blow-up that the paper saw at large ratios?

GRPO's clip does not hold a token with negative advantage whose ratio grew: its loss is as large as the ratio. That is
provoked here with rollouts four versions old, ratios measured from the policy that sampled them, several optimizer
steps and a high learning rate, with the gradient clip of the recipe and without.
"""

from collections.abc import Sequence
from math import log10
from typing import TYPE_CHECKING

from shoal.studies.claims import Claim
from shoal.studies.configs import laptop_config
from shoal.studies.drawing import COLORS, band, bars, titled
from shoal.studies.gains import finals
from shoal.studies.intervals import mean_of, paired
from shoal.studies.one_run import config_of, train_here
from shoal.studies.study import Conclusion, Found, Job, Outcome, Setting, Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAG = 4
# Beyond what a log-ratio can be (`rl/loss.py` clamps it at 20): the bound never acts.
NO_DELTA = 1e9
NO_CLIP = 1e9
DELTAS = {"two-sided": 4.0, "one-sided": NO_DELTA}
GRADIENT_CLIPS = {"clipped": 0.1, "unclipped": NO_CLIP}
# Fast enough that ratios exceed 100, and slow enough that a run does not collapse before they matter. Without the
# online filter, which would sample a collapsed policy for ever larger steps, all runs take as many samples.
COMMON = {
    "train.old_logprobs": "sampled",
    "train.lr": 1e-4,
    "train.optimizer_steps": 4,
    "train.online_filter": False,
}
SMALLEST = 1e-12


def setting(side: str, gradient: str) -> Setting:
    changes = {"train.loss.delta": DELTAS[side], "train.grad_clip": GRADIENT_CLIPS[gradient]}
    return Setting(f"{side}-{gradient}", {**COMMON, **changes}, lag=LAG)


class ClipStudy:
    """The two-sided clip against GRPO's own."""

    name = "clip"
    summary = "Two-sided clip: the largest gradient and the reward with delta = 4, against GRPO's one-sided clip"
    paper = "without delta, ratios above 100 at negative advantages make the loss blow up; delta = 4 prevents it"
    loop = "in process, every rollout exactly four versions old"
    full = Size(steps=40, seeds=12, groups=8, heldout=512, every=40)
    quick = Size(steps=2, seeds=2, groups=4, heldout=4, every=2, smoke=True)

    def settings(self) -> Sequence[Setting]:
        return [setting(side, gradient) for gradient in GRADIENT_CLIPS for side in DELTAS]

    def run(self, job: Job) -> Outcome:
        config = config_of(job, laptop_config(), {"sampling.group_size": 8})
        return train_here(job, config)

    def conclude(self, found: Found) -> Conclusion:
        free = {side: found[setting(side, "unclipped").name] for side in DELTAS}
        norms = {side: [_largest(run, "grad_norm_max") for run in runs] for side, runs in free.items()}
        claims = [
            Claim(
                "Without delta the ratio of some token exceeds 100",
                "log10 of a run's largest ratio",
                mean_of([_largest(run, "ratio_max") for run in free["one-sided"]]),
                lower=2.0,
            ),
            Claim(
                "delta = 4 at least halves the largest gradient norm of a run",
                "log10 of the largest gradient norm, one-sided minus two-sided",
                paired(norms["two-sided"], norms["one-sided"]),
                lower=log10(2),
            ),
            Claim(
                "delta = 4 costs no reward",
                "held-out pass@1, two-sided minus one-sided, without gradient clip",
                paired(finals(free["one-sided"]), finals(free["two-sided"])),
                lower=-0.02,
            ),
        ]
        figures = {
            f"{what}, {side}, gradient {gradient}": str(mean_of([measure(run) for run in found[one.name]]))
            for gradient in GRADIENT_CLIPS
            for side in DELTAS
            for one in [setting(side, gradient)]
            for what, measure in (
                ("log10 of the largest ratio", lambda run: _largest(run, "ratio_max")),
                ("log10 of the largest gradient norm", lambda run: _largest(run, "grad_norm_max")),
                ("updates that were not finite", lambda run: sum(point["updates_skipped"] for point in run["curve"])),
                ("pass@1", lambda run: run["final"]),
            )
        }
        return Conclusion(claims, figures)

    def draw(self, found: Found, figure: "Figure") -> None:
        left, middle, right = figure.subplots(1, 3)
        for one, color in zip(self.settings(), COLORS, strict=False):
            band(left, found[one.name], "reward", one.name, color)
        titled(left, "Learning", "step", "training reward")
        left.legend()
        for axes, key, title in (
            (middle, "grad_norm_max", "Largest gradient norm"),
            (right, "ratio_max", "Largest ratio"),
        ):
            cells = [mean_of([_largest(run, key) for run in found[one.name]]) for one in self.settings()]
            bars(axes, [one.name for one in self.settings()], cells)
            titled(axes, title, "log10")


def _largest(run: Outcome, key: str) -> float:
    return log10(max(SMALLEST, *(point[key] for point in run["curve"])))
