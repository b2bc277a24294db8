"""The store over the network: leases, files and verdicts from worker to trainer; on SQLite and on PostgreSQL."""

import hashlib
import time
from pathlib import Path

import psycopg
import pytest

from shoal.errors import BannedError, RolloutError, StorageError
from shoal.ledger.acts import Deposit
from shoal.protocol.pacing import StepCount
from shoal.protocol.verdict import Finding, Verdict
from tests.support.coordinator_in_process import TRAINER, VALIDATOR, World, good_file, key_of, world_at
from tests.support.submissions import judge_formats


def test_a_file_goes_from_worker_through_judgement_to_the_trainer_once(world: World) -> None:
    world.announce()
    lease = world.take("a")
    world.hand_in("a", lease)
    assert list(world.trainer.accepted(0)) == []
    judge_formats(world.validator, 0, 2)
    (submission,) = world.trainer.accepted(0)
    assert (submission.lease, submission.version) == (lease, 0)
    assert list(world.trainer.accepted(0)) == []
    assert world.trainer.count(0) == StepCount(seen=2, signal=2, leased=0)


def test_leases_that_are_out_are_counted_and_the_smallest_short_step_comes_first(world: World) -> None:
    world.announce()
    leases = world.take_all()
    assert [(lease.step, lease.submission) for lease in leases] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert world.trainer.count(0) == StepCount(seen=0, signal=0, leased=4)


@pytest.mark.parametrize(("online_filter", "next_step"), [(True, 0), (False, 1)])
def test_groups_without_signal_call_for_more_leases_unless_the_online_filter_is_off(
    tmp_path: Path, online_filter: bool, next_step: int
) -> None:
    database = f"sqlite:///{tmp_path / 'state.db'}"
    with world_at(tmp_path, database, train={"online_filter": online_filter}) as world:
        world.announce()
        for node in ("a", "b"):
            world.hand_in(node, world.take(node), signal=0)
        assert world.trainer.count(0) == StepCount(seen=4, signal=0, leased=0)
        assert world.take("c").step == next_step


def test_nothing_is_leased_before_a_version_is_announced(world: World) -> None:
    assert world.lease("a") is None
    world.announce()
    time.sleep(0.3)  # a node asks no more often than it was told to
    assert world.lease("a") is not None


def test_no_lease_is_given_for_a_step_that_is_trained(world: World) -> None:
    world.announce(3)
    assert world.take("behind", version=2).step == 3
    assert world.lease("far-behind", version=0) is None


def test_a_restarted_node_gets_its_own_lease_back(world: World) -> None:
    world.announce()
    lease = world.take("a")
    world.take("b")
    world.stop()
    world.start()
    assert world.take("a") == lease


def test_each_lease_has_a_beacon_of_its_own_which_nobody_knew_before(world: World) -> None:
    world.announce()
    leases = [world.take(name) for name in ("a", "b", "c")]
    for name, lease in zip("abc", leases, strict=True):
        world.hand_in(name, lease)
    leases += [world.take(name) for name in ("a", "b", "c")]
    assert len({lease.beacon for lease in leases}) == 6


def leases_of(world: World, name: str) -> tuple[int, str]:
    """How many leases a node gets side by side, and why no more."""
    held: list[tuple[int, int]] = []
    while True:
        found = world.request(key_of(name), "POST", "/v1/leases", {"version": 0, "holding": held}).json()
        if found["lease"] is None:
            return len(held), found["reason"]
        held.append((found["lease"]["lease"]["step"], found["lease"]["lease"]["submission"]))
        assert len(held) < 9


def test_a_node_with_a_record_holds_three_leases(world: World) -> None:
    world.announce()
    for _ in range(2):
        world.hand_in("a", world.take("a"))
        judge_formats(world.validator, 0, 2)
    assert leases_of(world, "a")[0] == 3


def test_a_newcomer_holds_one_lease_and_more_with_stake(world: World) -> None:
    world.announce()
    world.take("plain")
    held, reason = leases_of(world, "plain")
    assert (held, "may hold 1 at once" in reason) == (1, True)
    world.take("rich")
    world.ledger_writer._enter([Deposit(id="stake", node=key_of("rich").address, amount=10**6)])
    assert leases_of(world, "rich")[0] > 1


def test_a_node_on_probation_waits_for_verdicts_before_it_gets_more(world: World) -> None:
    world.announce()
    for _ in range(world.config.swarm.probation_files):
        world.hand_in("a", world.take("a"), signal=0)
    answer = world.request(key_of("a"), "POST", "/v1/leases", {"version": 0}).json()
    assert answer["lease"] is None
    assert "wait for a verdict" in answer["reason"]
    assert world.lease("b") is not None
    judge_formats(world.validator, 0, 2)
    assert world.request(key_of("a"), "POST", "/v1/leases", {"version": 0}).json()["lease"] is not None


def test_an_expired_lease_returns_to_the_pool_and_its_file_is_refused(world: World) -> None:
    world.announce()
    lease = world.take("a")
    world.clock.ahead = 601
    assert world.trainer.count(0).leased == 0
    with pytest.raises(
        RolloutError, match=r"expired \d s ago; its draw is given again, to this node and its network first"
    ):
        world.hand_in("a", lease)
    assert world.take("b").submission == lease.submission + 1


def test_the_time_for_which_the_coordinator_was_down_is_not_held_against_a_lease(world: World) -> None:
    world.announce()
    lease = world.take("a")
    world.stop()
    world.clock.ahead = 700
    world.start()
    world.hand_in("a", lease)
    assert world.trainer.count(0).seen == lease.groups


def test_a_large_file_that_is_refused_is_told_why_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.client.rollout_store._signal", lambda _: 0)
    world.announce()
    lease = world.take("a")
    world.clock.ahead = 601
    with pytest.raises(RolloutError, match=r"expired \d s ago"):
        world.store(key_of("a")).put(lease, bytes(world.coordinator.terms.max_upload))


def test_the_same_bytes_may_be_sent_again_and_others_may_not(world: World) -> None:
    world.announce()
    lease = world.take("a")
    world.hand_in("a", lease)
    world.hand_in("a", lease)
    assert world.trainer.count(0).seen == 2
    with pytest.raises(RolloutError, match="already submitted with other bytes; a lease is good for one file"):
        world.store(key_of("a")).put(lease, good_file(lease, 1))


def test_a_rejected_file_counts_for_nothing_and_its_place_is_filled_again(world: World) -> None:
    world.announce()
    for name in ("a", "b"):
        world.hand_in(name, world.take(name))
    finding = Finding("rewards", "rewards are recomputed", 1.0, float("nan"), 3)
    (upload, _) = world.validator.waiting(0, 0)
    world.validator.judge(upload, Verdict(False, world.validator.read(upload)[1], True, finding, "evidence/x.json"))
    assert world.trainer.count(0) == StepCount(seen=2, signal=2, leased=0)
    assert world.take("c").step == 0
    told = world.link(key_of("c")).get("/v1/submissions/0/0")
    assert told["verdict"]["finding"]["check"] == "rewards"
    assert told["node"] == key_of("a").address


def test_a_lie_about_signal_is_found_by_the_validator(world: World) -> None:
    world.announce()
    lease = world.take("a")
    world.hand_in("a", lease, signal=0)
    judge_formats(world.validator, 0, 2)
    assert list(world.trainer.accepted(0)) == []
    reason = world.link(key_of("a")).get("/v1/submissions/0/0")["verdict"]["finding"]["found"]
    assert "claims 0 groups with signal, it has 2" in reason


def test_a_verdict_is_final_but_the_trainer_may_turn_a_file_down(world: World, tmp_path: Path) -> None:
    world.announce()
    world.hand_in("a", world.take("a"))
    (upload,) = world.validator.waiting(0, 0)
    _, sha256 = world.validator.read(upload)
    world.validator.judge(upload, Verdict(True, sha256, False))
    target = "/v1/verdicts/0/0"
    body = {"accept": False, "sha256": sha256, "audited": False}
    assert world.request(VALIDATOR, "PUT", target, body).status_code == 409
    assert world.request(VALIDATOR, "PUT", target, body | {"accept": True}).json() == {"changed": False}
    assert world.request(TRAINER, "PUT", target, body | {"accept": True}).status_code == 403
    world.trainer._root_of = lambda _: "cd" * 32
    assert list(world.trainer.accepted(0)) == []
    finding = world.link(key_of("a")).get("/v1/submissions/0/0")["verdict"]["finding"]
    assert (finding["check"], finding["found"]) == ("version", "cd" * 32)
    assert len(finding["claimed"]) == 64, "whole, so that it can be found among the versions that were taken back"
    assert "version 0 is what is published under that number" in finding["rule"]
    assert world.trainer.count(0).seen == 0


def test_a_banned_node_gets_nothing_more_and_is_told_why(world: World) -> None:
    world.announce()
    lease = world.take("a")
    world.validator.ban(lease.node, "2 files rejected")
    with pytest.raises(BannedError, match="gets no more leases in this run: 2 files rejected"):
        world.lease("a")
    with pytest.raises(BannedError):
        world.hand_in("a", lease)
    with pytest.raises(BannedError):
        world.link(key_of("a")).join("worker")
    assert world.trainer.count(0).leased == 0


def test_the_trainer_turns_down_what_was_accepted_and_judges_nothing_itself(world: World) -> None:
    world.announce()
    lease = world.take("a")
    data = world.hand_in("a", lease)
    target, sha256 = f"/v1/verdicts/{lease.step}/{lease.submission}", hashlib.sha256(data).hexdigest()
    no = {"accept": False, "sha256": sha256, "audited": False}
    assert world.request(TRAINER, "PUT", target, no).status_code == 403
    judge_formats(world.validator, 0, 2)
    assert world.request(TRAINER, "PUT", target, no).json() == {"changed": True}
    assert world.request(TRAINER, "PUT", target, no).json() == {"changed": False}
    assert list(world.trainer.accepted(lease.step)) == []


def test_forgotten_steps_leave_their_verdicts_and_not_their_bytes(world: World) -> None:
    world.announce()
    world.hand_in("a", world.take("a"))
    judge_formats(world.validator, 0, 2)
    assert len(list((world.path / "uploads").rglob("*.parquet"))) == 1
    world.trainer.forget(before=1)
    assert not list((world.path / "uploads").rglob("*.parquet"))
    assert list(world.trainer.accepted(0)) == []
    assert world.link(key_of("a")).get("/v1/submissions/0/0")["verdict"]["accept"]


def test_versions_that_are_taken_back_can_be_announced_with_other_content(world: World) -> None:
    world.announce(3)
    with pytest.raises(RolloutError, match="retract it before another one"):
        world.trainer._link.announce(3, "cd" * 32)
    assert world.trainer._link.retract(after=1) == [2, 3]
    world.trainer._link.announce(2, "cd" * 32)
    assert world.lease("a", version=3) is None


def test_a_second_coordinator_on_the_same_database_is_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.coordinator.db.database.TAKEOVER_S", 0.2)
    with (
        pytest.raises(StorageError, match="a run has one coordinator"),
        world_at(tmp_path / "second", world.url_of_database),
    ):
        pass


def test_what_was_uploaded_is_there_after_a_restart(world: World) -> None:
    world.announce()
    world.hand_in("a", world.take("a"))
    world.stop()
    world.start()
    judge_formats(world.validator, 0, 2)
    assert len(list(world.trainer.accepted(0))) == 1


def test_a_lost_connection_to_postgres_is_made_again(tmp_path: Path, postgres_url: str) -> None:
    with psycopg.connect(f"{postgres_url}/postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE cut")
        with world_at(tmp_path, f"{postgres_url}/cut") as world:
            world.announce()
            lease = world.take("a")
            cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'cut'"
            assert connection.execute(cut).fetchall()
            world.hand_in("a", lease)
            assert world.trainer.count(0).seen == 2
