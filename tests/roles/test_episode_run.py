"""A worker plays episodes beside its engine, a validator accepts its files, and a trainer learns from them."""

from pathlib import Path

from shoal.protocol.turns import turns_of
from shoal.roles.worker import Worker
from shoal.tasks.source import InProcess
from shoal.validate.checks.all_checks import Checks
from tests.support.episode_world import SAMPLING, TURNS, episode_model, source_of
from tests.support.roles_in_process import (
    base_version,
    entries,
    judging_store,
    make_config,
    make_run,
    make_worker,
    train,
    work_until_sent,
    working,
)

GAME = "environment/game"
TABLES = {
    "tasks": [{"source": GAME}],
    "sampling": SAMPLING,
    "turns": TURNS,
    "train": {"online_filter": False, "groups_per_step": 2},
}


def test_files_of_a_worker_that_plays_beside_its_engine_are_accepted(tmp_path: Path) -> None:
    config = make_config(episode_model(GAME), **TABLES)
    run = make_run(tmp_path / "run", config)
    worker: Worker = make_worker(run, tasks=source_of(GAME))
    try:
        work_until_sent(run, worker, 2)
    finally:
        worker.metrics.close()
    assert not worker.calls
    version = base_version(run)
    store = judging_store(run, worker)
    judge = InProcess(source_of(GAME))
    checks = Checks(config, worker.maker.policy, source_of(GAME), judge, lambda _: version.root)
    uploads = list(store.waiting(0, 2))
    assert len(uploads) == 2
    for upload in uploads:
        submission, _ = store.read(upload)
        assert max(turns_of(r.runs) for r in submission.rollouts) > 1
        assert checks.cheap(submission) is None
        assert next(checks.costly([submission])) is None


def test_a_run_trains_on_episodes(tmp_path: Path) -> None:
    config = make_config(episode_model(GAME), **TABLES, steps=2)
    run = make_run(tmp_path / "run", config)
    worker = make_worker(run, tasks=source_of(GAME))
    with working(run, worker):
        train(run)
    steps = entries(run, "trainer", "step")
    assert [step["step"] for step in steps] == [0, 1]
    fresh = [step["mismatch"] for step in steps if step["mismatch"] is not None]
    assert fresh, "no step had tokens of the version that it trains"
    assert max(fresh) < 1e-3
