"""`python -m benchmarks vllm-learns`: `configs/smollm2.toml` with one worker on our own engine and one on vLLM.

All processes of `shoal run` but the evaluator: held-out tasks are asked before and after, when nothing else computes.
Needs the interpreter that has vLLM, as `python -m benchmarks vllm` does.
"""

import tempfile
import time
from pathlib import Path

from benchmarks.common.configs import base_model, changed, checkout_config, hardly_trained, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure, Op
from benchmarks.common.roles import Roles
from shoal.config import RunConfig
from shoal.errors import BenchError
from shoal.extras import require
from shoal.models.load import load
from shoal.models.version_reader import VersionReader
from shoal.roles.evaluator import Evaluation, evaluate
from shoal.rundir import RunDir, prepare_run
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer
from shoal.telemetry.metrics import Entry, read_metrics

ENGINES = ("torch", "vllm")
STEPS = 12
BARS: dict[str, tuple[Op, float]] = {
    "gained": (">=", 0.1),
    "files_rejected_torch": ("<=", 0),
    "files_rejected_vllm": ("<=", 0),
    "files_accepted_vllm": (">=", 1),
}


def bench_vllm_learns(quick: bool, progress: Progress) -> BenchResult:
    """Held-out pass@1 before and after, and the verdicts on the files of each engine."""
    require("vllm", "benchmark vllm-learns", BenchError)
    config = _config(quick)
    base_model(config, progress)
    with tempfile.TemporaryDirectory(prefix="shoal-vllm-learns-") as scratch:
        with progress.aside() as console:
            run = prepare_run(config, Path(scratch) / "run", console)
        progress.stage(f"{config.steps} steps with a worker on each engine")
        began = time.monotonic()
        with Roles(run) as roles:
            steps = roles.steps(config.steps, progress.detail)
        seconds = time.monotonic() - began
        before, after = (_held_out(run, version, progress) for version in (0, config.steps))
        values: dict[str, Figure] = {
            "steps": len(steps),
            "seconds": seconds,
            "gained": after.pass_at_1 - before.pass_at_1,
            **_figures("before", before),
            **_figures("after", after),
        }
        verdicts = _entries(run, "validator", "verdict")
        for number, engine in enumerate(ENGINES):
            given = accepted_of(_entries(run, f"worker-{number}", "submission"), verdicts)
            values[f"files_accepted_{engine}"] = sum(given)
            values[f"files_rejected_{engine}"] = len(given) - sum(given)
    return BenchResult("vllm-learns", {}, values, {} if quick else BARS)


def accepted_of(submissions: list[Entry], verdicts: list[Entry]) -> list[bool]:
    """The verdicts on one worker's files, in the order in which they were given."""
    own = {(entry["step"], entry["submission"]) for entry in submissions}
    return [bool(entry["accept"]) for entry in verdicts if (entry["step"], entry["submission"]) in own]


def _config(quick: bool) -> RunConfig:
    config = hardly_trained(laptop_config()) if quick else checkout_config("smollm2.toml")
    return changed(
        config,
        {
            "steps": 2 if quick else STEPS,
            "eval.tasks": 64,
            "eval.samples": 1 if quick else 4,
            "workers.count": len(ENGINES),
            "workers.engines": list(ENGINES),
            "keep.versions": STEPS + 1,
        },
    )


def _held_out(run: RunDir, number: int, progress: Progress) -> Evaluation:
    progress.stage(f"held-out tasks, version {number}")
    config, channel = run.config, run.channel()
    version = channel.version(number)
    if version is None:
        raise BenchError(f"{run.path}: has no version {number}")
    policy = load(run.base_model, config.model.dtype)
    weights = VersionReader(channel, config.model.dtype).read(channel.fetch(version))
    policy.set_weights(weights, f"version {number}")
    with Scorer(config.tasks) as judge:
        return evaluate(policy, build_source(config.tasks), judge, config, config.eval.tasks)


def _figures(when: str, found: Evaluation) -> dict[str, Figure]:
    return {
        f"pass_at_1_{when}": found.pass_at_1,
        f"low_{when}": found.low,
        f"high_{when}": found.high,
        f"greedy_{when}": found.greedy,
    }


def _entries(run: RunDir, role: str, event: str) -> list[Entry]:
    return [entry for entry in read_metrics(run.path / "metrics" / f"{role}.jsonl") if entry["event"] == event]
