"""A worker plays episodes beside its engine, a validator accepts its files, and a trainer learns from them."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from shoal.generate.engine import Completion
from shoal.generate.pipeline import FileTime
from shoal.protocol.turns import turns_of
from shoal.roles.worker import Worker
from shoal.tasks.environments.environment import Played
from shoal.tasks.source import InProcess, Score, Split, Task
from shoal.validate.checks.all_checks import Checks
from tests.support.episode_world import SAMPLING, TURNS, episode_model, source_of
from tests.support.held_results import HeldResults
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


class Tools:
    """Those of the game, in this process."""

    def __init__(self) -> None:
        self._own = InProcess(source_of(GAME))

    def scores(self, split: Split, answers: Sequence[tuple[Task, str]], seconds: float = 60.0) -> list[Score]:
        return self._own.scores(split, answers, seconds)

    def play(self, split: Split, task: Task, actions: Sequence[str], **how: Any) -> "Future[Played]":
        return self._own.play(split, task, actions, **how)


class Slow(Tools):
    """They take so many turns of the worker, as many at once as there are episodes."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self._turns, self._now = turns, 0
        self._at_work = deque[tuple[int, Future[Played], Future[Played]]]()

    def play(self, split: Split, task: Task, actions: Sequence[str], **how: Any) -> "Future[Played]":
        found: Future[Played] = Future()
        self._at_work.append((self._now + self._turns, found, super().play(split, task, actions, **how)))
        return found

    def turn(self) -> None:
        self._now += 1
        while self._at_work and self._at_work[0][0] <= self._now:
            _, found, own = self._at_work.popleft()
            found.set_result(own.result())


def test_while_tools_work_the_engine_goes_on_with_other_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools take about four times as long as a turn of the policy. An engine that kept places for episodes at their
    tools, or a worker without other leases, would take as many steps more for the same tokens. Counted once the worker
    knows how long a file takes, and has leases enough."""
    begins, files, steps, made = 4, 16, dict[int, int](), dict[int, dict[int, list[list[int]]]]()
    tables = {**TABLES, "train": {"online_filter": False, "groups_per_step": 4 * files}}
    for latency in (0, 20):
        run = make_run(tmp_path / f"{latency}", make_config(episode_model(GAME), **tables))
        worker = make_worker(run, tasks=source_of(GAME), judge=(tools := Slow(latency)))
        turn, step = worker.turn, worker.maker.engine.step

        def counted(latency: int = latency, step: Any = step) -> list[Completion]:
            steps[latency] = steps.get(latency, 0) + 1
            found: list[Completion] = step()
            return found

        def both(tools: Slow = tools, turn: Any = turn) -> bool:
            tools.turn()
            return bool(turn())

        monkeypatch.setattr(worker.maker.engine, "step", counted)
        monkeypatch.setattr(Worker, "turn", lambda _, both=both: both())
        try:
            work_until_sent(run, worker, begins)
            steps[latency] = 0
            work_until_sent(run, worker, files)
        finally:
            monkeypatch.undo()
            worker.metrics.close()
        store = judging_store(run, worker)
        read = [store.read(upload)[0] for upload in store.waiting(0, files)]
        made[latency] = {one.lease.submission: [r.completion.tolist() for r in one.rollouts] for one in read}
    both_made = made[0].keys() & made[20].keys()
    assert len(both_made) > files // 2
    assert all(made[0][number] == made[20][number] for number in both_made), "how long tools take changes no token"
    assert steps[20] <= 2 * steps[0], f"steps by how long tools take: {steps}"


class Held(Tools):
    """They answer when they are let."""

    def __init__(self) -> None:
        super().__init__()
        self.results = HeldResults(is_held=True)

    def play(self, split: Split, task: Task, actions: Sequence[str], **how: Any) -> "Future[Played]":
        return self.results.through(super().play(split, task, actions, **how))


def held_up(worker: Worker) -> int:
    """How many leases a worker holds once it asks for no more, while its tools are at work."""
    for _ in range(150):
        assert worker.turn()
    return len(worker.pipeline.flights)


def test_tools_that_take_long_are_not_given_more_leases_than_they_finish_in_time(tmp_path: Path) -> None:
    """An honest worker's leases would expire, and it would be suspended for that. The engine is idle, so its speed says
    nothing."""
    tools, tables = Held(), {**TABLES, "train": {"online_filter": False, "groups_per_step": 24}}
    run = make_run(tmp_path / "run", make_config(episode_model(GAME), **tables))
    worker = make_worker(run, tasks=source_of(GAME), judge=tools)
    try:
        assert held_up(worker) == 1, "nobody knows yet how long a file takes"
        tools.results.release()
        work_until_sent(run, worker, 1)
        assert worker.last_file is not None
        tools.results.is_held, worker.last_file = True, FileTime(seconds=worker.lease_s / 3, open_answers=16)
        assert 1 < held_up(worker) <= 3, "1.5 times as many answers as then are in time"
    finally:
        worker.metrics.close()
