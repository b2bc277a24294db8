"""Study `boundary`: how fast may a policy move before rollouts two versions old teach it something else?

Level 2 against level 0 with the paper's recomputed old log-probs, by learning rate, optimizer steps and clip. With one
optimizer step every recomputed ratio is 1, so no clip holds back what stale rollouts push: a token with negative
advantage that has become rare is pushed down as hard as before, where a ratio measured from the sampling policy
would fade with it. The learning rate alone says how far a version is from the one that sampled. What all three do is
one number, the drift: how far the log-prob of a token has moved since it was sampled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from shoal.studies.async_levels import COMMON, setting
from shoal.studies.claims import Claim
from shoal.studies.configs import laptop_config
from shoal.studies.drawing import COLORS, bars, titled
from shoal.studies.gains import KEPT, gains, kept, surplus
from shoal.studies.intervals import Interval, mean_of
from shoal.studies.one_run import config_of, train_here
from shoal.studies.study import Conclusion, Found, Job, Outcome, Setting, Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL = 2
# Learning rates, and how many times the study's steps each gets: with as many steps the slowest would learn nothing
# that could be lost.
LRS = {1e-5: 3, 3e-5: 2, 1e-4: 1}
# Optimizer steps per training step, and clip. The paper has 8 and 0.2.
UPDATES = ((1, 0.2), (4, 0.2), (4, 0.05))


@dataclass(frozen=True, slots=True)
class Cell:
    """One place on the map: how fast the policy moves, and level 2 against level 0 there."""

    lr: float
    updates: int
    eps: float

    def at(self, level: int) -> Setting:
        return setting(level, "recomputed", self.lr, self.updates, self.eps, LRS[self.lr])

    def runs(self, found: Found, level: int) -> Sequence[Outcome]:
        return found[self.at(level).name]

    def gained(self, found: Found, level: int) -> Interval:
        return mean_of(gains(self.runs(found, level)))

    def kept(self, found: Found) -> Interval:
        """By how much level 2 exceeds three quarters of what level 0 learned."""
        return kept(self.runs(found, 0), self.runs(found, LEVEL))

    def lost(self, found: Found) -> list[float]:
        """Held-out pass@1 of level 2 minus that of level 0, seed by seed."""
        both = (gains(self.runs(found, level)) for level in (0, LEVEL))
        return [stale - fresh for fresh, stale in zip(*both, strict=True)]

    def drift(self, found: Found) -> list[float]:
        """Nats that the log-prob of a token has moved since it was sampled, in each run at level 2."""
        return [fmean(point["drift"] for point in run["curve"]) for run in self.runs(found, LEVEL)]

    def __str__(self) -> str:
        return f"lr {self.lr:g}, {self.updates} x, eps {self.eps:g}"


CELLS = [Cell(lr, updates, eps) for lr in LRS for updates, eps in UPDATES]


class BoundaryStudy:
    """When level 2 with recomputed old log-probs is as good as level 0."""

    name = "boundary"
    summary = "Boundary: where rollouts two versions old teach what fresh ones teach, by rate, optimizer steps and clip"
    paper = "async level 2 learns what level 0 learns, with recomputed old log-probs, at a learning rate of 3e-7"
    loop = "in process, every rollout exactly as old as its level permits; two and three times the steps at lower rates"
    full = Size(steps=40, seeds=3, groups=16, heldout=1024, every=40)
    quick = Size(steps=2, seeds=1, groups=4, heldout=4, every=2, smoke=True)

    def settings(self) -> Sequence[Setting]:
        return [cell.at(level) for cell in CELLS for level in (0, LEVEL)]

    def run(self, job: Job) -> Outcome:
        return train_here(job, config_of(job, laptop_config(), COMMON))

    def conclude(self, found: Found) -> Conclusion:
        slowest = [cell for cell in CELLS if cell.lr == min(LRS)]
        by_seed = zip(*(surplus(cell.runs(found, 0), cell.runs(found, LEVEL)) for cell in slowest), strict=True)
        claims = [
            Claim(
                f"At a learning rate of {min(LRS):g} level 2 learns what level 0 learns",
                f"{KEPT}, mean over optimizer steps and clips",
                mean_of(list(map(fmean, by_seed))),
                lower=0.0,
            )
        ]
        figures: dict[str, float | str] = {}
        for cell in CELLS:
            verdict = Claim("", "", cell.kept(found), lower=0.0).outcome
            figures[f"gained at level 0, {cell}"] = str(cell.gained(found, 0))
            figures[f"gained at level 2, {cell}"] = f"{cell.gained(found, LEVEL)}: as much as level 0 {verdict}"
            figures[f"drift at level 2, {cell}"] = str(mean_of(cell.drift(found)))
        return Conclusion(claims, figures)

    def draw(self, found: Found, figure: "Figure") -> None:
        left, right = figure.subplots(1, 2)
        bars(left, list(map(str, CELLS)), [mean_of(cell.lost(found)) for cell in CELLS])
        titled(left, "What two versions cost", "pass@1 of level 2 minus level 0")
        for lr, color in zip(LRS, COLORS, strict=False):
            cells = [cell for cell in CELLS if cell.lr == lr]
            drifts, lost = ([x for cell in cells for x in measure(cell, found)] for measure in (Cell.drift, Cell.lost))
            right.plot(drifts, lost, "o", color=color, label=f"lr {lr:g}", alpha=0.7)
        right.axhline(0.0, color="#333333", linewidth=0.8)
        right.set_xscale("log")
        right.legend()
        titled(right, "The same, one point per run", "drift: nats per token since it was sampled")
