"""Study `speed`: does a run of processes take less wall time if the trainer may use rollouts of older versions?

The same swarm at each level, on this machine: it needs to be quiet. With trainer and workers on machines of their own
more is hidden, also the way of a version; `shoal simulate` says how much.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shoal.studies.async_levels import LEVELS
from shoal.studies.claims import Claim
from shoal.studies.configs import laptop_config
from shoal.studies.drawing import bars, titled
from shoal.studies.intervals import Interval, mean_of, shared_confidence
from shoal.studies.one_run import config_of, train_in_swarm
from shoal.studies.study import Conclusion, Found, Job, Outcome, Setting, Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

FASTER = 0.9


def setting(level: int) -> Setting:
    return Setting(f"level{level}", {**SWARM, "async_level": level}, swarm=True)


class SpeedStudy:
    """Wall time of async levels against level 0."""

    name = "speed"
    summary = "Wall time: a run of processes at async levels 1, 2 and 4, against level 0"
    paper = "asynchrony hides generation and broadcast behind training: nobody waits"
    loop = "processes of a swarm, with proofs that nobody checks, on a machine with nothing else to do"
    full = Size(steps=40, seeds=3, groups=16, heldout=64, every=40)
    quick = Size(steps=2, seeds=1, groups=4, heldout=4, every=2, smoke=True)

    def settings(self) -> Sequence[Setting]:
        return [setting(level) for level in LEVELS]

    def run(self, job: Job) -> Outcome:
        return train_in_swarm(job, config_of(job, laptop_config(), {}))

    def conclude(self, found: Found) -> Conclusion:
        claims = [
            Claim(
                f"Async level {level} takes at most {FASTER:g} of the wall time of level 0",
                "wall time divided by that of level 0",
                _ratio(found, level),
                upper=FASTER,
            )
            for level in LEVELS[1:]
        ]
        walls = {level: mean_of([run["wall_s"] for run in found[setting(level).name]]) for level in LEVELS}
        return Conclusion(claims, {f"seconds, level {level}": str(wall) for level, wall in walls.items()})

    def draw(self, found: Found, figure: "Figure") -> None:
        axes = figure.subplots()
        bars(axes, [f"level {level}" for level in LEVELS[1:]], [_ratio(found, level) for level in LEVELS[1:]])
        axes.axvline(1.0, color="#999999", linestyle="--")
        titled(axes, "Wall time", "divided by that of level 0")


def _ratio(found: Found, level: int) -> Interval:
    none, some = ([run["wall_s"] for run in found[setting(at).name]] for at in (0, level))
    ratios = [b / a for a, b in zip(none, some, strict=True)]
    return mean_of(ratios, shared_confidence(len(LEVELS) - 1))
