"""`python -m benchmarks fbam-length`: loss against trained length on a git history, with three exponents.

Every model sees as many frames per step and in all. A power law in length can be an artefact, so it is measured three
ways, each as the slope of log loss against log length, with an interval over seeds:

- raw: the loss over sequences of the trained length. It falls with length even if nothing far away is used, because
  fewer positions are at the start.
- position: the loss of all models over the same held-out frames, in sequences of the longest length.
- truncated: as position, relative to truncated backpropagation over sequences of the same length, whose gradient ends
  after the shortest length. Only this slope is about gradients that reach further.

An exponent is minus its slope: positive where longer sequences help.
"""

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.common.parts import Parts
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure
from benchmarks.fbam.history import record_history
from benchmarks.fbam.jobs import Job, run_jobs
from shoal.fbam import FrameShape, ModelConfig
from shoal.fbam.recording import Recording, RecordOptions, read_recording
from shoal.fbam.training.settings import Method, TrainSettings
from shoal.files import sha256_file, write_whole
from shoal.studies.intervals import mean_of

SHAPE = FrameShape(rows=4, columns=24)
WORDS = 500
METHODS: tuple[Method, Method] = ("exact", "truncated")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is trained."""

    lengths: tuple[int, ...] = (16, 64, 256, 1024)
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 200
    frames_per_step: int = 1024
    heldout_sequences: int = 16
    changes: int = 2000


QUICK = Plan(lengths=(4, 16), seeds=(0, 1), steps=2, frames_per_step=32, heldout_sequences=2, changes=60)


@dataclass(frozen=True, slots=True)
class Side:
    """One training: its length, how its gradient is computed, and its seed."""

    length: int
    method: Method
    seed: int


def bench_length_law(quick: bool, progress: Progress, out: Path | None = None) -> BenchResult:
    """All trainings, two at a time, and their slopes; recording and trainings are kept in `out`."""
    plan = QUICK if quick else Plan()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-fbam-length-") as scratch:
        progress.stage("recording a git history")
        source, file = history_file(plan, Path(scratch), out)
        recording = read_recording(file)
        jobs = length_jobs(plan, recording, file)
        progress.stage(f"training {len(jobs)} models")
        found = run_jobs(list(jobs.values()), Parts(out), progress)
    by_side = {side: found[job.name] for side, job in jobs.items()}
    return conclude(plan, by_side, {"source": source, "frames": recording.frames})


def history_file(plan: Plan, scratch: Path, out: Path | None) -> tuple[str, Path]:
    """Which history, and its recording; that in `out` is used again: the history may have grown since."""
    kept = (out or scratch) / f"recording-{plan.changes}.jsonl"
    if kept.is_file():
        return "recorded before", kept
    options = RecordOptions(max_changes=plan.changes, words=WORDS)
    source, file, _, _ = record_history(scratch, options)
    write_whole(kept, file.read_bytes())
    return source, kept


def length_jobs(plan: Plan, recording: Recording, file: Path) -> dict["Side", Job]:
    """The trainings of a plan."""
    model = ModelConfig(
        shape=SHAPE,
        actions=recording.table.count,
        head_width=16,
        conv_stages=2,
        head_blocks=1,
        head_heads=2,
        width=96,
    )
    digest = sha256_file(file)

    def job(side: Side) -> Job:
        settings = TrainSettings(
            model=model,
            recording=file,
            recording_sha256=digest,
            steps=plan.steps,
            batch=plan.frames_per_step // side.length,
            min_length=side.length,
            max_length=side.length,
            chunk=plan.lengths[0] if side.method == "truncated" else 64,
            method=side.method,
            warmup_steps=plan.steps // 10,
            seed=side.seed,
        )
        questions = {"longest": plan.lengths[-1], "sequences": plan.heldout_sequences}
        name = f"length_{side.length}_{side.method}_{side.seed}"
        return Job(name, "benchmarks.fbam.length_child", settings, questions)

    return {side: job(side) for side in sides_of(plan)}


def sides_of(plan: Plan) -> list[Side]:
    """Exact at every length; truncated where that differs: at the shortest length both are the same."""
    pairs: list[tuple[int, Method]] = [(length, "exact") for length in plan.lengths]
    pairs += [(length, "truncated") for length in plan.lengths[1:]]
    return [Side(length, method, seed) for seed in plan.seeds for length, method in pairs]


def conclude(plan: Plan, found: Mapping[Side, Mapping[str, float]], data: Mapping[str, Figure]) -> BenchResult:
    """Mean losses by length, and the three exponents with their intervals."""
    values: dict[str, Figure] = dict(data)
    for kind in ("raw", "position"):
        for length in plan.lengths:
            values[f"loss_{kind}_{length}"] = fmean(found[Side(length, "exact", seed)][kind] for seed in plan.seeds)
    for length in plan.lengths[1:]:
        losses = [found[Side(length, "truncated", seed)]["position"] for seed in plan.seeds]
        values[f"loss_truncated_{length}"] = fmean(losses)
    for kind in ("raw", "position", "truncated"):
        exponents = [-slope(plan.lengths, _losses(plan, found, kind, seed)) for seed in plan.seeds]
        interval = mean_of(exponents)
        values[f"exponent_{kind}"] = interval.mean
        values[f"exponent_{kind}_ci"] = interval.high - interval.mean
        values[f"exponent_{kind}_excludes_0"] = int(not interval.low <= 0 <= interval.high)
    return BenchResult("fbam-length", {}, values)


def _losses(plan: Plan, found: Mapping[Side, Mapping[str, float]], kind: str, seed: int) -> list[float]:
    if kind != "truncated":
        return [found[Side(length, "exact", seed)][kind] for length in plan.lengths]
    relative = [1.0]
    for length in plan.lengths[1:]:
        exact, cut = (found[Side(length, method, seed)]["position"] for method in METHODS)
        relative.append(exact / cut)
    return relative


def slope(lengths: Sequence[int], losses: Sequence[float]) -> float:
    """Of the least-squares line through log loss against log length."""
    x, y = [math.log(length) for length in lengths], [math.log(loss) for loss in losses]
    x_mean, y_mean = fmean(x), fmean(y)
    spread = sum((a - x_mean) ** 2 for a in x)
    return sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True)) / spread
