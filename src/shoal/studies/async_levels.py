"""Study `async`: does training on rollouts that are up to four versions old learn what on-policy training learns?

Three parts. Levels 0, 1, 2 and 4 with the paper's recomputed old log-probs and with sampled ones. The boundary: level 2
against level 0 with recomputed ones, by learning rate, optimizer steps and clip, because a level is safe only as long
as the policy moves little in that many steps. Wall time: the same levels as processes of a swarm.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shoal.config import RunConfig
from shoal.studies.claims import Claim
from shoal.studies.configs import laptop_config
from shoal.studies.drawing import COLORS, band, bars, titled
from shoal.studies.intervals import mean_of, paired, shared_confidence
from shoal.studies.one_run import config_of, train_here, train_in_swarm
from shoal.studies.study import Conclusion, Found, Job, Outcome, Setting, Size
from shoal.studies.training_loop import pipelined

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = (0, 1, 2, 4)
KINDS = ("recomputed", "sampled")
LR = 1e-4
BOUNDARY_LRS = (3e-5, 1e-4, 3e-4)
# Optimizer steps per training step, and clip. With one optimizer step all recomputed ratios are 1 and no clip acts.
BOUNDARY_UPDATES = ((1, 0.2), (4, 0.2), (4, 0.05))
MARGIN = 0.05
# Sized so that generating and training a step cost about the same; `python -m benchmarks async` has a bar on it.
SWARM: dict[str, Any] = {
    "tasks": [
        {
            "source": "reasoning-gym/spell_backward",
            "options": {"min_word_len": 6, "max_word_len": 8},
            # With partial credit next to every group has signal: a step takes the same number of samples at all levels.
            "binary": False,
        }
    ],
    "sampling.group_size": 16,
    "sampling.max_new_tokens": 12,
    "train.groups_per_step": 16,
    "train.lr": 1e-4,
    "train.loss.kl_coef": 0.0,
    "workers.count": 1,
    "workers.groups_per_submission": 16,
    # Sequences side by side: with 64, generating the samples of a step takes as long as training on them.
    "workers.max_batch": 64,
    # Two roles share two cores here; a third at work would blur which of them waits.
    "audit.rate": 0.0,
}


def setting(level: int, kind: str, lr: float = LR, updates: int = 1, eps: float = 0.2) -> Setting:
    """One cell; cells of both parts that are the same have the same name, and are run once."""
    changes = {
        "train.old_logprobs": kind,
        "train.lr": lr,
        "train.optimizer_steps": updates,
        "train.loss.eps": eps,
    }
    return Setting(f"level{level}-{kind}-lr{lr:g}-updates{updates}-eps{eps:g}", changes, lag=level)


def swarm_setting(level: int) -> Setting:
    return Setting(f"swarm-level{level}", {**SWARM, "async_level": level}, swarm=True)


class AsyncStudy:
    """Async levels against level 0."""

    name = "async"
    summary = "Async levels: held-out pass@1 on rollouts up to four versions old, against on-policy training"
    paper = "async levels 0, 1, 2 and 4 give overlapping reward curves (figure 7), with recomputed old log-probs"
    loop = "in process, every rollout exactly as old as its level permits; wall time also as processes of a swarm"
    full = Size(steps=60, seeds=3, groups=32, heldout=256, every=20)
    quick = Size(steps=2, seeds=1, groups=4, heldout=4, every=2, smoke=True)

    def settings(self) -> Sequence[Setting]:
        levels = [setting(level, kind) for kind in KINDS for level in LEVELS]
        cells = [
            setting(level, "recomputed", lr, *update)
            for lr in BOUNDARY_LRS
            for update in BOUNDARY_UPDATES
            for level in (0, 2)
        ]
        by_name = {one.name: one for one in (*levels, *cells, *map(swarm_setting, LEVELS))}
        return list(by_name.values())

    def run(self, job: Job) -> Outcome:
        config = config_of(job, self._config(), {} if job.setting.swarm else {"sampling.group_size": 16})
        return train_in_swarm(job, config) if job.setting.swarm else train_here(job, config)

    def _config(self) -> RunConfig:
        return laptop_config()

    def conclude(self, found: Found) -> Conclusion:
        confidence = shared_confidence(len(LEVELS) - 1)
        claims = [
            Claim(
                f"Async level {level} with {kind} old log-probs learns what level 0 learns",
                "held-out pass@1 minus that of level 0",
                paired(_finals(found, setting(0, kind)), _finals(found, setting(level, kind)), confidence),
                lower=-MARGIN,
                upper=MARGIN,
                is_ours=kind == "sampled",
            )
            for kind in KINDS
            for level in LEVELS[1:]
        ]
        return Conclusion(claims, {**self._levels(found), **self._boundary(found), **self._wall(found)})

    def _levels(self, found: Found) -> dict[str, str]:
        cells = [(level, kind) for kind in KINDS for level in LEVELS]
        return {
            f"pass@1, level {level}, {kind}": str(mean_of(_finals(found, setting(level, kind))))
            for level, kind in cells
        }

    def _boundary(self, found: Found) -> dict[str, str]:
        """Level 2 minus level 0 in each cell, and whether that is an overlap."""
        said = {}
        for lr in BOUNDARY_LRS:
            for updates, eps in BOUNDARY_UPDATES:
                first, second = (_finals(found, setting(level, "recomputed", lr, updates, eps)) for level in (0, 2))
                cell = Claim("", "", paired(first, second), -MARGIN, MARGIN)
                name = f"level 2 - level 0, recomputed, lr {lr:g}, {updates} optimizer steps, eps {eps:g}"
                said[name] = f"{cell.interval}: overlap {cell.outcome}"
        return said

    def _wall(self, found: Found) -> dict[str, float | str]:
        said: dict[str, float | str] = {}
        for level in LEVELS[1:]:
            walls = [
                [
                    pipelined([p["generate_s"] for p in run["curve"]], [p["train_s"] for p in run["curve"]], at)
                    for run in found[setting(0, "sampled").name]
                ]
                for at in (0, level)
            ]
            ratios = [two / none for none, two in zip(*walls, strict=True)]
            said[f"wall time, level {level} / level 0, computed for two machines"] = str(mean_of(ratios))
            swarm = [[run["wall_s"] for run in found[swarm_setting(at).name]] for at in (0, level)]
            ratios = [two / none for none, two in zip(*swarm, strict=True)]
            said[f"wall time, level {level} / level 0, measured in a swarm on this machine"] = str(mean_of(ratios))
        return said

    def draw(self, found: Found, figure: "Figure") -> None:
        panels = figure.subplots(1, 3)
        for axes, kind in zip(panels[:2], KINDS, strict=True):
            for level, color in zip(LEVELS, COLORS, strict=False):
                band(axes, found[setting(level, kind).name], "reward", f"level {level}", color)
            titled(axes, f"{kind} old log-probs", "step", "training reward")
            axes.legend()
        labels, cells = [], []
        for lr in BOUNDARY_LRS:
            for updates, eps in BOUNDARY_UPDATES:
                first, second = (_finals(found, setting(level, "recomputed", lr, updates, eps)) for level in (0, 2))
                labels.append(f"lr {lr:g}, {updates} x, eps {eps:g}")
                cells.append(paired(first, second))
        bars(panels[2], labels, cells)
        panels[2].axvspan(-MARGIN, MARGIN, color="#999999", alpha=0.2)
        titled(panels[2], "Boundary, recomputed", "pass@1 of level 2 minus level 0")


def _finals(found: Found, one: Setting) -> list[float]:
    return [run["final"] for run in found[one.name]]
