"""Study `length`: do answers become as long as they are told to be, and do they stay right?

`configs/length.toml` with its budgets and without, from the same base model. Its targets are tens of tokens: the tiny
model has no thousands. `[length] preset` has the targets and the prompt of the paper.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.studies.claims import Claim
from shoal.studies.configs import checkout_config
from shoal.studies.drawing import COLORS, band, titled
from shoal.studies.gains import bases, finals
from shoal.studies.intervals import mean_of, paired
from shoal.studies.one_run import config_of, train_here
from shoal.studies.study import Conclusion, Found, Job, Outcome, Setting, Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WITH, WITHOUT = "with-budgets", "without-budgets"
FOLLOWED, KEPT = 0.9, -0.05


class LengthStudy:
    """Length budgets against none."""

    name = "length"
    summary = "Length budgets: how well answers follow their targets, and the task reward with and without budgets"
    paper = "the policy learns to respect thinking budgets, and task reward rises as it does without them"
    loop = "in process, every rollout exactly two versions old"
    full = Size(steps=120, seeds=10, first_seed=4, groups=8, heldout=256, every=120)
    quick = Size(steps=2, seeds=2, groups=2, heldout=4, every=2, smoke=True)

    def settings(self) -> Sequence[Setting]:
        return [Setting(WITH, lag=2), Setting(WITHOUT, {"length.targets": []}, lag=2)]

    def run(self, job: Job) -> Outcome:
        config = config_of(job, checkout_config("length.toml"), {})
        return train_here(job, config)

    def conclude(self, found: Found) -> Conclusion:
        ranks = [run["measured"][-1]["length_rank"] for run in found[WITH]]
        reached = {name: finals(found[name]) for name in (WITH, WITHOUT)}
        claims = [
            Claim(
                "Answers follow their targets",
                "rank correlation of an answer's target and its length",
                mean_of(ranks),
                lower=FOLLOWED,
            ),
            Claim(
                "Budgets cost no task reward",
                "held-out pass@1 with budgets minus without",
                paired(reached[WITHOUT], reached[WITH]),
                lower=KEPT,
            ),
        ]
        last = [run["measured"][-1]["lengths"] for run in found[WITH]]
        figures = {f"tokens at target {at}": str(mean_of([one[at] for one in last if at in one])) for at in last[0]}
        figures |= {f"pass@1, {name}": str(mean_of(values)) for name, values in reached.items()}
        figures["pass@1, base"] = str(mean_of(bases(found[WITH])))
        figures["rank correlation, base"] = str(mean_of([run["measured"][0]["length_rank"] for run in found[WITH]]))
        return Conclusion(claims, figures)

    def draw(self, found: Found, figure: "Figure") -> None:
        left, right = figure.subplots(1, 2)
        for name, color in zip((WITH, WITHOUT), COLORS, strict=False):
            band(left, found[name], "solve_rate", name, color)
        titled(left, "Task reward", "step", "solve rate in training")
        left.legend()
        for run in found[WITH]:
            lengths = {int(target): tokens for target, tokens in run["measured"][-1]["lengths"].items()}
            right.plot(sorted(lengths), [lengths[target] for target in sorted(lengths)], marker="o", color=COLORS[0])
        right.axline((0, 0), slope=1, color="#999999", linestyle="--")
        titled(right, "Length of answers", "target, tokens", "mean length, tokens")
