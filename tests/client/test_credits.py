"""`shoal ledger stake, deposit, unbond, withdraw, advance, close, refund`, with a coordinator and after it is gone."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.client.voting import Juror
from shoal.coordinator import ledger_writer
from shoal.crypto.keys import checksummed
from shoal.ledger.contract_file import remembered
from shoal.ledger.evm import deployed
from shoal.rundir import write_run_file
from shoal.validate.evidence.vote_log import Votes
from tests.conftest import chain_or_skip
from tests.support.command import shoal
from tests.support.coordinator_in_process import COORDINATOR, World, key_of, world_at
from tests.support.ledger_of_a_run import TOKENS, announce, judge, keep, state
from tests.support.servers.anvil import Anvil

GOOD = key_of("good").address
STALL_S = 3600


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A machine whose key is the node's."""
    path = tmp_path / "home"
    for name, key in (("node", key_of("good")), ("coordinator", COORDINATOR)):
        key.save(path / "shoal" / f"{name}.key")
    return path


def said(home: Path, *arguments: str) -> str:
    done = shoal(home, "ledger", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(home: Path, *arguments: str) -> str:
    done = shoal(home, "ledger", *arguments)
    assert done.returncode == 3
    return done.stderr


def work(world: World, votes: Votes, version: int) -> None:
    """A file of the node's, accepted, and its step over."""
    world.hand_in("good", world.take("good", version))
    judge(world, votes)
    for number in (version + 1, version + 2):
        announce(world, number)
    keep(world)


def test_a_node_stakes_what_it_earned_and_takes_it_out_again(tmp_path: Path, home: Path) -> None:
    terms = {"window": 1, "patience": 1, "stake_per_lease": 10}
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", ledger=terms) as world:
        votes = Votes(tmp_path / "votes.jsonl")
        juror = Juror(world.validator._link, votes, tmp_path / "head.json")
        join = ("--join", world.url)
        announce(world, 0)
        assert "has not joined this run; join first" in refused(home, "withdraw", *join)
        world.store(key_of("good"))
        assert "has no account" in refused(home, "withdraw", *join)
        work(world, votes, 0)
        juror.work()
        keep(world)
        done = shoal(home, "ledger", "stake", "15", *join)
        assert f"locked {TOKENS} credits, until step 2" in done.stdout
        assert "15 of 0 earned and unlocked" in done.stderr
        for number in (3, 4):
            announce(world, number)
        keep(world)
        assert "15 of 40" not in (told := said(home, "stake", "15", *join))
        assert "staked 15 credits" in told
        assert "stake 15 credits, and with it may hold 2 leases" in told
        assert "earned 25 credits, which can be withdrawn or staked now" in told
        assert "the clock is at step 2; the coordinator moves it\n" in told
        assert "60 of a stake of 15; give 1..15" in refused(home, "unbond", "60", *join)
        assert "unbonded 15 credits" in (told := said(home, "unbond", *join))
        assert "leaving 15 credits, until step 6; it can be slashed till then" in told
        assert "has no stake to release" in refused(home, "unbond", *join)
        assert f"25 credits paid out to {checksummed(GOOD)}, by the run's owner" in said(home, "withdraw", *join)
        for number in range(5, 9):
            announce(world, number)
        keep(world)
        assert "15 credits paid out" in said(home, "withdraw", *join)
        assert state(world).accounts[GOOD].paid == TOKENS
        assert "only the coordinator advances the clock of a ledger that is a file" in refused(home, "advance", *join)
        assert "only the coordinator closes a ledger" in refused(home, "close", *join)


def test_what_was_paid_in_to_a_file_is_the_coordinators_to_say(small_world: World, home: Path) -> None:
    join = ("--join", small_world.url)
    why = refused(home, "deposit", "500", *join)
    assert f"only the coordinator {checksummed(COORDINATOR.address)} says what was paid in" in why
    assert f"deposit 500 --node {checksummed(GOOD)} --join URL --key RUN/keys/coordinator.key" in why
    owner = (*join, "--key", str(home / "shoal" / "coordinator.key"), "--node", GOOD)
    for _ in range(2):
        told = said(home, "deposit", "500", *owner)
        assert f"deposited 500 credits as stake of {checksummed(GOOD)}" in told
    assert "stake 1,000 credits" in told
    assert state(small_world).accounts[GOOD].stake == 1000
    assert "no ledger holds so much" in refused(home, "deposit", str(1 << 112), *owner)


def test_a_ledger_that_is_not_named_rightly_is_told_how(small_world: World, home: Path, tmp_path: Path) -> None:
    assert "Give --join URL, or where its coordinator is gone, --run DIR" in refused(home, "withdraw")
    assert "leave out --run" in refused(home, "withdraw", "--join", small_world.url, "--run", "x")
    assert "no such directory" in refused(home, "withdraw", "--run", str(tmp_path / "none"))
    assert "names no contract. A ledger that is a file is its coordinator's" in refused(
        home, "withdraw", "--run", str(small_world.path)
    )
    assert "give all of --rpc, --contract and" in refused(home, "close", "--run", "test", "--contract", "0x1")
    place = ("--run", "test", "--rpc", "http://127.0.0.1:1", "--contract", "0x1", "--created", "0x2")
    assert "--contract 0x1: String should match" in refused(home, "close", *place)


@pytest.fixture(scope="module")
def chain() -> Iterator[Anvil]:
    with chain_or_skip() as chain:
        for key in (COORDINATOR, key_of("good")):
            chain.enrich(key.address)
        yield chain


def test_a_node_gets_all_its_money_out_after_the_coordinator_is_gone(
    chain: Anvil, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_writer, "MAX_STEPS", 100)
    terms = {"rpc": chain.url, "window": 1, "patience": 1, "stall": STALL_S}
    with world_at(tmp_path / "run", f"sqlite:///{tmp_path / 'state.db'}", ledger=terms) as world:
        votes = Votes(tmp_path / "votes.jsonl")
        juror = Juror(world.validator._link, votes, tmp_path / "validator" / "head.json")
        announce(world, 0)
        work(world, votes, 0)
        juror.work()
        keep(world)
        work(world, votes, 2)
        told = said(home, "deposit", "5000", "--join", world.url)
        assert "stake 5,000 wei" in told
        config = world.link(key_of("good")).card.run_config()
        world.stop()
        juror.work()  # nobody settles that
    write_run_file(tmp_path / "joined", config, time.time())
    known = remembered(tmp_path / "run")
    assert known is not None
    by_hand = ("--run", "test", "--rpc", chain.url, "--contract", known.contract, "--created", known.created)
    joined = ("--run", str(tmp_path / "joined"))
    monkeypatch.setattr("shoal.client.ledger_access.ASK_S", 0.5)
    assert "A contract can be used without its coordinator: in place of --join, give --run DIR" in refused(
        home, "withdraw", "--join", world.url
    )
    assert (
        f"is near this machine and is not asked on a stranger's word; if this is intended, give --rpc {chain.url}"
        in (refused(home, "unbond", *joined))
    )
    assert "leaving 5,000 wei, until step 6" in said(home, "unbond", *joined, "--rpc", chain.url)
    early = shoal(home, "ledger", "advance", *by_hand)
    assert early.returncode == 3
    late = r"anyone may advance the clock once it has stood still for 3,600 s; try again in 3,[56]\d\d s"
    assert re.search(late, early.stderr), early.stderr
    assert "settled batch 2" in early.stdout
    early_close = refused(home, "close", *by_hand)
    assert "anybody after it was silent for 4 steps; it was for 0" in early_close
    for step in range(3, 7):
        chain.ask("evm_increaseTime", STALL_S)
        chain.ask("evm_mine")
        assert f"moved the clock to step {step}" in said(home, "advance", *by_hand)
    closed = said(home, "close", "--run", str(tmp_path / "run"))
    assert "the ledger is closed: it is over at step 9" in closed
    assert re.search(r"the clock is at step 6; the coordinator moves it, and anybody may in 3,[56]\d\d s", closed)
    assert f"{5000 + 2 * TOKENS:,} wei paid out" in said(home, "withdraw", *by_hand)
    own = deployed.reading(known)
    own.check()
    found = own.node(GOOD)
    assert found is not None
    assert (found.stake, found.leaving, found.locked, found.earned) == (0, 0, 0, 0)
    owner = ("--run", str(tmp_path / "run"), "--key", str(home / "shoal" / "coordinator.key"))
    assert "the treasury still pays for work" in refused(home, "refund", *owner)
    for _ in range(3):
        chain.ask("evm_increaseTime", STALL_S)
        chain.ask("evm_mine")
        said(home, "advance", *by_hand)
    assert "of the treasury refunded" in said(home, "refund", *owner)
