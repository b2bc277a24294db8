"""What a chain and its nodes can do to a ledger: restart, reorganise, answer late, refuse in the block."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from urllib.request import Request, urlopen

import pytest

from shoal.crypto.keys import Key
from shoal.errors import LedgerError
from shoal.ledger.acts import Advance, Fund, Head, Open, Register, Settle
from shoal.ledger.evm.ledger import EvmLedger
from shoal.ledger.evm.rpc import Chain
from shoal.ledger.interface import Ledger, totals_of
from shoal.ledger.refusal import Refused
from shoal.ledger.rules import apply, opened
from shoal.ledger.state import State, holdings, leases, status
from tests.support.ledgers import (
    COORDINATOR,
    NODES,
    RUN,
    STRANGER,
    VALIDATORS,
    Court,
    evm_ledger,
    leaf,
    make_terms,
    refusal,
)
from tests.support.servers.anvil import Anvil, anvil

from .moves import Move, act_of


def balance(chain: Anvil, ledger: EvmLedger) -> int:
    return int(chain.ask("eth_getBalance", ledger.address, "latest"), 16)


@pytest.mark.parametrize("seed", range(4))
def test_the_contract_does_what_the_rules_say_on_random_histories(chain: Anvil, tmp_path: Path, seed: int) -> None:
    terms = {"rate": 3, "judge_pay": 5, "slash_files": 2, "stall": 1000}
    ledger = evm_ledger(chain, tmp_path, **terms)
    state = opened(RUN, COORDINATOR.address, Open(terms=make_terms(**terms)), on_chain=True)
    rng = Random(seed)
    moves: list[Move] = [(2, node, node, 1999) for node in range(3)] + [(0, 0, 1, 0), (1, 0, 60_000, 0)]
    some = (1 << 16) - 1

    def moves_of(kinds: Sequence[int], count: int) -> list[Move]:
        draws = ([rng.randint(0, some) for _ in range(3)] for _ in range(count))
        return [(rng.choice(kinds), a, b, c) for a, b, c in draws]

    moves += moves_of(range(17), 60)
    moves += [(17, 0, 1, 0), (17, 0, 0, 0)]  # a node may not close it, the coordinator may
    moves += moves_of([3, 4, 12, 16, 16, 16, 18], 40)
    entered = 0
    for move in moves:
        author, act = act_of(state, move)
        if isinstance(act, Advance):
            chain.ask("evm_increaseTime", 1000)
            chain.ask("evm_mine")
        again = (author.address, act.name) in state.entered
        try:
            apply(state, author.address, act)
            expected = ""
        except Refused as error:
            expected = error.code
        try:
            found = "" if ledger.enter(author, act) else "taken"
        except Refused as error:
            found = error.code
        assert found == expected or (again and found == "taken"), (act, expected, found)
        entered += expected == ""
    assert entered > 15
    compare(state, ledger)
    ledger.check()  # what its log adds up to, for a reader who has nothing else, is the same
    assert balance(chain, ledger) == state.total() == state.brought_in - state.paid_out


def compare(state: State, ledger: Ledger) -> None:
    for address, account in state.accounts.items():
        found, has = ledger.node(address), holdings(state, account)
        assert found is not None
        assert (found.stake, found.gift, found.leaving, found.locked, found.earned) == (
            has.stake,
            has.gift,
            has.leaving,
            has.locked,
            has.earned,
        )
        assert (found.accepted, found.offences) == (account.accepted, account.offences)
        assert (found.leases, found.status) == (leases(state, account), status(state, account))
    for address, judge in state.judges.items():
        assert ledger.judge(address) == judge.standing
    for batch in state.batches:
        assert (ledger.jury(batch.number), ledger.outcomes(batch.number)) == (batch.jury, batch.outcomes)
    assert ledger.totals() == totals_of(state)


def test_256_submissions_are_one_root_and_each_is_judged(chain: Anvil, tmp_path: Path) -> None:
    ledger = evm_ledger(chain, tmp_path)
    court = Court(ledger)
    court.begin(treasury=10**6)
    votes = "".join("r" if i == 255 else "v" if i % 50 == 7 else "a" for i in range(256))
    batch = court.judged([leaf(i, NODES[i % 2] if i < 255 else NODES[2]) for i in range(256)], votes)
    assert ledger.outcomes(batch) == votes
    assert court.node(NODES[0].address).accepted == 128
    assert court.node(NODES[2].address).offences == 1


def test_a_reorganisation_that_drops_entries_is_noticed_and_they_are_entered_again(
    chain: Anvil, tmp_path: Path
) -> None:
    ledger = evm_ledger(chain, tmp_path)
    court = Court(ledger)
    court.begin()
    first = int(chain.ask("eth_blockNumber"), 16)
    batch = court.judged([leaf(0)], "a")
    before = (ledger.node(NODES[0].address), ledger.totals())
    chain.ask("anvil_reorg", int(chain.ask("eth_blockNumber"), 16) - first, [])
    chain.ask("anvil_mine", "0x8")
    assert ledger.outcomes(batch) == ""
    assert ledger.chain.tend() >= 7  # of the eight, all that were in the dropped blocks
    assert (ledger.node(NODES[0].address), ledger.totals()) == before
    assert ledger.outcomes(batch) == "a"
    assert ledger.chain.tend() == 0


def test_another_process_goes_on_where_one_was_killed_even_after_a_reorganisation(chain: Anvil, tmp_path: Path) -> None:
    ledger = evm_ledger(chain, tmp_path)
    court = Court(ledger)
    court.begin()
    batch = court.work(leaf(0))
    first = int(chain.ask("eth_blockNumber"), 16)
    court.vote(batch, "a")
    chain.ask("anvil_reorg", int(chain.ask("eth_blockNumber"), 16) - first, [])
    again = EvmLedger.at(Chain(chain.url, tmp_path / "sent.json"), ledger.address, ledger.created, RUN)
    assert not again.enter(COORDINATOR, Fund(id="budget", amount=100_000))
    assert again.enter(COORDINATOR, Settle(batch=batch))
    assert again.outcomes(batch) == "a"


def test_a_restarted_node_is_waited_for(tmp_path: Path) -> None:
    with anvil() as own:
        for key in (COORDINATOR, *NODES):
            own.enrich(key.address)
        ledger = evm_ledger(own, tmp_path)
        ledger.enter(COORDINATOR, Register(node=NODES[0].address))
        own.stop()
        timer = threading.Timer(0.5, own.start)
        timer.start()
        assert ledger.enter(COORDINATOR, Register(node=NODES[1].address))
        timer.join()
        assert ledger.node(NODES[0].address) is not None
        assert not ledger.enter(COORDINATOR, Register(node=NODES[0].address))


@contextmanager
def slow_node(chain: Anvil, late_s: float) -> Iterator[str]:
    """A node that takes transactions and, for the first three, says so only after a while."""
    late = iter(range(3))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with urlopen(Request(chain.url, body, {"Content-Type": "application/json"})) as answer:
                data = answer.read()
            if json.loads(body)["method"] == "eth_sendRawTransaction" and next(late, None) is not None:
                time.sleep(late_s)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Who asked has gone, which is what this is for."""

    server = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_node_that_answers_late_makes_nothing_happen_twice(chain: Anvil, tmp_path: Path) -> None:
    ledger = evm_ledger(chain, tmp_path)
    with slow_node(chain, late_s=1.0) as url:
        rpc = Chain(url, tmp_path / "late.json", wait_s=20.0, answer_s=0.3)
        late = EvmLedger.at(rpc, ledger.address, ledger.created, RUN)
        assert late.enter(COORDINATOR, Fund(id="once", amount=5))
        assert not late.enter(COORDINATOR, Fund(id="once", amount=5))
    assert ledger.totals().treasury == 5


def test_a_node_that_never_answers_is_said_to_be_away(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="did not answer"):
        Chain("http://127.0.0.1:9", tmp_path / "sent.json", wait_s=0.5).balance(STRANGER.address)


@contextmanager
def hostile_node(answer: bytes, pause_s: float = 0.0) -> Iterator[tuple[str, list[str]]]:
    """A node that begins with these bytes and goes on without end; and what it was asked."""
    heard: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_POST(self) -> None:
            heard.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            with suppress(OSError):
                self.wfile.write(answer)
                while pause_s:
                    self.wfile.write(b" ")
                    time.sleep(pause_s)

        do_GET = do_POST

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
    finally:
        server.shutdown()
        server.server_close()


def test_a_node_sends_nobody_elsewhere(tmp_path: Path) -> None:
    """A run card names it; it would make this machine send requests into its own network."""
    with hostile_node(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (inside, heard):
        away = f"HTTP/1.1 307 Elsewhere\r\nLocation: {inside}/secret\r\nContent-Length: 0\r\n\r\n".encode()
        with hostile_node(away) as (url, asked), pytest.raises(LedgerError, match="gave an invalid answer"):
            Chain(url, tmp_path / "sent.json", wait_s=0.5).balance(STRANGER.address)
    assert asked
    assert heard == []


def test_an_answer_without_end_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    with (
        hostile_node(b"HTTP/1.1 200 OK\r\n\r\n{", pause_s=0.05) as (url, _),
        pytest.raises(LedgerError, match="did not answer"),
    ):
        Chain(url, tmp_path / "sent.json", wait_s=0.5, answer_s=0.5).balance(STRANGER.address)
    assert time.monotonic() - began < 5


def test_an_answer_of_any_size_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.ledger.evm.rpc.MAX_ANSWER", 1 << 20)
    large = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b" " * (2 << 20)
    with hostile_node(large, pause_s=0.1) as (url, _), pytest.raises(LedgerError, match="did not answer"):
        Chain(url, tmp_path / "sent.json", wait_s=0.2, answer_s=5.0).balance(STRANGER.address)


def test_a_strangers_node_does_not_say_what_a_vote_costs(chain: Anvil, tmp_path: Path) -> None:
    """What is signed for it may be sent elsewhere, where the address has more than it was given."""
    ledger = evm_ledger(chain, tmp_path)
    wary = EvmLedger.at(Chain(chain.url, tmp_path / "wary.json", max_fee=1000), ledger.address, ledger.created, RUN)
    with pytest.raises(LedgerError, match=r"no more than 1000 are spent.*SHOAL_RPC"):
        wary.enter(COORDINATOR, Fund(id="dear", amount=5))
    assert ledger.totals().treasury == 0


def test_what_the_block_refuses_is_refused_by_name(chain: Anvil, tmp_path: Path) -> None:
    """Two who settle the same batch at once: each would be taken, one is."""
    ledger = evm_ledger(chain, tmp_path)
    court = Court(ledger)
    court.begin()
    court.vote(court.work(leaf(0)), "a")
    other = EvmLedger.at(Chain(chain.url, tmp_path / "other.json"), ledger.address, ledger.created, RUN)
    act, answers = Settle(batch=0), list[str]()

    def enter(ledger: EvmLedger, key: Key) -> None:
        try:
            answers.append(str(ledger.enter(key, act)))
        except Refused as error:
            answers.append(error.code)

    chain.ask("evm_setAutomine", False)
    try:
        threads = [threading.Thread(target=enter, args=who) for who in ((ledger, COORDINATOR), (other, STRANGER))]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 10
        while int(chain.ask("txpool_status")["pending"], 16) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        chain.ask("evm_setAutomine", True)
        chain.ask("evm_mine")
    for thread in threads:
        thread.join(20)
    assert sorted(answers) == ["True", "taken"]


def test_what_is_no_ledger_of_ours_or_of_another_run_is_refused(chain: Anvil, tmp_path: Path) -> None:
    ledger = evm_ledger(chain, tmp_path)
    for address, run in ((STRANGER.address, RUN), (ledger.address, "other")):
        with pytest.raises(LedgerError):
            EvmLedger.at(ledger.chain, address, ledger.created, run)


def test_heads_are_the_chains_own_affair(chain: Anvil, tmp_path: Path) -> None:
    assert refusal(evm_ledger(chain, tmp_path), VALIDATORS[0], Head(number=0, hash="00" * 32)) == "pointless"
