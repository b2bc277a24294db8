"""Work that was accepted is paid, whatever becomes of the ledger, and no validator alone decides on anybody."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from shoal.client.credits import teller
from shoal.client.ledger import access
from shoal.client.ledger_access import Where
from shoal.client.rollout_store import SwarmStore
from shoal.client.voting import Juror
from shoal.config import PLANTS
from shoal.coordinator.command import open_coordinator
from shoal.coordinator.outbox import remember_end
from shoal.coordinator.vote_deadline import Patience
from shoal.errors import AwayError, BannedError, ConfigError
from shoal.ledger.acts import Deposit, Unbond
from shoal.ledger.state import State
from shoal.protocol.verdict import Finding, Verdict
from shoal.validate.evidence.vote_log import Vote, Votes
from tests.support.coordinator_in_process import COORDINATOR, VALIDATOR, World, key_of, make_config, world_at
from tests.support.ledger_of_a_run import announce, history, keep

BAD = Finding("sampling", "tokens are the best", 5, 7, 0)
TOKENS = 40
JUDGES = [key_of(f"judge-{n}") for n in range(3)]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for files that do not come."""
    monkeypatch.setattr("shoal.client.rollout_store.LONG_POLL_S", 0.02)


class Judge:
    """A validator: notes what it finds, says it to the coordinator, and votes on the ledger."""

    def __init__(self, world: World, number: int | None = None) -> None:
        self.key = VALIDATOR if number is None else JUDGES[number]
        self.store: SwarmStore = world.store(self.key, "validator")
        self.votes = Votes(world.path / f"votes-{self.key.address}.jsonl")
        self.juror = Juror(self.store._link, self.votes, world.path / f"head-{self.key.address}.json")

    def judge(self, first: int = 0, accept: bool = True) -> int:
        uploads = self.store.waiting(first, 99)
        for upload in uploads:
            _, sha256 = self.store.read(upload)
            vote = Vote("a", sha256, TOKENS) if accept else Vote("r", sha256, 0, "ee" * 32)
            self.votes.note(upload.step, upload.submission, vote)
            tokens = TOKENS if accept else 0
            self.store.judge(upload, Verdict(accept, sha256, True, None if accept else BAD, samples=8, tokens=tokens))
        return len(uploads)


@contextmanager
def several(path: Path, count: int, steps: int = 20, **ledger: int) -> Iterator[tuple[World, list[Judge]]]:
    addresses = [key.address for key in JUDGES[:count]] if count > 1 else [VALIDATOR.address]
    path.mkdir(exist_ok=True)
    with world_at(path, f"sqlite:///{path / 'state.db'}", addresses, steps=steps, ledger=ledger) as world:
        yield world, [Judge(world, n if count > 1 else None) for n in range(count)]


def outcomes(state: State) -> list[str]:
    return [batch.outcomes for batch in state.batches if batch.leaves]


def hand_in(world: World, version: int, judges: list[Judge]) -> None:
    announce(world, version)
    world.hand_in("worker", world.take("worker", version))
    for judge in judges:
        judge.judge()


def catch_up(world: World, judges: list[Judge], rounds: int) -> None:
    """The coordinator tells the ledger every second, validators look at it now and then."""
    for _ in range(rounds):
        keep(world)
        for judge in judges:
            judge.juror.work()
    keep(world)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_outage_of_the_ledger_never_leaves_accepted_work_unpaid(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = {} if count == 1 else {"drawn": count, "quorum": 2}
    with several(tmp_path, count, **terms) as (world, judges):
        with monkeypatch.context() as away:
            away.setattr(world.ledger_writer._ledger, "catch_up", _raise(AwayError("no node of the chain answers")))
            for version in range(12):
                hand_in(world, version, judges)
                with pytest.raises(AwayError):
                    keep(world)
        catch_up(world, judges, 24)
        found = history(world)
        paid = "".join(outcomes(found))
        assert set(paid) == {"a"}
        assert found.accounts[key_of("worker").address].tokens_accepted == len(paid) * TOKENS > 6 * TOKENS
        assert found.clock == 9
        assert {judge.standing for judge in found.judges.values()} == {100}


def _raise(error: Exception) -> object:
    def fail() -> None:
        raise error

    return fail


def test_two_validators_never_leave_accepted_work_unpaid(tmp_path: Path) -> None:
    """One of them is always too late to have judged a file before its step is over."""
    with several(tmp_path, 3, drawn=3, quorum=2) as (world, judges):
        late = judges[2]
        for version in range(6):
            hand_in(world, version, judges[:2])
            keep(world)
            for judge in judges:
                judge.juror.work()
            for step, submission in sorted(late.juror.owed):
                assert (step, submission) in {(u.step, u.submission) for u in late.store.waiting(step, step)}
            if late.juror.owed:
                late.judge(min(step for step, _ in late.juror.owed))
        catch_up(world, judges, 4)
        found = history(world)
        assert set("".join(outcomes(found))) == {"a"}
        assert {reveal.votes for batch in found.batches for reveal in batch.reveals.values()} == {"a"}
        assert {judge.standing for judge in found.judges.values()} == {100}


def test_bytes_are_never_removed_while_a_drawn_validator_is_yet_to_judge_them(tmp_path: Path) -> None:
    with several(tmp_path, 3, drawn=3, quorum=2) as (world, judges):
        for version in range(3):
            hand_in(world, version, judges[:2])
        world.trainer.forget(before=2)
        keep(world)
        judges[2].juror.work()
        assert judges[2].juror.owed
        assert judges[2].judge() > 0
        catch_up(world, judges, 4)
        world.trainer.forget(before=2)
        assert not judges[2].store._filed(0, 0, accepted=True)
        assert set("".join(outcomes(history(world)))) == {"a"}


def test_a_validator_that_never_speaks_cannot_stop_the_ledger(tmp_path: Path) -> None:
    now = 0.0
    with several(tmp_path, 3, drawn=3, quorum=2) as (world, judges):
        world.ledger_writer._patience = Patience(world.config.patience_s, lambda: now)
        for version in range(9):
            hand_in(world, version, judges)
        catch_up(world, judges[:2], 3)
        stuck = len(history(world).batches)
        assert stuck < 7
        for _ in range(12):
            now += world.config.patience_s
            catch_up(world, judges[:2], 1)
        found = history(world)
        assert len(found.batches) == 7
        assert set("".join(outcomes(found))) == {"a"}
        assert found.judges[judges[2].key.address].standing < 100
        assert found.judges[judges[0].key.address].standing == 100


def test_several_validators_are_never_run_so_that_the_fastest_decides() -> None:
    two = [key.address for key in JUDGES[:2]]
    with pytest.raises(ConfigError, match=r"ledger.quorum = 2 and ledger.drawn = 2"):
        make_config(swarm={"validators": two})
    with pytest.raises(ConfigError, match=r"swarm.validators names 2, so nothing would ever be decided"):
        make_config(swarm={"validators": two}, ledger={"quorum": 3, "drawn": 3})
    assert make_config(swarm={"validators": two}, ledger={"quorum": 2, "drawn": 2})


def test_one_validator_of_three_cannot_ban_a_node(tmp_path: Path) -> None:
    with several(tmp_path, 3, drawn=3, quorum=2) as (world, judges):
        announce(world, 0)
        world.hand_in("worker", world.take("worker"))
        victim = key_of("worker").address
        for _ in range(3):
            judges[0].store.ban(victim, "because I can")
        assert world.link(key_of("worker")).heartbeat()["do"] == "work"
        assert world.take("worker")
        world.stop()
        world.start()
        judges[1].store.ban(victim, "2 files rejected")  # what the first one asked for was kept
        with pytest.raises(BannedError, match="2 files rejected"):
            world.lease("worker")


def test_a_validator_that_accepts_without_looking_never_decides_alone(tmp_path: Path) -> None:
    with several(tmp_path, 3, drawn=3, quorum=2) as (world, judges):
        announce(world, 0)
        world.hand_in("worker", world.take("worker"))
        judges[0].judge()
        assert not list(world.trainer.accepted(0))
        judges[1].judge(accept=False)
        judges[2].judge(accept=False)
        assert not list(world.trainer.accepted(0))


def test_validators_that_are_not_the_owners_are_never_left_unwatched() -> None:
    two = [key.address for key in JUDGES[:2]]
    assert make_config().ledger.plants == 0
    assert make_config(swarm={"validators": two}, ledger={"quorum": 2, "drawn": 2}).ledger.plants == PLANTS
    assert make_config(swarm={"validators": two}, ledger={"quorum": 2, "drawn": 2, "plants": 0}).ledger.plants == 0


def test_a_short_run_never_keeps_anybodys_credits(tmp_path: Path) -> None:
    """Three steps are fewer than any window has."""
    worker, staked = key_of("worker"), 5000
    with several(tmp_path, 1, steps=3) as (world, judges):
        deposit = Deposit(id="paid-in", node=worker.address, amount=staked)
        world.ledger_writer._ledger.enter(COORDINATOR, deposit)
        for version in range(3):
            hand_in(world, version, judges)
        announce(world, 3)
        ledger = access(world.store(worker)._link)
        ledger.say(Unbond(id="all", amount=staked))  # at the last moment
        keep(world)
        assert judges[0].juror.finish(lambda: None, lambda _text: None)
        keep(world)
        for key in (worker, VALIDATOR):
            with teller(Where(join=world.url), key, Console(quiet=True)) as own:
                own.withdraw()
        found = history(world)
        paid = {address: account.paid for address, account in found.accounts.items()}
        assert paid[worker.address] == staked + 3 * TOKENS
        assert paid[VALIDATOR.address] == 3 * world.config.ledger.judge_pay
        assert found.total() == found.treasury == 0
        assert found.brought_in == found.paid_out


def test_a_run_whose_ledger_is_closed_never_goes_on_unpaid(tmp_path: Path) -> None:
    config = make_config(steps=3)
    coordinator, database = open_coordinator(config, tmp_path)
    with closing(coordinator.ledger_writer), closing(database):
        database.ask(lambda db: remember_end(db, 3))
    with pytest.raises(ConfigError, match="it was over after 3 and its ledger is closed"):
        open_coordinator(make_config(steps=4), tmp_path)


def test_a_node_that_was_banned_is_never_kept_from_what_it_had_earned(tmp_path: Path) -> None:
    worker = key_of("worker")
    with several(tmp_path, 1, steps=3) as (world, judges):
        for version in range(3):
            hand_in(world, version, judges)
        judges[0].store.ban(worker.address, "2 files rejected")
        announce(world, 3)
        keep(world)
        assert judges[0].juror.finish(lambda: None, lambda _text: None)
        keep(world)
        with pytest.raises(BannedError):
            world.lease("worker")
        with teller(Where(join=world.url), worker, Console(quiet=True)) as own:
            own.withdraw()
        assert history(world).accounts[worker.address].paid == 3 * TOKENS
