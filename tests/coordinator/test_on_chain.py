"""A run whose ledger is a contract: the same acts, on a chain that may be away, slow or reorganised meanwhile."""

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from shoal.cli.ledger_views import export_ledger, show_earnings, show_ledger, show_node, verify_ledger
from shoal.client import ledger as client_ledger
from shoal.client.challenge import Rulings, arbitrate, challenge
from shoal.client.credits import teller
from shoal.client.gas import show_gas
from shoal.client.ledger import record_at
from shoal.client.ledger_access import Where
from shoal.client.run_status import _ledger_says
from shoal.client.voting import Juror
from shoal.coordinator import ledger_writer
from shoal.coordinator.ledger_writer import LedgerWriter
from shoal.coordinator.policy import Terms
from shoal.crypto.keys import Key
from shoal.errors import LedgerError
from shoal.ledger.contract_file import remembered
from shoal.ledger.evm import deployed
from shoal.ledger.evm.ledger import EvmLedger
from shoal.ledger.evm.rpc import ChainError, NoGasError
from shoal.ledger.interface import Standing
from shoal.ledger.reader import read_record
from shoal.ledger.state import State
from shoal.protocol.refusal import Refusal
from shoal.protocol.verdict import Verdict
from shoal.rundir import RunDir
from shoal.validate.evidence.vote_log import Vote, Votes
from tests.conftest import chain_or_skip
from tests.support.coordinator_in_process import COORDINATOR, VALIDATOR, World, key_of, make_config, world_at
from tests.support.ledger_of_a_run import EVIDENCE, STAKE, TOKENS, announce, cost, judge, keep, pay_in, speak
from tests.support.servers.anvil import Anvil, anvil

GOOD, BAD = key_of("good").address, key_of("bad").address


@pytest.fixture(scope="module")
def chain() -> Iterator[Anvil]:
    """A chain on which the coordinator has money, and nobody else."""
    with chain_or_skip() as chain:
        chain.enrich(COORDINATOR.address)
        yield chain


@pytest.fixture(autouse=True)
def _many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_writer, "MAX_STEPS", 100)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the chain is not to answer: less than the usual, more than a busy machine keeps an answer waiting."""
    monkeypatch.setattr(deployed, "WAIT_S", 6.0)


@pytest.fixture
def world(chain: Anvil, tmp_path: Path) -> Iterator[World]:
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", ledger={"rpc": chain.url}) as world:
        yield world


@pytest.fixture
def votes(tmp_path: Path) -> Votes:
    return Votes(tmp_path / "votes.jsonl")


@pytest.fixture
def juror(world: World, votes: Votes, tmp_path: Path) -> Juror:
    return Juror(world.validator._link, votes, tmp_path / "validator" / "head.json")


def contract(world: World) -> EvmLedger:
    """The contract as a stranger finds it."""
    known = remembered(world.path)
    assert known is not None
    return deployed.reading(known)


def folded(world: World) -> State:
    ledger = contract(world)
    ledger.check()
    return ledger.look(lambda state: state)


def standing(world: World, address: str) -> Standing:
    found = contract(world).node(address)
    assert found is not None
    return found


def work_on(world: World, votes: Votes, name: str, accept: bool = True) -> None:
    """Somebody hands a file in, and it is judged."""
    world.hand_in(name, world.take(name))
    judge(world, votes, accept)


def run_a_step(world: World, votes: Votes, juror: Juror) -> None:
    """Step 0, with a good file and a bad one, over for everybody."""
    announce(world, 0)
    pay_in(world, "bad")
    work_on(world, votes, "good")
    work_on(world, votes, "bad", accept=False)
    for number in (1, 2):
        announce(world, number)
    keep(world)
    juror.work()
    keep(world)


def said(show: Callable[[Console], None]) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    show(console)
    return console.export_text()


def test_the_cheater_is_slashed_on_the_chain_and_everybody_reads_the_same(
    world: World, votes: Votes, juror: Juror
) -> None:
    run_a_step(world, votes, juror)
    ledger = world.config.ledger
    assert (standing(world, BAD).stake, standing(world, BAD).status) == (STAKE - cost(world), "suspended")
    assert (standing(world, GOOD).locked, standing(world, GOOD).accepted) == (TOKENS, 1)
    with pytest.raises(Refusal, match="suspended on the ledger, after 1 bad files"):
        world.link(key_of("bad")).send("POST", "/v1/leases", {"version": 2})
    state = folded(world)
    assert state.batches[0].outcomes == "ar"
    assert state.batches[0].reveals[VALIDATOR.address].evidence == (EVIDENCE,)
    told = world.link(key_of("good")).card.run_config().ledger
    assert (told.rpc, told.contract, told.created) == (ledger.rpc, contract(world).address, contract(world).created)
    assert not (world.path / "ledger.db").exists()


def test_people_ask_the_contract_as_they_ask_a_file(world: World, votes: Votes, juror: Juror) -> None:
    run_a_step(world, votes, juror)
    for record in (read_record(world.path), record_at(world.url)):
        table = said(partial(show_earnings, record))
        assert f"{cost(world):,}" in table
        assert "suspended" in table
        assert "reveal batch=0 votes=ar" in said(partial(show_ledger, record, 20))
        assert "0/1 rejected" in said(partial(show_node, record, BAD))
    proof = said(partial(verify_ledger, world.path, COORDINATOR.address, None, None))
    assert "verified" in proof
    assert "the chain vouches for its heads" in proof
    with pytest.raises(LedgerError, match="read it from the chain"):
        export_ledger(world.path, world.path / "x.jsonl", Console(quiet=True))
    with pytest.raises(Refusal, match="this run's ledger is contract 0x"):
        world.link(key_of("good")).get("/v1/ledger/entries?first=0")


@pytest.mark.usefixtures("_impatient")
def test_a_chain_that_is_away_holds_up_nobody_and_misses_nothing(tmp_path: Path, votes: Votes) -> None:
    with anvil() as own, ExitStack() as stack:
        own.enrich(COORDINATOR.address)
        database = f"sqlite:///{tmp_path / 'state.db'}"
        world = stack.enter_context(world_at(tmp_path, database, ledger={"rpc": own.url}))
        juror = Juror(world.validator._link, votes, tmp_path / "validator" / "head.json")
        announce(world, 0)
        pay_in(world, "bad")
        work_on(world, votes, "good")
        keep(world)
        own.stop()
        work_on(world, votes, "bad", accept=False)
        for number in (1, 2):
            announce(world, number)
        work_on(world, votes, "late")  # never heard of on the chain yet, and gets a lease all the same
        with pytest.raises(ChainError, match="did not answer"):
            keep(world)
        world.stop()
        world.start()  # neither does the coordinator wait for it
        assert world.ledger_writer.standing(GOOD) is None
        work_on(world, votes, "later")
        for number in (3, 4):
            announce(world, number)
        with pytest.raises(ChainError):
            juror.work()
        own.start()
        keep(world)
        juror.work()
        keep(world)
        state = folded(world)
        assert [batch.outcomes for batch in state.batches] == ["ar", "", "aa"]
        assert state.accounts[BAD].slashed == cost(world)
        paid = [state.accounts[key_of(name).address].tokens_accepted for name in ("good", "late", "later")]
        assert paid == [TOKENS] * 3


@pytest.mark.usefixtures("_impatient")
def test_a_slow_chain_gets_everything_once(chain: Anvil, world: World, votes: Votes, juror: Juror) -> None:
    announce(world, 0)
    work_on(world, votes, "good")
    for number in (1, 2):
        announce(world, number)
    chain.ask("evm_setAutomine", False)
    try:
        for _ in range(2):
            with pytest.raises(ChainError, match="in no block"):
                keep(world)
        assert int(chain.ask("txpool_status")["pending"], 16) == 1  # the same bytes, not another transaction
    finally:
        chain.ask("evm_setAutomine", True)
        chain.ask("evm_mine")
    keep(world)
    juror.work()
    keep(world)
    state = folded(world)
    assert [batch.outcomes for batch in state.batches] == ["a"]
    assert state.brought_in == world.config.ledger.fund


def test_what_a_reorganisation_drops_is_entered_again_by_whoever_entered_it(
    chain: Anvil, world: World, votes: Votes, juror: Juror
) -> None:
    announce(world, 0)
    pay_in(world, "bad")
    work_on(world, votes, "good")
    keep(world)
    first = int(chain.ask("eth_blockNumber"), 16)
    work_on(world, votes, "bad", accept=False)
    for number in (1, 2):
        announce(world, number)
    keep(world)
    juror.work()
    keep(world)
    assert folded(world).batches[0].outcomes == "ar"
    chain.ask("anvil_reorg", int(chain.ask("eth_blockNumber"), 16) - first, [])
    chain.ask("anvil_mine", "0x2")
    assert folded(world).batches == []
    for _ in range(2):
        keep(world)
        juror.work()
    keep(world)
    assert folded(world).batches[0].outcomes == "ar"
    assert standing(world, BAD).offences == 1


def test_three_validators_commit_and_reveal_on_the_chain_with_gas_of_the_coordinator(
    chain: Anvil, tmp_path: Path
) -> None:
    keys = [key_of(f"judge-{n}") for n in range(3)]
    terms = {"rpc": chain.url, "drawn": 3, "quorum": 2}
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", [key.address for key in keys], ledger=terms) as world:
        notes = [Votes(tmp_path / f"votes-{n}.jsonl") for n in range(3)]
        links = [world.store(key, "validator")._link for key in keys]
        jurors = [Juror(link, notes[n], tmp_path / f"judge-{n}" / "head.json") for n, link in enumerate(links)]
        announce(world, 0)
        world.hand_in("good", world.take("good"))
        for key, own in zip(keys, notes, strict=True):
            judge_as(world, key, own)
        for number in (1, 2):
            announce(world, number)
        keep(world)
        speak(world, jurors)
        state = folded(world)
        assert state.batches[0].outcomes == "a"
        assert len(state.batches[0].reveals) == 3
        assert all(int(chain.ask("eth_getBalance", key.address, "latest"), 16) for key in keys)


def judge_as(world: World, key: Key, votes: Votes) -> None:
    store = world.store(key, "validator")
    for upload in store.waiting(0, 3):
        _, sha256 = store.read(upload)
        votes.note(upload.step, upload.submission, Vote("a", sha256, TOKENS))
        store.judge(upload, Verdict(True, sha256, True, None, samples=8, tokens=TOKENS))


def test_a_challenge_is_raised_and_ruled_on_by_transactions(
    chain: Anvil, world: World, votes: Votes, juror: Juror, tmp_path: Path
) -> None:
    run_a_step(world, votes, juror)
    bundle = tmp_path / "one.json"
    bundle.write_text("an accusation")
    run = RunDir(tmp_path / "run", world.config)
    with pytest.raises(NoGasError, match=r"has 0 wei on chain .* send it some"):
        challenge(world.url, "0/1", "accept", bundle, key_of("bad"), Console(quiet=True))
    chain.enrich(BAD)
    challenge(world.url, "0/1", "accept", bundle, key_of("bad"), Console(quiet=True))
    assert arbitrate(world.url, run, COORDINATOR, lambda *_: None, Console(quiet=True)) == Rulings(upheld=1)
    assert (standing(world, BAD).stake, standing(world, BAD).offences) == (STAKE, 0)
    assert folded(world).judges[VALIDATOR.address].refuted == 1


def test_a_validator_without_gas_goes_on_judging_and_votes_once_it_has_some(chain: Anvil, tmp_path: Path) -> None:
    key = key_of("poor")
    terms = {"rpc": chain.url, "gas": 0}
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", [key.address], ledger=terms) as world:
        own = Votes(tmp_path / "votes.jsonl")
        juror = Juror(world.store(key, "validator")._link, own, tmp_path / "poor" / "head.json")
        announce(world, 0)
        world.hand_in("good", world.take("good"))
        judge_as(world, key, own)
        for number in (1, 2):
            announce(world, number)
        keep(world)
        with pytest.raises(NoGasError, match="has 0 wei"):
            juror.work()
        juror.prompt(2)  # as the validator does, which has files to judge
        assert juror._thread is not None
        juror._thread.join()
        juror.prompt(3)
        juror._thread.join()
        chain.enrich(key.address)
        juror.work()
        keep(world)
        assert folded(world).batches[0].outcomes == "a"


def test_a_coordinator_without_gas_says_whom_to_give_it(chain: Anvil, tmp_path: Path) -> None:
    poor = key_of("poor coordinator")
    config = make_config(ledger={"rpc": chain.url})
    terms = Terms.of(config, "", frozenset([VALIDATOR.address]))
    with pytest.raises(NoGasError, match=r"(?i)" + poor.address + " has 0 wei"):
        LedgerWriter.open(tmp_path / "ledger.db", poor, config, terms)
    assert remembered(tmp_path) is None


def test_a_run_keeps_the_kind_of_ledger_that_it_began_with(chain: Anvil, world: World, tmp_path: Path) -> None:
    terms = Terms.of(world.config, "", frozenset([VALIDATOR.address]))
    with pytest.raises(LedgerError, match=r"set ledger\.rpc to a node of its chain"):
        LedgerWriter.open(world.path / "ledger.db", COORDINATOR, make_config(), terms)
    other = make_config(ledger={"rpc": chain.url, "contract": "0x" + "11" * 20, "created": "0x" + "11" * 32})
    with pytest.raises(LedgerError, match="its contract is 0x"):
        LedgerWriter.open(world.path / "ledger.db", COORDINATOR, other, terms)
    LedgerWriter.open(tmp_path / "file" / "ledger.db", COORDINATOR, make_config(), terms).close()
    with pytest.raises(LedgerError, match="begun with a ledger of its own"):
        LedgerWriter.open(tmp_path / "file" / "ledger.db", COORDINATOR, world.config, terms)
    foreign = make_config(
        ledger={"rpc": chain.url, "contract": contract(world).address, "created": contract(world).created}
    )
    with pytest.raises(LedgerError, match="who alone could enter work there"):
        LedgerWriter.open(tmp_path / "foreign" / "ledger.db", key_of("other"), foreign, terms)


def test_why_says_what_the_contract_has(world: World, votes: Votes, juror: Juror) -> None:
    run_a_step(world, votes, juror)
    lines = _ledger_says(world.path, 0, 1)
    assert any("said rejected" in line for line in lines)
    assert lines[-1] == "rejected"
    assert _ledger_says(world.path, 7, 7) == ["its step is not entered yet"]


def test_a_node_takes_out_what_the_contract_owes_it(chain: Anvil, world: World, votes: Votes, juror: Juror) -> None:
    run_a_step(world, votes, juror)
    chain.enrich(GOOD)

    def withdraw(console: Console) -> None:
        with teller(Where(join=world.url), key_of("good"), console) as own:
            own.withdraw()

    with pytest.raises(LedgerError, match="nothing can be paid out; 40 locked, 0 leaving"):
        withdraw(Console(quiet=True))
    for number in range(3, 3 + 2 * world.config.ledger.window):
        announce(world, number)
    keep(world)
    assert f"{TOKENS} wei paid out" in said(withdraw)
    assert folded(world).accounts[GOOD].paid == TOKENS


def test_gas_is_shown_and_given_on_a_development_chain(chain: Anvil, tmp_path: Path) -> None:
    config = make_config(ledger={"rpc": chain.url})
    assert said(partial(show_gas, config, tmp_path, False)).count(" 0 wei") == 2
    assert said(partial(show_gas, config, tmp_path, True)).count("100,000,000,000,000,000,000 wei") == 2
    with pytest.raises(LedgerError, match="needs no gas"):
        show_gas(make_config(), tmp_path, False, Console(quiet=True))


def test_a_node_of_the_chain_that_the_card_names_is_not_asked_if_it_lies_nearer_than_the_coordinator(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rpc = world.config.ledger.rpc
    monkeypatch.setattr(client_ledger, "distance_to", lambda url: 0 if url == rpc else 3)
    with pytest.raises(LedgerError, match="is nearer to this machine"):
        record_at(world.url)
    monkeypatch.setenv(deployed.OWN_RPC, f"{rpc}/")
    assert record_at(world.url).state.coordinator == COORDINATOR.address
