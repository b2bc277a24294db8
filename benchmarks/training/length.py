"""`python -m benchmarks length`: `configs/length.toml` with its length budgets and without, from the same base model.

After training both sides answer the same held-out tasks, each in its own form of the prompt. `rank_correlation` is that
of the target and the length of each answer, not of means: it is 1 only if all answers to a target are equally long. The
task reward counts right answers alone, whatever their length.
"""

import tempfile
from pathlib import Path

from benchmarks.common.configs import base_model, changed, checkout_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult
from benchmarks.common.roles import Roles
from shoal.config import RunConfig
from shoal.models.load import load
from shoal.models.version_reader import VersionReader
from shoal.roles.evaluator import Evaluation, evaluate
from shoal.rundir import prepare_run
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer

CONFIG = "length.toml"
HELDOUT = 1024


def bench_length(quick: bool, progress: Progress) -> BenchResult:
    """Both runs, one after the other, and what their last versions answer."""
    config = changed(checkout_config(CONFIG), {"audit.rate": 0.0})
    heldout = HELDOUT
    if quick:
        config, heldout = changed(config, {"steps": 2, "train.groups_per_step": 4}), 32
    base = base_model(config, progress)
    config = changed(config, {"model.source": str(base)})
    with tempfile.TemporaryDirectory(prefix="shoal-bench-length-") as scratch:
        progress.stage("with budgets")
        before, after = before_and_after(config, Path(scratch) / "with", heldout, progress)
        progress.stage("without budgets")
        free = changed(config, {"length.targets": []})
        _, without = before_and_after(free, Path(scratch) / "without", heldout, progress)
    return conclude(before, after, without)


def before_and_after(config: RunConfig, path: Path, heldout: int, progress: Progress) -> tuple[Evaluation, Evaluation]:
    """The base model and the last version of a run, measured alike."""
    run = prepare_run(config, path, progress.console)
    with Roles(run) as roles:
        roles.steps(config.steps, progress.detail)
    progress.detail("measuring")
    policy, source, channel = load(run.base_model), build_source(config.tasks), run.channel()
    last = channel.latest()
    assert last is not None
    with Scorer(config.tasks) as judge:
        before = evaluate(policy, source, judge, config, heldout)
        weights = VersionReader(channel, config.model.dtype).read(channel.fetch(last))
        policy.set_weights(weights, f"version {last.number}")
        return before, evaluate(policy, source, judge, config, heldout)


def conclude(before: Evaluation, after: Evaluation, without: Evaluation) -> BenchResult:
    assert before.length_rank is not None
    assert after.length_rank is not None
    return BenchResult(
        "length",
        {},
        {
            "rank_correlation": after.length_rank,
            "rank_correlation_base": before.length_rank,
            **{f"tokens_at_{target}": mean for target, mean in after.lengths.items()},
            **{f"tokens_at_{target}_base": mean for target, mean in before.lengths.items()},
            "task_reward_base": before.pass_at_1,
            "task_reward_with": after.pass_at_1,
            "task_reward_without": without.pass_at_1,
            "task_reward_difference": abs(after.pass_at_1 - without.pass_at_1),
            "heldout": after.tasks,
        },
        {"rank_correlation": (">=", 0.9), "task_reward_difference": ("<=", 0.05)},
    )
