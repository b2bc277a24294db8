import io
from pathlib import Path

import pytest
from rich.console import Console

from shoal.errors import ShoalError
from shoal.watch.summary import print_summary, summarise, wall_seconds

from .conftest import STEPS, append


def test_a_summary_adds_up_what_the_roles_wrote(run_dir: Path) -> None:
    summary = summarise(run_dir)
    assert (summary.name, summary.steps) == ("chain-sum-async2", STEPS)
    assert (summary.samples_trained, summary.tokens_generated) == (STEPS * 256, STEPS * 2 * 3000)
    assert (summary.rollouts_refused, summary.worker_restarts) == (1, 1)
    assert list(summary.wait_shares) == ["trainer", "worker-0", "worker-1"]
    assert summary.staleness_max == 2
    assert summary.heldout_tasks == 200


def test_the_base_is_version_0_and_the_final_the_last_one_evaluated(tmp_path: Path) -> None:
    append(
        tmp_path / "metrics/evaluator.jsonl",
        {"event": "eval", "version": 20, "pass_at_1": 0.8, "low": 0.7, "high": 0.9},
        {"event": "eval", "version": 0, "pass_at_1": 0.3, "low": 0.2, "high": 0.4},
        {"event": "eval", "version": 10, "pass_at_1": 0.9},
    )
    summary = summarise(tmp_path)
    assert (summary.base_pass, summary.base_interval) == (0.3, (0.2, 0.4))
    assert (summary.final_version, summary.final_pass, summary.final_interval) == (20, 0.8, (0.7, 0.9))


def test_a_step_done_again_after_a_kill_counts_once(tmp_path: Path) -> None:
    append(
        tmp_path / "metrics/trainer.jsonl",
        {"event": "step", "step": 0, "samples": 64, "reward": 0.9},
        {"event": "step", "step": 0, "samples": 64, "reward": 0.2},
    )
    summary = summarise(tmp_path)
    assert (summary.steps, summary.samples_trained, summary.best_reward) == (1, 64, 0.2)


def test_the_hours_between_a_kill_and_going_on_are_not_the_runs() -> None:
    assert wall_seconds(times=[100, 110, 130, 9000, 9005], starts=[100, 9000]) == 35
    assert wall_seconds(times=[100, 130], starts=[]) == 30
    assert wall_seconds(times=[], starts=[]) == 0


def test_a_run_that_measured_nothing_has_a_summary_too(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    out = io.StringIO()
    print_summary(summarise(tmp_path), Console(file=out, width=100))
    assert "0 in 0:00" in out.getvalue()
    assert summarise(tmp_path).base_pass is None


def test_the_printed_summary_shows_the_gain_on_held_out_tasks(run_dir: Path) -> None:
    out = io.StringIO()
    print_summary(summarise(run_dir), Console(file=out, width=100))
    assert "0.333 [0.268, 0.393], 200 held-out tasks" in out.getvalue()
    assert "+0.538" in out.getvalue()


def test_a_gain_is_compared_task_by_task_where_both_versions_answered_the_same_tasks_as_often(tmp_path: Path) -> None:
    base = {"event": "eval", "version": 0, "pass_at_1": 0.5, "samples": 4, "solved": [0, 4, 0, 4]}
    append(tmp_path / "metrics/evaluator.jsonl", base, base | {"version": 9, "pass_at_1": 0.75, "solved": [1, 5, 1, 5]})
    gained = summarise(tmp_path).gained
    assert gained is not None
    assert (gained.low, gained.value, gained.high) == (0.25, 0.25, 0.25)  # every task by as much: no doubt is left
    out = io.StringIO()
    print_summary(summarise(tmp_path), Console(file=out, width=100))
    assert "+0.250 [+0.250, +0.250], paired by task" in out.getvalue()
    others: list[dict[str, object]] = [{"samples": 2}, {"solved": [1, 5, 1]}, {"solved": []}]
    for other in others:
        append(tmp_path / "metrics/evaluator.jsonl", base | {"version": 10} | other)
        assert summarise(tmp_path).gained is None


def test_a_directory_that_is_no_run_has_no_summary(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="not a run"):
        summarise(tmp_path)


def test_nodes_that_were_put_out_are_named_with_the_check_they_did_not_pass(run_dir: Path) -> None:
    append(
        run_dir / "metrics/validator.jsonl",
        {"event": "banned", "node": "cheater-0", "check": "sampling", "reason": "2 files rejected"},
    )
    summary = summarise(run_dir)
    assert summary.banned == {"cheater-0": "sampling"}
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=120))
    assert "cheater-0 (sampling)" in out.getvalue()


def test_latencies_are_medians_over_versions_and_absent_where_nobody_measured_them(tmp_path: Path) -> None:
    append(tmp_path / "metrics/trainer.jsonl", {"event": "step", "step": 0})
    assert summarise(tmp_path).first_rollout_s is None
    took = {"first_rollout_s": 1.0, "full_batch_s": None, "verdict_p50_s": 0.5, "verdict_p95_s": 2.0}
    append(
        tmp_path / "metrics/coordinator.jsonl",
        {"event": "latency", "version": 0, **took},
        {"event": "latency", "version": 1, **took, "first_rollout_s": 9.0, "full_batch_s": 12.0},
        {"event": "latency", "version": 2, **took, "first_rollout_s": 3.0},
    )
    out = io.StringIO()
    print_summary(summarise(tmp_path), Console(file=out, width=100))
    shown = " ".join(out.getvalue().replace("│", " ").split())
    assert "version to first rollout 3.0 s, to a full batch 12 s" in shown
    assert "upload to verdict 0.5 s median, 2.0 s p95" in shown
