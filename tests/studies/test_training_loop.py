"""The loop in one process: exact staleness, the same numbers twice, and studies that run on it from end to end."""

from pathlib import Path
from typing import Any

import pytest

from shoal.config import RunConfig
from shoal.studies import training_loop
from shoal.studies.catalogue import STUDIES
from shoal.studies.clip import ClipStudy
from shoal.studies.filters import OFFLINE, FiltersStudy, interpolated
from shoal.studies.one_run import config_of
from shoal.studies.study import Job, Setting
from shoal.studies.training_loop import Loop, Trained, pipelined
from shoal.train.batch import Group
from shoal.train.learner import Learner
from shoal.train.step import StepResult, train_step
from tests.support.roles_in_process import make_config

WORDS = [
    {
        "source": "reasoning-gym/spell_backward",
        "options": {"min_word_len": 3, "max_word_len": 5},
        "binary": False,
    }
]


def trained(tiny_dir: Path, lag: int, **train: Any) -> Trained:
    config = make_config(tiny_dir, tasks=WORDS, steps=4, async_level=lag, train=train, keep={"versions": 8})
    return Loop(config, tiny_dir, lag, lambda _: None, heldout=4, every=4).run()


def test_every_rollout_is_exactly_as_old_as_the_lag(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def spy(learner: Learner, groups: list[Group], config: RunConfig, step: int) -> StepResult:
        seen.append(sorted({group.version for group in groups}))
        return train_step(learner, groups, config, step)

    monkeypatch.setattr(training_loop, "train_step", spy)
    found = trained(tiny_dir, lag=2)
    assert seen == [[0], [0], [0], [1]]
    assert [point["version"] for point in found.measured] == [0, 4]
    # What was sampled by an older policy has drifted; what the newest one sampled has not.
    assert found.curve[0]["drift"] < 1e-4 < found.curve[2]["drift"]


def test_two_runs_of_one_job_give_the_same_numbers(tiny_dir: Path) -> None:
    one, two = (trained(tiny_dir, lag=1, old_logprobs="sampled") for _ in range(2))
    timeless = [[{k: v for k, v in p.items() if not k.endswith("_s")} for p in run.curve] for run in (one, two)]
    assert timeless[0] == timeless[1]
    assert one.final == two.final


def test_async_levels_hide_generation_behind_training_up_to_the_slower_of_both() -> None:
    generate, train = [2.0] * 10, [1.0] * 10
    assert pipelined(generate, train, 0) == pytest.approx(30.0)
    assert pipelined(generate, train, 1) == pytest.approx(21.0)
    assert pipelined(generate, train, 4) == pytest.approx(21.0)
    uneven = [9.0, 1.0, 1.0, 9.0, 1.0, 1.0]
    assert pipelined(uneven, [4.0] * 6, 2) <= pipelined(uneven, [4.0] * 6, 1) <= pipelined(uneven, [4.0] * 6, 0)


def test_equal_budgets_are_interpolated_between_measurements() -> None:
    points = [{"samples": at, "pass_at_1": at / 100} for at in (0, 10, 30)]
    assert [interpolated(points, "samples", at) for at in (0, 5, 20, 30, 99)] == pytest.approx([0, 0.05, 0.2, 0.3, 0.3])


def test_the_clip_study_runs_from_end_to_end_on_the_real_loop(
    tmp_path: Path, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = ClipStudy()
    config = make_config(tiny_dir, tasks=WORDS)

    def small(job: Job, *_: object) -> RunConfig:
        return config_of(job, config, {"sampling.group_size": 4})

    monkeypatch.setattr("shoal.studies.clip.config_of", small)
    monkeypatch.setattr("shoal.studies.one_run.SMOKE", {})
    found = {}
    for setting in study.settings():
        jobs = [Job(setting, seed, study.quick, tmp_path, tmp_path, lambda _: None) for seed in (1, 2)]
        found[setting.name] = [study.run(job) for job in jobs]
    conclusion = study.conclude(found)
    assert {claim.outcome for claim in conclusion.claims} <= {"held", "did not hold", "undecided"}
    assert conclusion.claims[0].outcome == "did not hold"  # two steps of a random model provoke nothing
    assert "pass@1, one-sided, gradient clipped" in conclusion.figures


def test_the_offline_filter_is_measured_once_for_all_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def filter_once(header: object, drawing: object, tasks: int, kept: Path, console: object) -> None:
        made.append(kept)
        kept.write_text("")

    trained_on: list[RunConfig] = []
    monkeypatch.setattr("shoal.studies.one_run.ensure_base_model", lambda *_: tmp_path)
    monkeypatch.setattr("shoal.studies.filters.filter_source", filter_once)
    monkeypatch.setattr("shoal.studies.filters.train_here", lambda _, config, __: trained_on.append(config))
    monkeypatch.chdir(Path(__file__).parents[2])
    study = FiltersStudy()
    [offline] = [setting for setting in study.settings() if setting.name == OFFLINE]
    for seed in (1, 2):
        study.run(Job(offline, seed, study.full, tmp_path, tmp_path, lambda _: None))
    assert len(made) == 1
    assert [config.tasks[0].source for config in trained_on] == [f"filtered/{made[0]}"] * 2


def test_every_setting_of_every_study_is_a_config_that_a_run_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in full size: a study must not fail in its third hour because of a key that is not there."""
    asked: list[tuple[Setting, RunConfig]] = []

    def note(job: Job, config: RunConfig, *_: object) -> dict[str, object]:
        asked.append((job.setting, config))
        return {}

    monkeypatch.setattr("shoal.studies.one_run.ensure_base_model", lambda *_: tmp_path)
    for module in {type(study).__module__ for study in STUDIES.values()}:
        for function in ("train_here", "train_in_swarm"):
            monkeypatch.setattr(f"{module}.{function}", note, raising=False)
    monkeypatch.setattr("shoal.studies.filters.filter_source", lambda *_: None)
    monkeypatch.chdir(Path(__file__).parents[2])
    for study in STUDIES.values():
        for setting in study.settings():
            for size in (study.full, study.quick):
                study.run(Job(setting, 1, size, tmp_path, tmp_path, lambda _: None))
    assert len(asked) == sum(2 * len(study.settings()) for study in STUDIES.values())
    assert all(config.async_level == setting.lag for setting, config in asked if not setting.swarm)
    assert {config.workers.in_flight for setting, config in asked if setting.swarm} == {True, False}
