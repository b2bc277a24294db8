"""Nobody chooses among draws: neither by its key, nor by the version, nor by letting go what does not suit it."""

import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from shoal.coordinator import leases as leasing
from shoal.coordinator.db.database import Database
from shoal.coordinator.db.queries import FILES_PER_DRAW
from shoal.coordinator.db.schema import leases, nodes
from shoal.coordinator.draws import KEPT_LEASES, MAX_GIVEN, standing
from shoal.coordinator.policy import Terms
from shoal.errors import RolloutError
from shoal.protocol.lease import Lease
from shoal.protocol.verdict import Verdict
from tests.support.choosers import MEAN, SPREAD, SYBIL, Likes, Market, reward
from tests.support.coordinator_in_process import TRAINER, VALIDATOR, World, good_file, key_of, make_config, world_at
from tests.support.strangers import Stranger
from tests.support.submissions import make_submission

HOME, ELSEWHERE = "198.51.100.7", "203.0.113.9"
KEYS = 50
LOG = logging.getLogger(__name__)
# A file takes a sixth of a lease: within so many rounds each key of an honest operator hands in 60 files.
ROUNDS = 60


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[World]:
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", swarm={"leases": 1}) as world:
        world.announce()
        yield world


def pass_time(world: World, seconds: float) -> None:
    world.clock.ahead += seconds
    world.database.ask(world.coordinator.sweep)


def draw_of(lease: Lease | dict[str, object]) -> tuple[object, int]:
    """What fixes tasks and noise."""
    found = lease if isinstance(lease, Lease) else Lease(**lease)  # type: ignore[arg-type]
    return found.beacon, found.seed


def market(path: Path, likes: Likes, monkeypatch: pytest.MonkeyPatch, rounds: int = ROUNDS) -> Market:
    """A run with the Sybil's keys in one network and an honest node in another, played to its end."""
    monkeypatch.setattr("shoal.coordinator.leases.secrets.randbits", random.Random(1).getrandbits)
    train, workers = {"groups_per_step": 400, "oversample": 3.0}, {"groups_per_submission": 2, "lease_s": 240.0}
    config = make_config(steps=2000, train=train, workers=workers)
    terms = Terms.of(config, TRAINER.address, frozenset([VALIDATOR.address]))
    played = Market(Database(f"sqlite:///{path / 'state.db'}"), terms, likes, [f"key-{n}" for n in range(KEYS)])
    played.start()
    played.join(played.keys, SYBIL)
    for _ in range(rounds):
        played.round()
    return played


def above(deviations: float) -> Likes:
    return lambda _market, _key, lease: reward(lease) >= MEAN + deviations * SPREAD


def patient(deviations: float) -> Likes:
    """Lets a draw go once, in the hope of a better one, and does it when it is given again."""
    return lambda _market, _key, lease: bool(lease.draw_of) or reward(lease) >= MEAN + deviations * SPREAD


@pytest.mark.parametrize(
    "likes",
    [above(-2.13), above(-1.83), above(-0.84), above(0.0), patient(0.0)],
    ids=["drops 1 in 60", "drops 1 in 30", "drops 1 in 5", "drops every other one", "puts off every other one"],
)
def test_a_sybil_with_fifty_keys_gains_nothing_by_letting_draws_go(
    likes: Likes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 60 files per key, the mean of what it hands in is less than 2 % above that of its draws; or it has given up
    nearly all of its work for the choice, and what it brought in would not move the mean of its share by 2 %."""
    played = market(tmp_path, likes, monkeypatch)
    could = KEYS * len(played.of_honest())
    gain, error = played.gain()
    handed_in = played.of_sybil()
    LOG.info("%d of %d files, gain %.2f %% +- %.2f %%", len(handed_in), could, 100 * gain, 100 * error)
    assert len(played.of_honest()) == ROUNDS
    if len(handed_in) >= could / 4:
        assert gain < 0.02
    else:
        assert gain * len(handed_in) / could < 0.02
    played.database.close()


def test_a_sybil_that_drops_draws_loses_its_standing_and_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = market(tmp_path, above(0.0), monkeypatch, rounds=30)
    rows = played.database.ask(lambda db: db.execute(select(nodes).where(nodes.c.network == SYBIL)).all())
    assert len(rows) == KEYS
    owing = [row for row in rows if row.owed]
    assert len(owing) >= 4
    assert all(leasing.record_of(row) == 0 for row in owing)
    assert all("that it let go: counts as a newcomer until" in standing(r.accepted, r.rejected, r.owed) for r in owing)
    assert len(played.of_sybil()) < KEYS * 30 / 4
    played.database.close()


def test_two_keys_that_ask_for_the_same_lease_get_the_same_draw(busy: World) -> None:
    """Whichever key had asked first: tasks and noise are the lease's and not its holder's."""
    lease = busy.take("a")
    assert replace(lease, node=key_of("b").address).seed == lease.seed
    assert busy.take("b").beacon != lease.beacon, "and nobody knows a beacon before its lease is given"


def test_no_other_version_than_the_one_that_a_lease_names_is_taken(busy: World) -> None:
    busy.announce(2)
    lease = busy.take("a", version=2)
    assert (lease.step, lease.version) == (2, 2)
    for version in (0, 1, 3):
        with pytest.raises(RolloutError, match=f"used version {version}, it is for version 2"):
            lease.check_version(make_submission(lease, version=version).version)
    busy.announce(3)
    assert busy.take("a", version=3) == lease or busy.take("a", version=3).draw_of == "2/0"


def test_a_node_that_lets_a_lease_expire_gets_its_draw_again_and_no_other(busy: World) -> None:
    first = busy.take("a")
    for number in range(2):
        pass_time(busy, 601)
        again = busy.take("a")
        assert draw_of(again) == draw_of(first)
        assert (again.draw_of, again.groups) == ("0/0", first.groups)
        assert (again.step, again.submission) == (0, number + 1)
    busy.hand_in("a", again)
    assert draw_of(busy.take("a")) != draw_of(first)


def test_a_node_whose_step_is_over_gets_its_draw_again_with_the_version_that_it_has(busy: World) -> None:
    first = busy.take("a")
    busy.announce(3)
    again = busy.take("a", version=3)
    assert draw_of(again) == draw_of(first)
    assert (again.step, again.version, again.draw_of) == (3, 3, "0/0")
    with pytest.raises(RolloutError, match=r"lease 0/0 .*: was let go; its draw was given again as 3/0"):
        busy.hand_in("a", first)


@pytest.mark.parametrize("key", ["a", "fresh"])
def test_a_draw_that_was_let_go_comes_first_for_every_key_of_its_network(busy: World, key: str) -> None:
    stranger = Stranger(busy)
    stranger.join("a", HOME)
    first = stranger.lease("a", HOME)
    pass_time(busy, 601)
    stranger.join(key, HOME)
    stranger.join("elsewhere", ELSEWHERE)
    assert draw_of(stranger.lease("elsewhere", ELSEWHERE)) != draw_of(first)
    assert draw_of(stranger.lease(key, HOME)) == draw_of(first)


def test_a_draw_that_its_network_does_not_do_goes_to_anybody_and_stays_owed(busy: World) -> None:
    stranger = Stranger(busy)
    stranger.join("a", HOME)
    first = stranger.lease("a", HOME)
    pass_time(busy, 601)
    stranger.join("elsewhere", ELSEWHERE)
    pass_time(busy, KEPT_LEASES * 600)
    assert draw_of(stranger.lease("elsewhere", ELSEWHERE)) == draw_of(first)
    assert draw_of(stranger.lease("a", HOME)) != draw_of(first), "it waited, and is given work"
    with busy.link(key_of("a")) as link:
        (node,) = (n for n in link.get("/v1/status")["nodes"] if n["address"] == key_of("a").address)
        assert (node["owed"], node["abandoned"]) == (1, 1)
        assert node["reason"] == (
            "owes 1 draw that it let go: counts as a newcomer until it does them or 61 more files are accepted"
        )
        assert link.heartbeat()["reason"] == node["reason"]


def test_a_machine_that_slept_recovers_by_doing_its_draw(busy: World) -> None:
    for _ in range(2):
        busy.hand_in("a", busy.take("a"))
    busy.take("a")
    pass_time(busy, 601)

    def owed() -> int:
        row = busy.database.ask(
            lambda db: db.execute(select(nodes).where(nodes.c.address == key_of("a").address)).one()
        )
        assert row.state != "banned"
        return int(row.owed)

    assert owed() == 1
    busy.hand_in("a", busy.take("a"))
    assert owed() == 0


def test_a_draw_that_makes_workers_crash_is_given_up_in_the_end(busy: World) -> None:
    first = busy.take("a")
    for number in range(1, MAX_GIVEN):
        pass_time(busy, 601)
        assert draw_of(busy.take(f"node-{number}")) == draw_of(first)
    pass_time(busy, 601)
    assert draw_of(busy.take("another")) != draw_of(first)


def test_a_lease_whose_version_is_taken_back_ends_without_anybodys_fault(busy: World) -> None:
    busy.announce(1)
    lease = busy.take("a", version=1)
    expired = busy.take("b", version=1)
    pass_time(busy, 601)
    assert busy.take("a", version=1).draw_of == f"{lease.step}/{lease.submission}"
    busy.trainer._link.retract(after=0)
    with pytest.raises(RolloutError, match="version 1, which the trainer took back; nobody is blamed"):
        busy.hand_in("a", busy_lease(busy, "a"))
    rows = busy.database.ask(
        lambda db: db.execute(select(nodes.c.owed).where(nodes.c.role == "worker")).scalars().all()
    )
    assert set(rows) == {0}
    assert expired.beacon != busy.take("b").beacon


def busy_lease(world: World, name: str) -> Lease:
    """The last lease that a node was given, as the coordinator has it."""
    query = select(leases).where(leases.c.node == key_of(name).address).order_by(leases.c.issued.desc()).limit(1)
    return leasing.lease_of("test", world.database.ask(lambda db: db.execute(query).one()))


WHY: dict[str, tuple[Callable[[World], None], str]] = {
    "open": (lambda world: None, "is open, and nothing was handed in yet"),
    "expired": (lambda world: pass_time(world, 601), "its draw is given again, to this node and its network first"),
}


@pytest.mark.parametrize("case", WHY)
def test_why_says_what_became_of_a_lease_without_a_file(busy: World, case: str) -> None:
    change, said = WHY[case]
    busy.take("a")
    change(busy)
    answer = busy.request(key_of("a"), "GET", "/v1/submissions/0/0")
    assert answer.status_code == 404
    assert said in answer.json()["reason"]


def test_a_network_that_let_more_go_than_its_work_pays_for_waits_the_longer_for_new_draws(tmp_path: Path) -> None:
    swarm = {"probation_files": 2}
    train = {"groups_per_step": 40}
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", swarm=swarm, train=train) as world:
        world.announce()
        stranger = Stranger(world)
        proven = [f"key-{n}" for n in range(6)]
        for name in proven:
            stranger.join(name, HOME)
            hand_in(stranger, name, stranger.lease(name, HOME))
            accept_all(world)
        assert all(stranger.lease(name, HOME) for name in proven)
        pass_time(world, 601)
        pass_time(world, KEPT_LEASES * 600)
        for number in range(6):  # others take what was let go
            stranger.join(f"other-{number}", f"203.0.{number}.1")
            assert stranger.lease(f"other-{number}", f"203.0.{number}.1")["draw_of"]
        pass_time(world, 1)
        found = [stranger.lease(name, HOME) for name in proven]
        assert sum(lease is not None for lease in found) == 1
        answer = stranger.ask(key_of(proven[-1]), HOME, "POST", "/v1/leases", {"version": 0})
        assert "let 6 draws go that are not done, and 2 may be after 6 accepted files" in answer["reason"]
        assert FILES_PER_DRAW > 6
        holder = next(name for name, lease in zip(proven, found, strict=True) if lease)
        pass_time(world, 500)
        hand_in(stranger, holder, next(lease for lease in found if lease))
        accept_all(world)
        pass_time(world, 3 * 600 - 300)
        assert not any(stranger.lease(name, HOME) for name in proven)
        pass_time(world, 400)
        assert sum(stranger.lease(name, HOME) is not None for name in proven) == 1


def hand_in(stranger: Stranger, name: str, lease: dict[str, object]) -> None:
    target = f"/v1/files/{lease['step']}/{lease['submission']}?signal={lease['groups']}"
    stranger.ask(key_of(name), HOME, "PUT", target, data=good_file(Lease(**lease)))  # type: ignore[arg-type]


def accept_all(world: World) -> None:
    for upload in world.validator.waiting(0, 20):
        _, sha256 = world.validator.read(upload)
        world.validator.judge(upload, Verdict(True, sha256, True, samples=8, tokens=64))
