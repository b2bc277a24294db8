"""Files of strangers buy no time of the validator, end no run, and blame nobody for what the network did."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from shoal.client.rollout_store import SwarmStore
from shoal.coordinator.db.schema import nodes
from shoal.errors import UnreadError
from shoal.protocol.lease import Lease
from shoal.protocol.stores import PROVEN, Upload
from shoal.protocol.submission import Submission
from shoal.tasks.source import Score, Split, Task
from shoal.validate.evidence.vote_log import Votes
from shoal.validate.queue import BURST_S, NEWCOMER_BURST_S, NEWCOMER_SHARE, NewcomerTime, TimeBudget, in_turn
from tests.support.coordinator_in_process import good_file, key_of, world_at
from tests.support.model_and_checks import World, build_world, gym
from tests.support.no_episodes import NoEpisodes
from tests.support.roles_in_process import entries, make_config, make_run, make_worker, notes, train, working
from tests.support.submissions import changed
from tests.support.validator_in_process import open_court


@pytest.fixture(scope="module")
def world() -> World:
    return build_world("short")


class SlowScorer(NoEpisodes):
    """Stands for a scorer that answers can be made to keep busy; it says how long it was let."""

    def __init__(self) -> None:
        self.let: list[float] = []

    def scores(self, split: Split, answers: Sequence[tuple[Task, str]], seconds: float = float("inf")) -> list[Score]:
        self.let.append(seconds)
        return [Score(gym().score(task, answer)) for task, answer in answers]


def made_up(submission: Submission) -> Submission:
    """Well-formed rubbish: right prompts, and answers that nobody drew."""
    return replace(
        submission, rollouts=[changed(r, completion=[40] * (len(r.completion) - 1) + [1]) for r in submission.rollouts]
    )


def upload(node: str, number: int, record: int, step: int = 0) -> Upload:
    lease = Lease("test", node, step, number, 0, 1, 0, 2e9)
    return Upload(step, number, lease, Path(f"{number:04d}.parquet"), record)


def test_fresh_keys_never_come_before_proven_nodes_and_one_node_never_before_all() -> None:
    rubbish = [upload(f"fresh-{n % 3}", n, 1) for n in range(30)]
    proven = [upload("a", 30, 2), upload("a", 31, 2), upload("b", 32, 2)]
    order = [file.submission for file in in_turn([*rubbish, *proven], lambda file: file.record)]
    assert order[:3] == [30, 32, 31]  # b's first before a's second
    assert order[3:9] == [0, 1, 2, 3, 4, 5]


def test_slow_answers_of_fresh_keys_never_delay_a_proven_nodes_file(tmp_path: Path, world: World) -> None:
    """Made-up answers are found out before any of them is scored, and a proven node's file does not wait for them."""
    court = open_court(tmp_path / "run", world, audit={"strikes": 99})
    scorer = court.validator.checks.judge = SlowScorer()
    for number in range(6):
        court.hand_in_submission(made_up(court.honest(f"fresh-{number}")))
    proven = court.hand_in("proven")
    waiting = [replace(file, record=PROVEN * (file.node == "proven")) for file in court.store.waiting(0, 9)]
    assert waiting[-1].node == "proven"
    court.validator.judge(waiting)
    judged = [(entry["node"], entry["accept"], entry["check"]) for entry in entries(court.run, "validator", "verdict")]
    assert judged[0] == ("proven", True, "")
    assert {(accept, check) for _, accept, check in judged[1:]} == {(False, "sampling")}
    assert court.verdict(proven).accept
    assert len(scorer.let) == 1


def test_a_newcomer_is_judged_though_proven_nodes_always_have_files_waiting(tmp_path: Path, world: World) -> None:
    court = open_court(tmp_path / "run", world)
    new = court.hand_in("new")
    place = new.step, new.submission
    for _ in range(20):  # a proven node's files: one more with every look at what waits
        court.hand_in("proven")
        waiting = court.store.waiting(0, 9)
        court.validator.judge([replace(file, record=PROVEN * (file.node == "proven")) for file in waiting], 0.0)
        if place in court.store.records.verdicts:
            break
    assert court.verdict(new).accept


def test_what_fresh_keys_hand_in_never_takes_more_than_its_share_of_the_time_from_proven_nodes() -> None:
    newcomers, taken, proven = NewcomerTime(), 0.0, 0.0
    for number in range(1000):
        took = (0.1, 0.5, 3.0)[number % 3]
        if newcomers.is_due:
            taken += took
            newcomers.newcomer_took(took)
        else:
            proven += took
            newcomers.proven_took(took)
    assert taken == pytest.approx(NEWCOMER_SHARE * (taken + proven), rel=0.02)


def test_a_file_that_comes_while_rubbish_is_judged_never_waits_for_the_whole_listing(
    tmp_path: Path, world: World
) -> None:
    court = open_court(tmp_path / "run", world, audit={"strikes": 99})
    for number in range(3):
        court.hand_in_submission(made_up(court.honest(f"fresh-{number}")))
    court.validator.judge(court.store.waiting(0, 9), 0.0)
    assert len(court.store.waiting(0, 9)) == 2  # one file's time, then it looks again


def test_answers_that_may_be_made_up_never_buy_more_than_their_nodes_budget(tmp_path: Path, world: World) -> None:
    """Where files are not computed whole before: no probation, and an answer in the spot that is right."""
    court = open_court(tmp_path / "run", world, audit={"rate": 1e-12, "probation": 0})
    scorer = court.validator.checks.judge = SlowScorer()
    court.hand_in("fresh")
    court.judge()
    assert scorer.let == [pytest.approx(NEWCOMER_BURST_S)]
    now = [0.0]
    budget = TimeBudget(lambda: now[0])
    budget.spend("a", 60.0)
    assert budget.left("a", PROVEN) == BURST_S - 60.0
    now[0] = 1200.0
    assert budget.left("a", PROVEN) == BURST_S


def test_an_expired_file_is_never_a_strike(tmp_path: Path) -> None:
    """The real store and a coordinator that has removed the bytes: two such files of an honest node ban nobody."""
    with world_at(tmp_path / "swarm", f"sqlite:///{tmp_path}/state.db", audit={"strikes": 2}) as swarm:
        swarm.announce()
        store = swarm.validator
        court = _court_of(tmp_path / "run", store)
        for _ in range(2):
            swarm.hand_in("honest", swarm.take("honest"))
            (file,) = store.waiting(0, 9)
            swarm.trainer.forget(10)  # as with keep.rollouts, or when another validator was faster
            with pytest.raises(UnreadError, match=r"could not be fetched .*its bytes were removed"):
                store.read(file)
            for _ in range(9):
                court.postponed = {place: replace(put, due=0.0) for place, put in court.postponed.items()}
                if court._is_due(file):
                    court.judge([file])
                if (file.step, file.submission) not in court.postponed:
                    break
        node = key_of("honest").address
        assert court.strikes[node] == 0
        assert court.budget.left(node, PROVEN) == BURST_S
        assert court.verdicts.banned == set()
        assert court.votes is not None
        assert [vote.letter for vote in court.votes._votes.values()] == ["v"] * len(court.votes._votes)
        assert len(court.votes._votes) == 2
        assert not (court.run_dir.path / "evidence").exists()
        owed = select(nodes.c.owed).where(nodes.c.address == node)
        assert swarm.database.ask(lambda db: db.execute(owed).scalar_one()) == 0, "nor a draw that it owes"
        assert swarm.lease("honest") is not None


def _court_of(path: Path, store: SwarmStore) -> Any:
    court = open_court(path, build_world("short"))
    return replace(court.validator, store=store, votes=Votes(path / "votes.jsonl"))


@pytest.mark.parametrize("again", [True, False])
def test_a_reader_that_died_or_a_line_that_broke_is_never_blame(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    court = open_court(tmp_path / "run", world)
    lease, read = court.hand_in("honest"), type(court.store).read

    def fails(self: Any, upload: Upload) -> Any:
        raise UnreadError("its reader ended", again=again)

    monkeypatch.setattr(type(court.store), "read", fails)
    court.judge()
    if again:  # it is judged when it can be read
        assert len(court.store.waiting(0, 9)) == 1
        monkeypatch.setattr(type(court.store), "read", read)
        court.judge()
        assert court.verdict(lease).accept
    else:
        verdict = court.verdict(lease)
        assert verdict.finding is not None
        assert (verdict.accept, verdict.finding.check, verdict.evidence) == (False, "unread", "")
    assert court.validator.strikes == {}


@pytest.mark.timeout(900)
def test_a_run_under_rubbish_for_longer_than_wait_s_never_ends(tmp_path: Path, tiny_dir: Path) -> None:
    """The trainer waits while nothing is accepted, however long, and goes on by itself when something is."""
    run = make_run(tmp_path / "run", make_config(tiny_dir, wait_s=0.1, steps=1))
    worker, honest, handed_in = make_worker(run), make_worker(run), 0
    thread = threading.Thread(target=train, args=(run,), daemon=True)
    thread.start()
    deadline = time.monotonic() + 300
    while notes(run).count("it goes on") < 5:
        assert thread.is_alive()
        assert time.monotonic() < deadline
        if handed_in < 3 and (lease := worker.store.lease(f"fresh-{handed_in}", 0)) is not None:
            worker.store.put(lease, good_file(lease))
            handed_in += 1
        time.sleep(0.02)
    with working(run, honest):
        thread.join(300)
    assert [entry["step"] for entry in entries(run, "trainer", "step")] == [0]


def test_a_file_whose_log_probs_the_trainer_finds_off_is_never_trained_on(
    tmp_path: Path, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validator looks at one answer in 128; the trainer computes all. It turns the file down, without blame."""
    config = make_config(
        tiny_dir, steps=1, async_level=0, train={"old_logprobs": "sampled", "loss": {"family": "gspo"}}
    )
    run = make_run(tmp_path / "run", config)
    worker = make_worker(run)
    make = worker.maker.submission
    forged: list[int] = []

    def forge(*parts: Any) -> Submission:
        made = make(*parts)
        if forged:
            return made
        forged.append(made.lease.submission)
        first = changed(made.rollouts[0], logprobs=[-10_000.0] * len(made.rollouts[0].logprobs))
        return replace(made, rollouts=[first, *made.rollouts[1:]])

    monkeypatch.setattr(type(worker.maker), "submission", lambda _self, *parts: forge(*parts))
    with working(run, worker):
        train(run)
    (step,) = entries(run, "trainer", "step")
    assert forged
    assert not set(forged) & set(step["submissions"])
    assert step["turned_down"] == 1
    assert step["mismatch_max"] < 0.002
    (refused,) = entries(run, "trainer", "refused")
    assert "off the trainer's own, at most 0.002 may be" in refused["reason"]
