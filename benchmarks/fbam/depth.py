"""What integrators of different depth learn: jumps, live jumps, products in S5, and the critical length by layers.

All models of a task have the same head, see the same number of frames in the same order, and have as many parameters as
its LSTM within a tenth. Accuracy is that of the last frame of sequences that were not trained on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from benchmarks.common.progress import Progress
from benchmarks.fbam.jobs import Accuracies, Job, run_jobs
from benchmarks.fbam.models import lstm_config, matched_config
from shoal.fbam.model_config import IntegratorKind
from shoal.fbam.tasks import build_task, equivalent_window
from shoal.fbam.training.settings import TrainSettings

QUICK_STEPS = 4
CRITICAL = 0.9  # accuracy
CRITICAL_LENGTHS = (2, 4, 8, 16, 32, 64)
CRITICAL_LAYERS = (1, 2, 4, 8)
LRS: Mapping[IntegratorKind, float] = {"lstm": 5e-3, "transformer": 1e-3, "scan": 3e-3}


@dataclass(frozen=True, slots=True)
class Contest:
    """One task, trained the same way by each integrator."""

    task: str
    width: int
    """Of the LSTM that others are matched to."""
    steps: int
    batch: int
    max_length: int
    curriculum_steps: int
    lengths: tuple[int, ...]
    seeds: tuple[int, ...] = (0,)

    def job(self, kind: IntegratorKind, layers: int, seed: int, quick: bool) -> Job:
        source = build_task(self.task)
        reference = lstm_config(source, self.width)
        model = reference if kind == "lstm" else matched_config(reference, kind, layers)
        settings = TrainSettings(
            model=model,
            task=self.task,
            steps=QUICK_STEPS if quick else self.steps,
            batch=8 if quick else self.batch,
            max_length=self.max_length,
            curriculum_steps=0 if quick else self.curriculum_steps,
            lr=LRS[kind],
            seed=seed,
        )
        return Job(self.name(kind, layers, seed), settings, self.lengths, 64 if quick else 1024)

    def name(self, kind: IntegratorKind, layers: int, seed: int) -> str:
        return f"{self.task}_{self.max_length}_{kind}_{layers}_{seed}"

    def jobs(self, sides: Iterable[tuple[IntegratorKind, int]], quick: bool) -> list[Job]:
        return [self.job(kind, layers, seed, quick) for kind, layers in sides for seed in self.seeds]

    def mean(self, found: Mapping[str, Accuracies], kind: IntegratorKind, layers: int, length: int) -> float:
        return sum(found[self.name(kind, layers, seed)][length] for seed in self.seeds) / len(self.seeds)


FRJT = Contest("frjt", 128, 3000, 128, 16, 1000, (16, 64, 128), (0, 1, 2))
LIVE = Contest("frjt-live", 128, 4000, 128, 32, 2000, (32, 64, 256))
S5 = Contest("s5", 256, 8000, 128, 32, 3000, (8, 16, 32, 64, 128))
DEEP = Contest("s5", 256, 5000, 64, 64, 2500, CRITICAL_LENGTHS)
ALL: tuple[tuple[IntegratorKind, int], ...] = (("lstm", 1), ("transformer", 2), ("scan", 2))
LAYERS: tuple[tuple[IntegratorKind, int], ...] = (
    ("lstm", 1),
    *(("transformer", layers) for layers in CRITICAL_LAYERS),
)


def measure_depth(quick: bool, progress: Progress) -> dict[str, float]:
    """Accuracies as TASK_KIND_LENGTH, critical lengths as critical_KIND_LAYERS, the LSTM's over 2 layers as ratio."""
    contests = {"frjt": FRJT, "live": LIVE, "s5": S5}
    if quick:
        contests = {short: replace(contest, seeds=contest.seeds[:1]) for short, contest in contests.items()}
    jobs = [job for contest in contests.values() for job in contest.jobs(ALL, quick)] + DEEP.jobs(LAYERS, quick)
    progress.stage(f"training {len(jobs)} models")
    found = run_jobs(jobs, progress)
    values: dict[str, float] = {}
    for short, contest in contests.items():
        for kind, layers in ALL:
            for length in contest.lengths:
                values[f"{short}_{kind}_{length}"] = contest.mean(found, kind, layers, length)
    values |= equivalent_windows(values)
    for kind, layers in LAYERS:
        accuracies = {length: DEEP.mean(found, kind, layers, length) for length in CRITICAL_LENGTHS}
        values |= {f"deep_{kind}_{layers}_at_{length}": accuracy for length, accuracy in accuracies.items()}
        values[f"critical_{kind}_{layers}"] = critical_length(accuracies)
    values["critical_ratio"] = values["critical_lstm_1"] / max(1.0, values["critical_transformer_2"])
    return values


def equivalent_windows(values: Mapping[str, float]) -> dict[str, float]:
    """How many last blocks of a random program explain each accuracy of `frjt`; the other tasks do not forget."""
    task = build_task(FRJT.task)
    names = {f"frjt_{kind}_{length}": length for kind, _ in ALL for length in FRJT.lengths}
    return {f"{name}_window": equivalent_window(task, length, values[name]) for name, length in names.items()}


def critical_length(accuracies: Accuracies) -> float:
    """The longest length up to which all accuracies are at least CRITICAL; 0 if the shortest already misses it."""
    longest = 0
    for length in sorted(accuracies):
        if accuracies[length] < CRITICAL:
            break
        longest = length
    return float(longest)
