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
from shoal.coordinator.db.schema import leases, nodes
from shoal.coordinator.draws import standing
from shoal.coordinator.lease_rules import FILES_PER_DRAW, MAX_GIVEN
from shoal.coordinator.policy import KEPT_LEASES, Terms
from shoal.errors import RolloutError
from shoal.protocol.lease import Lease
from shoal.protocol.verdict import MARGIN, ROUNDING, UNFETCHED, Finding, Verdict
from tests.support.choosers import MEAN, SPREAD, SYBIL, Drops, Likes, Market, reward
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


def market(
    path: Path,
    likes: Likes,
    monkeypatch: pytest.MonkeyPatch,
    rounds: int = ROUNDS,
    drops: Drops = "expire",
    keys: int = KEYS,
    *,
    apart: bool = False,
) -> Market:
    """A run with the Sybil's keys, in one network or each in its own, and an honest node in another, played to its
    end."""
    monkeypatch.setattr("shoal.coordinator.grants.secrets.randbits", random.Random(1).getrandbits)
    train, workers = {"groups_per_step": 400, "oversample": 3.0}, {"groups_per_submission": 2, "lease_s": 240.0}
    config = make_config(steps=2000, train=train, workers=workers)
    terms = Terms.of(config, TRAINER.address, frozenset([VALIDATOR.address]))
    names = [f"key-{n}" for n in range(keys)]
    played = Market(Database(f"sqlite:///{path / 'state.db'}"), terms, likes, names, drops, apart)
    played.start()
    played.join(played.keys)
    for _ in range(rounds):
        played.round()
    return played


def above(deviations: float) -> Likes:
    return lambda _market, _key, lease: reward(lease) >= MEAN + deviations * SPREAD


def patient(deviations: float) -> Likes:
    """Lets a draw go once, in the hope of a better one, and does it when it is given again."""
    return lambda _market, _key, lease: bool(lease.draw_of) or reward(lease) >= MEAN + deviations * SPREAD


CHOOSERS: dict[str, tuple[Likes, Drops]] = {
    "drops 1 in 60": (above(-2.13), "expire"),
    "drops 1 in 30": (above(-1.83), "expire"),
    "drops 1 in 5": (above(-0.84), "expire"),
    "drops every other one": (above(0.0), "expire"),
    "puts off every other one": (patient(0.0), "expire"),
    "spoils 1 in 30": (above(-1.83), "spoil"),
    "spoils every other one": (above(0.0), "spoil"),
    "hands back 1 in 30": (above(-1.83), "hand back"),
    "hands back every other one": (above(0.0), "hand back"),
}


# What the mean of the files that a Sybil hands in may be above that of all its draws. A key that stops at the first
# draw that it does not like has handed in what it liked, and no rule takes that back: who drops the worst q of its
# draws gains what a normal distribution without its lowest q has, for 1 / q files. So the literal bar can be kept down
# to a share of the files of about 0.45; below it, the gain times that share is what there was to win.
BAR, FROM_SHARE = 0.02, 0.45
PRODUCT_APART, PRODUCT_TOGETHER = 0.011, 0.006


def judge_gain(played: Market, product: float) -> None:
    could = len(played.keys) * len(played.of_honest())
    gain, error = played.gain()
    share = len(played.of_sybil()) / could
    LOG.info("%d of %d files, gain %.2f %% +- %.2f %%", len(played.of_sybil()), could, 100 * gain, 100 * error)
    assert len(played.of_honest()) == ROUNDS
    if share >= FROM_SHARE:
        assert gain < BAR
    else:
        assert gain * share < product


@pytest.mark.parametrize("chooser", CHOOSERS)
def test_a_sybil_with_fifty_keys_gains_nothing_by_letting_draws_go(
    chooser: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 60 files per key, the mean of what it hands in is less than 2 % above that of its draws; or it has given up
    most of its work for the choice, and what it brought in moves the mean of its share by little."""
    likes, drops = CHOOSERS[chooser]
    played = market(tmp_path, likes, monkeypatch, drops=drops)
    judge_gain(played, PRODUCT_TOGETHER)
    played.database.close()


APART: dict[str, tuple[int, float, Drops]] = {
    "50 keys spoil 1 in 30": (50, -1.83, "spoil"),
    "50 keys spoil 1 in 12": (50, -1.4, "spoil"),
    "16 keys spoil 1 in 60": (16, -2.13, "spoil"),
    "16 keys spoil 1 in 18": (16, -1.6, "spoil"),
    "16 keys spoil 1 in 12": (16, -1.4, "spoil"),
    "16 keys spoil 1 in 5": (16, -0.84, "spoil"),
    "16 keys drop 1 in 30": (16, -1.83, "expire"),
    "16 keys drop 1 in 12": (16, -1.4, "expire"),
    "16 keys hand back 1 in 18": (16, -1.6, "hand back"),
    "8 keys spoil 1 in 12": (8, -1.4, "spoil"),
    "8 keys drop 1 in 12": (8, -1.4, "expire"),
    "1 key spoils 1 in 18": (1, -1.6, "spoil"),
}


@pytest.mark.parametrize("chooser", APART)
def test_a_sybil_gains_no_more_by_a_network_for_each_of_its_keys(
    chooser: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, threshold, drops = APART[chooser]
    played = market(tmp_path, above(threshold), monkeypatch, drops=drops, keys=keys, apart=True)
    judge_gain(played, PRODUCT_APART)
    played.database.close()


@pytest.mark.parametrize("apart", [True, False])
def test_machines_that_are_away_now_and_then_lose_the_time_and_no_more(
    apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 16 honest machines is away once in 30 files for longer than a lease lasts, in one network or in many."""
    rng, back, away = random.Random(2), dict[str, int](), 8
    outages = 0

    def is_there(played: Market, key: str, _lease: Lease) -> bool:
        nonlocal outages
        if played.rounds < back.get(key, 0):
            return False
        if rng.random() < 1 / 30:
            back[key] = played.rounds + away
            outages += 1
            return False
        return True

    played = market(tmp_path, is_there, monkeypatch, keys=16, apart=apart)
    was_there = ROUNDS * len(played.keys) - away * outages
    LOG.info("%d files in %d rounds", len(played.of_sybil()), was_there)
    assert outages > 16
    assert len(played.of_sybil()) > 0.9 * was_there
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
    assert all(
        "that it let go or had rejected: counts as a newcomer" in standing(r.accepted, r.rejected, r.owed)
        for r in owing
    )
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


@pytest.mark.parametrize(("newest", "version"), [(2, 0), (3, 3)], ids=["the same version", "too old by now"])
def test_a_node_whose_step_is_over_gets_its_draw_again(busy: World, newest: int, version: int) -> None:
    """Also if it has computed the file: nobody gets rid of a draw by handing it in when no verdict comes any more, nor
    of its answers while their version is not too old. It lost a race and let nothing go: nobody is blamed."""
    first = busy.take("a")
    busy.announce(newest)
    with pytest.raises(RolloutError, match="step 0 is over; its draw is given again"):
        busy.hand_in("a", first)
    again = busy.take("a", version=newest)
    assert draw_of(again) == draw_of(first)
    assert (again.step, again.version, again.draw_of) == (newest, version, "0/0")
    with pytest.raises(RolloutError, match=rf"lease 0/0 .*: step 0 was over; its draw was given again as {newest}/0"):
        busy.hand_in("a", first)
    assert debts(busy, "a") == (0, 0)


def test_a_draw_that_is_always_late_is_given_up_in_the_end_and_owed(busy: World) -> None:
    first = busy.take("a")
    for step in range(1, MAX_GIVEN):
        busy.announce(step)
        assert draw_of(busy.take("a", version=step)) == draw_of(first)
    busy.announce(MAX_GIVEN)
    assert busy.lease("a", version=MAX_GIVEN) is None
    pass_time(busy, 601)
    busy.store(key_of("a"))._next_ask = (-1, 0.0)
    assert draw_of(busy.take("a", version=MAX_GIVEN)) != draw_of(first)
    assert debts(busy, "a") == (1, 1)


def debts(world: World, name: str) -> tuple[int, int]:
    """Draws that a node owes, and leases that it let expire."""
    query = select(nodes).where(nodes.c.address == key_of(name).address)
    row = world.database.ask(lambda db: db.execute(query).one())
    assert row.state != "banned"
    return row.owed, row.abandoned


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
            "owes 1 draw that it let go or had rejected: counts as a newcomer until 61 more files are accepted, "
            "or what was let go is done"
        )
        assert link.heartbeat()["reason"] == node["reason"]


def test_a_machine_that_slept_recovers_by_doing_its_draw(busy: World) -> None:
    for _ in range(2):
        busy.hand_in("a", busy.take("a"))
    busy.take("a")
    pass_time(busy, 601)
    assert debts(busy, "a") == (1, 1)
    busy.hand_in("a", busy.take("a"))
    accept_all(busy)
    assert debts(busy, "a") == (0, 1)


def test_a_draw_that_goes_from_key_to_key_is_owed_by_all_of_them_until_it_is_done(busy: World) -> None:
    """Otherwise a key that costs nothing would take over what the others do not like."""
    first = busy.take("a")
    pass_time(busy, 601)
    assert draw_of(busy.take("sink")) == draw_of(first)
    assert debts(busy, "a") == (1, 1)
    pass_time(busy, 601)
    assert (debts(busy, "a"), debts(busy, "sink")) == ((1, 1), (1, 1))
    busy.hand_in("b", busy.take("b"))
    assert debts(busy, "a") == (1, 1), "rubbish is not work"
    accept_all(busy)
    assert (debts(busy, "a"), debts(busy, "sink")) == ((0, 1), (0, 1))


@pytest.mark.parametrize(
    ("check", "owed"),
    [(MARGIN, 1), (ROUNDING, 1), ("unread", 1), ("rewards", 1), ("version", 0), ("scorer", 0), (UNFETCHED, 0)],
)
def test_a_draw_whose_file_was_spoiled_is_owed_as_if_it_was_let_go(busy: World, check: str, owed: int) -> None:
    """Rejected without blame, for which it is enough to be off by a little: otherwise that is how to drop a draw."""
    busy.hand_in("a", busy.take("a"))
    judge_all(busy, Finding(check, "a rule", 1, 2))
    assert debts(busy, "a") == (owed, 0)
    assert busy.request(key_of("a"), "GET", "/v1/submissions/0/0").status_code == 200


def test_a_draw_whose_file_was_spoiled_comes_again_with_the_next_version(busy: World) -> None:
    """By the same version an honest machine's answers would be rejected again. Done then, nothing is owed."""
    first = busy.take("a")
    busy.hand_in("a", first)
    judge_all(busy, Finding(ROUNDING, "a rule", 1, 2))
    other = busy.take("a")
    assert draw_of(other) != draw_of(first)
    busy.hand_in("a", other)
    accept_all(busy)
    busy.announce(1)
    again = busy.take("a", version=1)
    assert draw_of(again) == draw_of(first)
    assert (again.version, again.draw_of) == (1, "0/0")
    assert busy.request(key_of("a"), "GET", "/v1/submissions/0/0").status_code == 200, "its verdict stays"
    busy.hand_in("a", again)
    accept_all(busy)
    assert debts(busy, "a") == (0, 0)
    assert draw_of(busy.take("a", version=1)) != draw_of(first)


def test_who_spoils_a_draw_again_gets_no_other(busy: World) -> None:
    """Of its network for a day, unless the network's work outweighs it: so nobody pays for a choice with one file."""
    stranger = Stranger(busy)
    stranger.join("a", HOME)
    first = stranger.lease("a", HOME)
    for version in range(2):
        hand_in(stranger, "a", first if version == 0 else stranger.lease("a", HOME))
        judge_all(busy, Finding(MARGIN, "a rule", 1, 2))
        busy.announce(version + 1)
    answer = stranger.ask(key_of("a"), HOME, "POST", "/v1/leases", {"version": 2})
    assert answer["lease"] is None
    assert "did not do 1 draws of the last 60.0 hours that were given to them again, and 0 may be" in answer["reason"]
    pass_time(busy, (KEPT_LEASES + 1) * 600)
    assert draw_of(stranger.lease("a", HOME)) != draw_of(first)


def test_a_draw_that_is_larger_than_what_its_step_takes_is_given_in_part(tmp_path: Path) -> None:
    """Otherwise a step would wait for its last groups for ever, if all who ask have a larger draw before them."""
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", train={"oversample": 1.25}) as world:
        world.announce()
        stranger = Stranger(world)
        stranger.join("a", HOME)
        stranger.join("b", ELSEWHERE)
        first = stranger.lease("a", HOME)
        pass_time(world, 601)
        for _ in range(2):
            hand_in(stranger, "b", stranger.lease("b", ELSEWHERE), ELSEWHERE, signal=0)
            accept_all(world)
        again = stranger.lease("a", HOME)
        assert draw_of(again) == draw_of(first)
        assert (first["groups"], again["groups"]) == (2, 1)


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


def test_a_network_with_more_undone_than_its_work_pays_for_gets_no_new_draw_for_a_day(tmp_path: Path) -> None:
    swarm, train = {"probation_files": 2}, {"groups_per_step": 40}
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", swarm=swarm, train=train) as world:
        world.announce()
        stranger = Stranger(world)
        proven = [f"key-{n}" for n in range(4)]
        for name in proven:
            stranger.join(name, HOME)
            hand_in(stranger, name, stranger.lease(name, HOME))
            accept_all(world)
        for name in proven[:3]:
            hand_in(stranger, name, stranger.lease(name, HOME))
            judge_all(world, Finding(MARGIN, "a rule", 1, 2))
        answer = stranger.ask(key_of(proven[3]), HOME, "POST", "/v1/leases", {"version": 0})
        assert answer["lease"] is None
        assert "have 3 draws of the last 60.0 hours undone, and 2 may be after 4 files" in answer["reason"]
        stranger.join("elsewhere", ELSEWHERE)
        assert stranger.lease("elsewhere", ELSEWHERE), "another network has nothing to do with it"
        assert FILES_PER_DRAW > 4
        pass_time(world, (KEPT_LEASES + 1) * 600)
        assert stranger.lease(proven[3], HOME)


def hand_in(stranger: Stranger, name: str, lease: dict[str, object], host: str = HOME, signal: object = None) -> None:
    claimed = lease["groups"] if signal is None else signal
    target = f"/v1/files/{lease['step']}/{lease['submission']}?signal={claimed}"
    stranger.ask(key_of(name), host, "PUT", target, data=good_file(Lease(**lease)))  # type: ignore[arg-type]


def accept_all(world: World) -> None:
    judge_all(world, None)


def judge_all(world: World, finding: Finding | None) -> None:
    for upload in world.validator.waiting(0, 20):
        _, sha256 = world.validator.read(upload)
        world.validator.judge(upload, Verdict(finding is None, sha256, True, finding, samples=8, tokens=64))
