"""Planted samples in a run: a liar is found out, nobody can tell them apart, and nobody trains on what is bad."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.ledger_views import planters
from shoal.client.rollout_store import SwarmStore
from shoal.client.voting import Juror
from shoal.coordinator import ledger_writer
from shoal.coordinator.archive import handed_in
from shoal.coordinator.command import open_coordinator
from shoal.coordinator.honeypots import LIFE, MAX_KEYS, Plants
from shoal.crypto.keys import Key
from shoal.ledger.acts import NO_HASH
from shoal.ledger.export import read_file, verify_file
from shoal.ledger.state import State, in_standing
from shoal.protocol.verdict import Finding, Verdict
from shoal.rundir import RunDir, role_key
from shoal.validate.evidence.vote_log import Vote, Votes
from tests.protocol.test_rates_table import H100
from tests.support.coordinator_in_process import COORDINATOR, VALIDATOR, World, good_file, key_of, make_config, world_at
from tests.support.ledger_of_a_run import keep
from tests.support.submissions import ROOT

SECRET = key_of("planter")
PLANTS = Plants(SECRET, "test")
BAD = Finding("sampling", "tokens are the best", 5, 7, 0)
TOKENS = 40


class Judge:
    """A validator that knows planted files for what they are, as one does that computes them, or accepts everything."""

    def __init__(self, world: World, key: Key, *, lies: bool = False) -> None:
        self.world, self.key, self.lies = world, key, lies
        self.votes = Votes(world.path / f"votes-{key.address}.jsonl")
        self.store: SwarmStore = world.store(key, "validator")
        self.juror = Juror(self.store._link, self.votes, world.path / f"head-{key.address}.json")

    def judge(self, tokens: int = TOKENS) -> int:
        uploads = self.store.waiting(0, 99)
        for upload in uploads:
            _, sha256 = self.store.read(upload)
            accept = self.lies or PLANTS.letter_of(upload.node, upload.step, upload.submission) != "r"
            vote = Vote("a", sha256, tokens) if accept else Vote("r", sha256, 0, "ee" * 32)
            self.votes.note(upload.step, upload.submission, vote)
            finding = None if accept else BAD
            self.store.judge(upload, Verdict(accept, sha256, True, finding, samples=8, tokens=tokens if accept else 0))
        return len(uploads)


class Sower:
    """Hands in files as the planter does: an address until its planted file, then the next."""

    def __init__(self, world: World) -> None:
        self.world, self.number, self.bad = world, 0, list[tuple[int, int]]()

    def work(self, version: int) -> str:
        key = PLANTS.key(self.number)
        lease = self.world.store(key).lease(key.address, version)
        assert lease is not None
        self.world.store(key).put(lease, good_file(lease))
        letter = PLANTS.letter(lease.step, lease.submission)
        self.number += letter != "."
        if letter == "r":
            self.bad.append((lease.step, lease.submission))
        return letter

    def until(self, letter: str) -> int:
        """Works until it has handed in a file of this kind; the version that it is of."""
        for version in range(15):
            announce(self.world, version)
            if self.work(version) == letter:
                return version
        raise AssertionError(f"nothing was planted as {letter}")


def announce(world: World, number: int) -> None:
    world.trainer._link.announce(number, ROOT)


def history(world: World) -> State:
    return verify_file(world.path / "ledger.db", COORDINATOR.address).state


@contextmanager
def planted_world(path: Path, judges: int = 1, **changes: Any) -> Iterator[World]:
    addresses = [key_of(f"judge-{n}").address for n in range(judges)] if judges > 1 else [VALIDATOR.address]
    ledger = {"plants": 6, "drawn": judges, "quorum": judges // 2 + 1}
    path.mkdir(exist_ok=True)
    with world_at(path, f"sqlite:///{path / 'state.db'}", addresses, plants=PLANTS, ledger=ledger, **changes) as world:
        yield world


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[World]:
    with planted_world(tmp_path) as world:
        yield world


@pytest.fixture
def three(tmp_path: Path) -> Iterator[World]:
    with planted_world(tmp_path, judges=3, steps=60) as world:
        yield world


def settle(world: World, judges: list[Judge]) -> None:
    keep(world)
    for _ in range(2):  # commitments, then votes
        for judge in judges:
            judge.juror.work()
    keep(world)


def test_keys_and_letters_follow_from_the_secret_alone() -> None:
    again, other = Plants(SECRET, "test"), Plants(key_of("another"), "test")
    assert [again.key(n).address for n in range(9)] == [PLANTS.key(n).address for n in range(9)]
    assert len(PLANTS.addresses) == MAX_KEYS
    assert not PLANTS.addresses & {other.key(n).address for n in range(99)}
    assert not PLANTS.addresses & {Plants(SECRET, "elsewhere").key(n).address for n in range(99)}
    letters = "".join(PLANTS.letter(step, number) for step in range(50) for number in range(8))
    assert {"".join(sorted(letters[i : i + LIFE])) for i in range(0, len(letters), LIFE)} == {"..ar"}
    assert letters != "".join(other.letter(step, number) for step in range(50) for number in range(8))
    assert {PLANTS.letter_of(key_of("a").address, step, 0) for step in range(50)} == {"."}


def test_a_validator_that_accepts_everything_loses_its_standing_and_the_honest_ones_keep_theirs(three: World) -> None:
    judges = [Judge(three, key_of(f"judge-{n}"), lies=n == 0) for n in range(3)]
    sower, files, trained = Sower(three), 0, list[tuple[int, int]]()
    liar = judges[0].key.address
    for version in itertools.count():
        announce(three, version)
        three.hand_in("worker", three.take("worker", version))
        sower.work(version)
        files += 2
        for judge in judges[version % 3 :] + judges[: version % 3]:  # each is the last one now and then
            judge.judge()
        trained += [(s.lease.step, s.lease.submission) for n in range(3) for s in three.trainer.accepted(version + n)]
        settle(three, judges)
        if liar not in three.ledger_writer.look(in_standing):
            break
        assert files < 60
    found = history(three)
    assert [found.judges[judge.key.address].standing for judge in judges[1:]] == [100, 100]
    assert found.judges[liar].misjudged >= 3
    assert len(sower.bad) >= 3
    assert len(trained) > files / 2
    assert not set(trained) & set(sower.bad)
    letters = [
        (PLANTS.letter_of(leaf.node, batch.step, leaf.submission), outcome)
        for batch in found.batches
        for leaf, outcome in zip(batch.leaves, batch.outcomes, strict=False)
    ]
    assert set(letters) == {("a", "x"), ("r", "x"), (".", "a")}
    of_planters = sum(found.accounts[a].earned_ever for a in planters_of(three) if a in found.accounts)
    ordinary = sum(
        leaf.tokens
        for batch in found.batches
        for leaf, outcome in zip(batch.leaves, batch.outcomes, strict=False)
        if outcome == "a" and leaf.node in planters_of(three)
    )
    assert of_planters == ordinary
    assert planters_of(three) <= PLANTS.addresses


def planters_of(world: World) -> set[str]:
    return planters(history(world), (entry.statement.act for entry in read_file(world.path / "ledger.db")))


def test_what_is_known_to_be_bad_never_reaches_the_trainer_whoever_accepts_it(planted: World) -> None:
    liar, sower = Judge(planted, VALIDATOR, lies=True), Sower(planted)
    version = sower.until("r")
    (step, number) = sower.bad[-1]
    liar.judge()
    accepted = [(s.lease.step, s.lease.submission) for n in range(version + 3) for s in planted.trainer.accepted(n)]
    assert accepted
    assert (step, number) not in accepted
    assert (step, number) in [(u.step, u.submission) for u in liar.store._filed(0, 99, accepted=True)]
    for more in (version + 1, version + 2, version + 3):
        announce(planted, more)
    settle(planted, [liar])
    assert history(planted).judges[VALIDATOR.address].standing == 66


def test_the_record_of_a_file_says_whether_it_was_planted_and_what_its_node_declared(
    planted: World, tmp_path: Path
) -> None:
    sower, honest = Sower(planted), key_of("honest")
    sower.until("r")
    lease = planted.store(honest).lease(honest.address, sower.bad[-1][0])
    assert lease is not None
    planted.store(honest).put(lease, good_file(lease))
    planted.link(honest).join("worker", profile=H100)
    swarm = planted.config.swarm.model_copy(update={"database": planted.url_of_database})
    run = RunDir(tmp_path, planted.config.model_copy(update={"swarm": swarm}))
    bad, good = handed_in(run, *sower.bad[-1]), handed_in(run, lease.step, lease.submission)
    assert bad is not None
    assert good is not None
    assert (bad.planted, good.planted) == (True, False)
    assert (good.lease, good.profile) == (lease, H100)


def test_a_step_has_as_much_good_work_as_without_a_bad_file(tmp_path: Path) -> None:
    def groups(path: Path, *, known: bool) -> int:
        with planted_world(path) as world:
            world.coordinator._plants = plants if known else None
            announce(world, 0)
            key = plants.key(0)
            lease = world.store(key).lease(key.address, 0)
            assert lease is not None
            assert (lease.step, lease.submission) == (0, 0)
            world.store(key).put(lease, good_file(lease))
            return sum(one.groups for one in world.take_all() if one.step == 0)

    every = (Plants(key_of(f"planter {n}"), "test") for n in itertools.count())
    plants = next(one for one in every if one.letter(0, 0) == "r")
    alone = groups(tmp_path / "alone", known=False)
    assert groups(tmp_path / "known", known=True) == alone + 2


def test_nobody_can_tell_a_planted_file_from_another(tmp_path: Path) -> None:
    """The same work in a run whose coordinator knows nothing of a planter looks the same from the outside."""

    def seen(path: Path, *, known: bool) -> list[Any]:
        answers: list[Any] = []
        with planted_world(path) as world:
            world.coordinator._plants = PLANTS if known else None
            judge, sower = Judge(world, VALIDATOR, lies=True), Sower(world)
            version = sower.until("r")
            for _ in range(2):
                world.coordinator._seen = None  # the overview is half a second old otherwise
                answers += [plain(judge.store._link.get(t)) for t in (f"/v1/steps/{version}", "/v1/status")]
                answers += [plain(judge.store._link.get(f"/v1/submissions/{s}/{n}")) for s, n in sower.bad]
                for accepted in ("true", "false"):
                    target = f"/v1/files?first=0&last=99&accepted={accepted}&beyond=0&wait=0"
                    answers.append(plain(world.request(VALIDATOR, "GET", target).json()))
                judge.judge()
            answers.append(world.link(VALIDATOR).get("/v1/openapi.json"))
        return answers

    with_planter, without = seen(tmp_path / "with", known=True), seen(tmp_path / "without", known=False)
    assert with_planter == without
    assert "plant" not in str(with_planter)


def plain(tree: Any) -> Any:
    """An answer without times and draws, nor an order that follows from times."""
    if isinstance(tree, dict):
        drop = ("beacon", "deadline", "received", "judged", "seen_s", "sha256", "size", "latencies")
        return {key: plain(value) for key, value in tree.items() if key not in drop}
    return sorted((plain(item) for item in tree), key=repr) if isinstance(tree, list) else tree


def test_every_batch_commits_to_something_planted_or_not(planted: World) -> None:
    judge = Judge(planted, VALIDATOR)
    announce(planted, 0)
    planted.hand_in("a", planted.take("a"))
    judge.judge()
    for number in (1, 2):
        announce(planted, number)
    settle(planted, [judge])
    (batch,) = history(planted).batches
    assert batch.plants != NO_HASH
    assert batch.outcomes == "a"


@pytest.mark.parametrize("killed", ["noting", "after work"])
def test_a_coordinator_that_is_killed_opens_what_it_committed_to(
    planted: World, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    judge, sower = Judge(planted, VALIDATOR), Sower(planted)
    version = sower.until("r")
    judge.judge()
    for number in (version + 1, version + 2, version + 3):
        announce(planted, number)
    if killed == "noting":
        with monkeypatch.context() as patch:
            patch.setattr(ledger_writer, "told", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                keep(planted)
    else:
        keep(planted)
    planted.stop()
    planted.start()
    keep(planted)
    judge.juror.work()
    planted.stop()
    planted.start()
    settle(planted, [judge])
    found = history(planted)
    (step, _) = sower.bad[-1]
    assert "x" in found.batches[step].outcomes
    assert found.judges[VALIDATOR.address].standing == 100
    assert found.judges[VALIDATOR.address].misjudged == 0


def test_a_validator_that_was_away_is_not_taken_for_a_liar(three: World) -> None:
    judges = [Judge(three, key_of(f"judge-{n}")) for n in range(3)]
    sower = Sower(three)
    version = sower.until("a")
    for judge in judges[:2]:
        judge.judge()
    for number in (version + 1, version + 2, version + 3):
        announce(three, number)
    settle(three, judges)
    found = history(three)
    assert {judge.standing for judge in found.judges.values()} == {100}
    assert "x" not in "".join(batch.outcomes for batch in found.batches)


def test_a_file_waits_for_every_validator_although_two_have_decided(three: World) -> None:
    judges = [Judge(three, key_of(f"judge-{n}")) for n in range(3)]
    sower = Sower(three)
    sower.until("r")
    (step, number) = sower.bad[-1]
    count = judges[0].judge()
    assert judges[1].judge() == count
    place = f"/v1/files/{step}/{number}"
    assert three.request(judges[2].key, "GET", place).status_code == 200
    assert judges[2].judge() == count
    assert [judge.judge() for judge in judges] == [0, 0, 0]


def test_one_that_miscounts_the_tokens_of_a_file_does_not_decide_what_they_are(three: World) -> None:
    judges = [Judge(three, key_of(f"judge-{n}")) for n in range(3)]
    announce(three, 0)
    three.hand_in("a", three.take("a"))
    judges[0].judge(tokens=TOKENS)
    judges[1].judge(tokens=TOKENS + 1)
    assert list(three.trainer.accepted(0)) == []
    judges[2].judge(tokens=TOKENS)
    assert len(list(three.trainer.accepted(0))) == 1
    for number in (1, 2):
        announce(three, number)
    settle(three, judges)
    assert history(three).accounts[key_of("a").address].tokens_accepted == TOKENS


def test_a_planter_may_join_where_only_some_may(tmp_path: Path) -> None:
    config = make_config(swarm={"allow": [key_of("friend").address]}, ledger={"plants": 6})
    with ExitStack() as stack:
        coordinator, database = open_coordinator(config, tmp_path)
        stack.callback(database.close)
        stack.callback(coordinator.ledger_writer.close)
        allowed = coordinator.terms.allow
    assert allowed is not None
    assert Plants(role_key(tmp_path, "planter"), config.name).key(7).address in allowed
    assert key_of("stranger").address not in allowed
