"""Study `staleness`: are tokens younger when answers go on with a new version while they are generated?

The same run with `workers.in_flight` and without, as processes of a swarm. Staleness is that of each token: the step
that trains on it minus the version that drew it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.studies.claims import Claim
from shoal.studies.configs import checkout_config
from shoal.studies.drawing import COLORS, band, bars, titled
from shoal.studies.gains import finals
from shoal.studies.intervals import mean_of, paired
from shoal.studies.one_run import config_of, train_in_swarm
from shoal.studies.study import Conclusion, Found, Job, Outcome, Setting, Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WHOLE, SWAPPED = "one-version-per-answer", "in-flight-swaps"
MARGIN = 0.05


class StalenessStudy:
    """In-flight swaps against answers that keep their version."""

    name = "staleness"
    summary = "Staleness per token: answers that go on with a new version, against answers that keep theirs"
    paper = "(not in the paper) in-flight weight updates make rollouts fresher without costing reward"
    loop = "processes of a swarm, with proofs and validator"
    full = Size(steps=60, seeds=3, groups=16, heldout=512, every=60)
    quick = Size(steps=2, seeds=1, groups=2, heldout=4, every=2, smoke=True)

    def settings(self) -> Sequence[Setting]:
        # An answer changes versions after whole chunks of 32 tokens: it must be able to have more.
        common = {"length.targets": [], "sampling.max_new_tokens": 64, "workers.groups_per_submission": 8}
        return [
            Setting(name, {**common, "workers.in_flight": name == SWAPPED}, swarm=True) for name in (WHOLE, SWAPPED)
        ]

    def run(self, job: Job) -> Outcome:
        return train_in_swarm(job, config_of(job, checkout_config("length.toml"), {}))

    def conclude(self, found: Found) -> Conclusion:
        sides = (WHOLE, SWAPPED)
        lags = {name: [run["staleness_mean"] for run in found[name]] for name in sides}
        reached = {name: finals(found[name]) for name in sides}
        claims = [
            Claim(
                "In-flight swaps make tokens younger",
                "mean staleness per token with swaps minus without",
                paired(lags[WHOLE], lags[SWAPPED]),
                upper=0.0,
                is_ours=True,
            ),
            Claim(
                "In-flight swaps cost no reward",
                "held-out pass@1 with swaps minus without",
                paired(reached[WHOLE], reached[SWAPPED]),
                lower=-MARGIN,
                is_ours=True,
            ),
        ]
        figures = {f"staleness, {name}": str(mean_of(values)) for name, values in lags.items()}
        figures |= {f"pass@1, {name}": str(mean_of(values)) for name, values in reached.items()}
        return Conclusion(claims, figures)

    def draw(self, found: Found, figure: "Figure") -> None:
        left, right = figure.subplots(1, 2)
        for name, color in zip((WHOLE, SWAPPED), COLORS, strict=False):
            band(left, found[name], "reward", name, color)
        titled(left, "Learning", "step", "training reward")
        left.legend()
        lags = [mean_of([run["staleness_mean"] for run in found[name]]) for name in (WHOLE, SWAPPED)]
        bars(right, [WHOLE, SWAPPED], lags)
        titled(right, "Staleness", "versions per token")
