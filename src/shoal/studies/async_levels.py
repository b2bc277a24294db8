"""Study `async`: does training on rollouts that are up to four versions old learn what on-policy training learns?

Levels 0, 1, 2 and 4, with the paper's recomputed old log-probs and with sampled ones. When they overlap, by learning
rate, optimizer steps and clip, is study `boundary`; what levels do to the wall time of processes is study `speed`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.studies.claims import Claim
from shoal.studies.configs import laptop_config
from shoal.studies.drawing import COLORS, band, titled
from shoal.studies.gains import KEPT, bases, finals, kept
from shoal.studies.intervals import mean_of, shared_confidence
from shoal.studies.one_run import config_of, train_here
from shoal.studies.study import Conclusion, Found, Job, Outcome, Setting, Size
from shoal.studies.training_loop import pipelined

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = (0, 1, 2, 4)
KINDS = ("recomputed", "sampled")
LR = 1e-4
# Without the online filter all levels take the same number of samples, also where one of them has collapsed.
COMMON = {"sampling.group_size": 8, "train.online_filter": False}


def setting(level: int, kind: str, lr: float = LR, updates: int = 1, eps: float = 0.2, times: int = 1) -> Setting:
    """Rollouts `level` versions old, how fast the policy moves, and how many times the study's steps it takes."""
    changes = {
        "train.old_logprobs": kind,
        "train.lr": lr,
        "train.optimizer_steps": updates,
        "train.loss.eps": eps,
    }
    return Setting(f"level{level}-{kind}-lr{lr:g}-updates{updates}-eps{eps:g}", changes, lag=level, times=times)


class AsyncStudy:
    """Async levels against level 0."""

    name = "async"
    summary = "Async levels: held-out pass@1 on rollouts up to four versions old, against on-policy training"
    paper = "async levels 0, 1, 2 and 4 give overlapping reward curves (figure 7), with recomputed old log-probs"
    loop = "in process, every rollout exactly as old as its level permits"
    full = Size(steps=40, seeds=4, groups=32, heldout=1024, every=40)
    quick = Size(steps=2, seeds=1, groups=4, heldout=4, every=2, smoke=True)

    def settings(self) -> Sequence[Setting]:
        return [setting(level, kind) for kind in KINDS for level in LEVELS]

    def run(self, job: Job) -> Outcome:
        return train_here(job, config_of(job, laptop_config(), COMMON))

    def conclude(self, found: Found) -> Conclusion:
        confidence = shared_confidence(len(LEVELS) - 1)
        claims = [
            Claim(
                f"Async level {level} with {kind} old log-probs learns what level 0 learns",
                KEPT,
                kept(found[setting(0, kind).name], found[setting(level, kind).name], confidence),
                lower=0.0,
                is_ours=kind == "sampled",
            )
            for kind in KINDS
            for level in LEVELS[1:]
        ]
        return Conclusion(claims, {**self._levels(found), **self._wall(found)})

    def _levels(self, found: Found) -> dict[str, str]:
        cells = [(level, kind) for kind in KINDS for level in LEVELS]
        return {
            "pass@1, base": str(mean_of(bases(found[setting(0, "sampled").name]))),
            **{
                f"pass@1, level {level}, {kind}": str(mean_of(finals(found[setting(level, kind).name])))
                for level, kind in cells
            },
        }

    def _wall(self, found: Found) -> dict[str, str]:
        """What levels hide if trainer and worker have a machine each, from the seconds that both computed."""
        said = {}
        for level in LEVELS[1:]:
            ratios = []
            for run in found[setting(0, "sampled").name]:
                generate, train = ([point[key] for point in run["curve"]] for key in ("generate_s", "train_s"))
                ratios.append(pipelined(generate, train, level) / pipelined(generate, train, 0))
            said[f"wall time, level {level} / level 0, computed for two machines"] = str(mean_of(ratios))
        return said

    def draw(self, found: Found, figure: "Figure") -> None:
        for axes, kind in zip(figure.subplots(1, len(KINDS), sharey=True), KINDS, strict=True):
            for level, color in zip(LEVELS, COLORS, strict=False):
                band(axes, found[setting(level, kind).name], "reward", f"level {level}", color)
            titled(axes, f"{kind} old log-probs", "step", "training reward")
            axes.legend()
