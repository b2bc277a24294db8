"""The run's ledger: all is entered once, validators sign their own votes, and nobody rewrites what was signed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from shoal.client.challenge import Rulings, arbitrate, challenge
from shoal.client.voting import Juror
from shoal.coordinator import ledger_writer
from shoal.crypto.keys import Key
from shoal.errors import LedgerError, RolloutError
from shoal.ledger.acts import Deposit, Reveal
from shoal.ledger.chain import TamperedError
from shoal.ledger.entry import Entry, Statement
from shoal.ledger.store import SqliteLedger
from shoal.protocol.lease import Lease
from shoal.protocol.refusal import Refusal
from shoal.protocol.signed_lease import SignedLease
from shoal.protocol.verdict import Finding, Verdict
from shoal.rundir import RunDir
from shoal.validate.evidence.vote_log import Vote, Votes
from tests.support.coordinator_in_process import COORDINATOR, VALIDATOR, World, key_of, make_config, world_at
from tests.support.ledger_of_a_run import (
    BAD,
    EVIDENCE,
    STAKE,
    TOKENS,
    announce,
    cost,
    history,
    judge,
    keep,
    pay_in,
    speak,
    state,
    vote_on,
)


@pytest.fixture
def votes(tmp_path: Path) -> Votes:
    return Votes(tmp_path / "votes.jsonl")


@pytest.fixture
def juror(small_world: World, votes: Votes, tmp_path: Path) -> Juror:
    return Juror(small_world.validator._link, votes, tmp_path / "head.json")


def test_joining_enters_nothing(small_world: World) -> None:
    keep(small_world)
    before = small_world.ledger_writer.stored_lines(0, 1 << 20)
    small_world.store(key_of("a"))
    small_world.link(key_of("a")).join("worker")
    keep(small_world)
    assert small_world.ledger_writer.stored_lines(0, 1 << 20) == before
    assert state(small_world).brought_in == small_world.config.ledger.fund


def test_welcome_credits_come_once_with_the_first_accepted_file(small_world: World, votes: Votes, juror: Juror) -> None:
    for version in range(4):
        announce(small_world, version)
        small_world.hand_in("a", small_world.take("a", version))
        judge(small_world, votes)
        keep(small_world)
        juror.work()
    keep(small_world)
    found = history(small_world)
    account = found.accounts[key_of("a").address]
    assert account.accepted > 1
    assert (account.gift, account.stake) == (small_world.config.ledger.welcome, 0)
    assert found.brought_in == small_world.config.ledger.fund


def test_accepted_work_earns_and_a_rejected_file_costs(small_world: World, votes: Votes, juror: Juror) -> None:
    announce(small_world, 0)
    pay_in(small_world, "bad")
    small_world.hand_in("good", small_world.take("good"))
    judge(small_world, votes)
    small_world.hand_in("bad", small_world.take("bad"))
    judge(small_world, votes, accept=False)
    announce(small_world, 1)
    keep(small_world)
    assert not state(small_world).batches  # files for step 0 may still be judged
    announce(small_world, 2)
    keep(small_world)
    juror.work(last=True)
    keep(small_world)
    found = history(small_world)
    good, bad = (found.accounts[key_of(name).address] for name in ("good", "bad"))
    assert found.batches[0].outcomes == "ar"
    assert (good.tokens_accepted, good.earned_ever, good.lock.total) == (TOKENS, TOKENS, TOKENS)
    assert (bad.slashed, bad.offences, bad.earned_ever) == (cost(small_world), 1, 0)
    assert found.batches[0].reveals[VALIDATOR.address].evidence == (EVIDENCE,)
    with pytest.raises(Refusal, match="suspended on the ledger, after 1 bad files"):
        small_world.link(key_of("bad")).send("POST", "/v1/leases", {"version": 2})


def test_a_killed_coordinator_enters_everything_once(
    small_world: World, votes: Votes, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(small_world, 0)
    small_world.hand_in("a", small_world.take("a"))
    judge(small_world, votes)
    announce(small_world, 1)
    announce(small_world, 2)
    with monkeypatch.context() as patch:
        patch.setattr(ledger_writer, "told", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                keep(small_world)
    small_world.stop()
    small_world.start()
    keep(small_world)
    found = history(small_world)
    assert [len(batch.leaves) for batch in found.batches] == [1]


def test_a_step_that_is_trained_again_is_not_paid_for_twice(small_world: World, votes: Votes, juror: Juror) -> None:
    announce(small_world, 0)
    small_world.hand_in("a", small_world.take("a"))
    judge(small_world, votes)
    for number in (1, 2):
        announce(small_world, number)
    small_world.trainer._link.retract(after=0)
    small_world.hand_in("b", small_world.take("b"))
    judge(small_world, votes)
    for number in (1, 2, 3):
        announce(small_world, number)
    keep(small_world)
    juror.work()
    keep(small_world)
    juror.work()
    found = history(small_world)
    assert sorted(leaf.submission for batch in found.batches for leaf in batch.leaves) == [0, 1]
    assert {account.tokens_accepted for account in found.accounts.values() if account.submitted} == {TOKENS}


def test_what_the_trainer_turns_down_was_still_worked_for(small_world: World, votes: Votes, juror: Juror) -> None:
    announce(small_world, 0)
    lease = small_world.take("a")
    small_world.hand_in("a", lease)
    judge(small_world, votes)
    gone = Verdict(False, "", False, Finding("trainer", "weights are the version's", "a", "b"))
    (upload,) = small_world.trainer._filed(0, 3, accepted=True)
    sha256, _ = small_world.trainer._known[upload.step, upload.submission]
    small_world.trainer.judge(upload, replace(gone, sha256=sha256))
    for number in (1, 2):
        announce(small_world, number)
    keep(small_world)
    juror.work()
    keep(small_world)
    assert history(small_world).accounts[key_of("a").address].tokens_accepted == TOKENS


def test_a_validator_that_was_killed_votes_what_it_had_found(small_world: World, votes: Votes, tmp_path: Path) -> None:
    announce(small_world, 0)
    small_world.hand_in("a", small_world.take("a"))
    judge(small_world, votes)
    for number in (1, 2):
        announce(small_world, number)
    keep(small_world)
    with (tmp_path / "votes.jsonl").open("a") as file:
        file.write('{"step": 0, "subm')  # torn by the kill
    again = Juror(small_world.validator._link, Votes(tmp_path / "votes.jsonl"), tmp_path / "head.json")
    again.work()
    keep(small_world)
    assert history(small_world).batches[0].outcomes == "a"


def test_a_validator_votes_on_nothing_that_it_did_not_judge(small_world: World, votes: Votes, juror: Juror) -> None:
    announce(small_world, 0)
    lease = small_world.take("a")
    small_world.hand_in("a", lease)
    judge(small_world, votes)
    votes.note(lease.step, lease.submission, Vote("a", "00" * 32, TOKENS))  # it had other bytes before it
    for number in (1, 2):
        announce(small_world, number)
    keep(small_world)
    juror.work()
    keep(small_world)
    assert history(small_world).batches[0].outcomes == "v"


def test_a_rewritten_history_is_not_signed(small_world: World, votes: Votes, juror: Juror, tmp_path: Path) -> None:
    small_world.store(key_of("a"))
    keep(small_world)
    juror.work(last=True)
    small_world.stop()
    for file in small_world.path.glob("ledger.db*"):
        file.unlink()
    small_world.start()
    again = Juror(small_world.validator._link, votes, tmp_path / "head.json")
    with pytest.raises(LedgerError, match="if a new run was started, remove that file"):
        again.work()


def test_a_history_that_breaks_a_rule_is_not_followed(
    small_world: World, juror: Juror, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_world.store(key_of("a"))
    keep(small_world)
    real = type(small_world.ledger_writer).stored_lines

    def later(line: str) -> str:
        entry = Entry.from_line(json.loads(line))
        return json.dumps(entry.model_copy(update={"time": entry.time + 1}).to_line())

    monkeypatch.setattr(
        type(small_world.ledger_writer), "stored_lines", lambda *asked: [later(line) for line in real(*asked)]
    )
    with pytest.raises(TamperedError, match="does not have the hash"):
        juror.work()
    juror.prompt(0)
    assert juror._thread is not None
    juror._thread.join()
    with pytest.raises(TamperedError, match="does not have the hash"):
        juror.prompt(0)


def statement(world: World, key: Key, act: Deposit | Reveal) -> dict[str, object]:
    ledger = world.ledger_writer._ledger
    assert isinstance(ledger, SqliteLedger)
    name = ledger.name
    tree: dict[str, object] = Statement.sign(key, "test", name, act).model_dump(mode="json")
    return tree


def test_nobody_enters_what_is_not_theirs(small_world: World) -> None:
    key = key_of("a")
    small_world.store(key)
    keep(small_world)
    before = small_world.ledger_writer.stored_lines(0, 1 << 20)
    deposit = Deposit(id="mine", node=key.address, amount=10**9)
    forged = {**statement(small_world, key, deposit), "author": COORDINATOR.address}
    for body, reason in (
        (statement(small_world, key, deposit), "is not the coordinator"),
        (forged, "signed by 0x"),
        ({**statement(small_world, key, deposit), "ledger": "00" * 32}, "signed by 0x"),
    ):
        with pytest.raises(RolloutError, match=reason):
            small_world.link(key).send("POST", "/v1/ledger/statements", body)
    useless: list[dict[str, object]] = [{}, {"act": 7}, {**forged, "act": {"kind": "deposit"}}, {"x": [[[]]] * 100}]
    for rubbish in useless:
        with pytest.raises(Refusal):
            small_world.link(key).send("POST", "/v1/ledger/statements", rubbish)
    stranger = small_world.request(
        key_of("never"), "POST", "/v1/ledger/statements", statement(small_world, key, deposit)
    )
    assert stranger.status_code == 403
    assert small_world.ledger_writer.stored_lines(0, 1 << 20) == before


def test_challenges_are_entered_by_name_and_only_the_arbiter_rules(
    small_world: World, votes: Votes, juror: Juror, tmp_path: Path
) -> None:
    announce(small_world, 0)
    pay_in(small_world, "a")
    lease = small_world.take("a")
    data = small_world.hand_in("a", lease)
    judge(small_world, votes, accept=False)
    for number in (1, 2):
        announce(small_world, number)
    keep(small_world)
    juror.work()
    keep(small_world)
    name = f"{lease.step}/{lease.submission}"
    quiet = Console(quiet=True)
    run = RunDir(tmp_path / "run", small_world.config)
    seen: list[tuple[Lease, bytes]] = []

    def judge_file(path: Path, signed: SignedLease, _table_of: object) -> Finding | None:
        seen.append((signed.lease, path.read_bytes()))
        return None

    with pytest.raises(LedgerError, match="give accept or reject"):
        challenge(small_world.url, name, "maybe", None, key_of("a"), quiet)
    with pytest.raises(LedgerError, match="is not on the ledger yet"):
        challenge(small_world.url, "7/7", "accept", None, key_of("a"), quiet)
    challenge(small_world.url, name, "accept", None, key_of("a"), quiet)
    with pytest.raises(LedgerError, match="is not this run's arbiter"):
        arbitrate(small_world.url, run, key_of("a"), judge_file, quiet)
    other = make_config(sampling={"temperature": 0.5})
    with pytest.raises(LedgerError, match=r"sampling\.temperature: 0\.5 there, 1\.0 now"):
        arbitrate(small_world.url, RunDir(tmp_path / "run", other), COORDINATOR, judge_file, quiet)
    assert arbitrate(small_world.url, run, COORDINATOR, judge_file, quiet) == Rulings(upheld=1)
    assert seen == [(lease, data)], "what is judged is the file on the ledger, under the lease that was given"
    account = history(small_world).accounts[key_of("a").address]
    assert (account.stake, account.slashed, account.offences) == (STAKE, 0, 0)
    assert history(small_world).judges[VALIDATOR.address].refuted == 1


def test_only_those_who_judge_are_told_a_lease_again(small_world: World) -> None:
    announce(small_world, 0)
    lease = small_world.take("a")
    target = f"/v1/leases/{lease.step}/{lease.submission}"
    assert small_world.request(key_of("a"), "GET", target).status_code == 403
    assert small_world.request(COORDINATOR, "GET", "/v1/leases/0/99").status_code == 404
    signed = SignedLease.from_tree(small_world.request(COORDINATOR, "GET", target).json()["lease"])
    signed.check(COORDINATOR.address)
    assert (signed.lease, signed.versions) == (lease, {0: f"{0:064x}"})


def test_a_node_asks_what_it_has(small_world: World) -> None:
    small_world.store(key_of("a"))
    pay_in(small_world, "a")
    told = small_world.link(key_of("b")).get(f"/v1/ledger/nodes/{key_of('a').address}")
    assert (told["stake"], told["gift"], told["status"]) == (STAKE, 0, "active")
    with pytest.raises(Refusal, match="is not registered on the ledger"):
        small_world.link(key_of("b")).get(f"/v1/ledger/nodes/{key_of('c').address}")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[World]:
    """A run with three validators, of which two decide."""
    judges = [key_of(f"judge-{n}").address for n in range(3)]
    ledger = {"drawn": 3, "quorum": 2}
    database = f"sqlite:///{tmp_path / 'state.db'}"
    with world_at(tmp_path, database, judges, ledger=ledger) as world:
        yield world


def test_two_of_three_validators_decide_and_one_that_lies_does_not(three: World, tmp_path: Path) -> None:
    stores = [three.store(key_of(f"judge-{n}"), "validator") for n in range(3)]
    notes = [Votes(tmp_path / f"votes-{n}.jsonl") for n in range(3)]
    jurors = [
        Juror(s._link, v, tmp_path / f"head-{n}.json") for n, (s, v) in enumerate(zip(stores, notes, strict=True))
    ]
    announce(three, 0)
    three.hand_in("a", three.take("a"))
    for n, (store, own) in enumerate(zip(stores, notes, strict=True)):
        accept = n > 0  # the first one lies
        waiting = store.waiting(0, 3)
        assert len(waiting) == 1
        for upload in waiting:
            _, sha256 = store.read(upload)
            own.note(upload.step, upload.submission, vote_on(sha256, accept))
            verdict = Verdict(accept, sha256, True, None if accept else BAD, samples=8, tokens=TOKENS if accept else 0)
            store.judge(upload, verdict)
            assert store.waiting(0, 3) == []
    assert len(list(three.trainer.accepted(0))) == 1
    for number in (1, 2):
        announce(three, number)
    keep(three)
    speak(three, jurors)
    found = history(three)
    assert found.batches[0].outcomes == "a"
    assert len(found.batches[0].reveals) == 3
