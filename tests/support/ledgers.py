"""A coordinator, an arbiter, validators and nodes with keys, on any ledger."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.crypto.keys import Key
from shoal.ledger.acts import (
    NO_HASH,
    Act,
    Commit,
    Deposit,
    Fund,
    Leaf,
    Reveal,
    Settle,
    Terms,
    Work,
    beacons,
    plants_hash,
    vote_hash,
)
from shoal.ledger.evm.ledger import EvmLedger
from shoal.ledger.evm.rpc import Chain
from shoal.ledger.interface import Ledger, Standing
from shoal.ledger.refusal import Refused
from shoal.ledger.store import SqliteLedger
from tests.support.servers.anvil import Anvil


def key_of(number: int) -> Key:
    return Key(number.to_bytes(32, "big"))


RUN = "test"
COORDINATOR, ARBITER, STRANGER = key_of(1), key_of(2), key_of(3)
VALIDATORS = [key_of(10 + i) for i in range(3)]
NODES = [key_of(20 + i) for i in range(3)]
KEYS = {key.address: key for key in (COORDINATOR, ARBITER, STRANGER, *VALIDATORS, *NODES)}
LINKS = [link.hex() for link in beacons(b"\x07" * 32, 400)]
SALT = "5a" * 32
EVIDENCE = "e1" * 32
FILE = "f1" * 32


def make_terms(**changes: Any) -> Terms:
    """Three of three validators judge, two decide; windows of two steps, patience of one."""
    values: dict[str, Any] = {
        "arbiter": ARBITER.address,
        "validators": tuple(key.address for key in VALIDATORS),
        "drawn": 3,
        "quorum": 2,
        "rate": 2,
        "stake_per_lease": 100,
        "welcome": 80,
        "slash": 300,
        "slash_files": 2,
        "suspend_steps": 2,
        "ban_after": 2,
        "window": 2,
        "patience": 1,
        "bond": 50,
        "stall": 3600,
        "beacon": LINKS[0],
    }
    return Terms(**{**values, **changes})


def sqlite_ledger(path: Path, **changes: Any) -> SqliteLedger:
    return SqliteLedger.open(path / "ledger.db", COORDINATOR, RUN, make_terms(**changes))


def evm_ledger(chain: Anvil, path: Path, **changes: Any) -> EvmLedger:
    rpc = Chain(chain.url, path / "sent.json", wait_s=20.0)
    return EvmLedger.deploy(rpc, COORDINATOR, RUN, make_terms(**changes))


def leaf(submission: int, node: Key = NODES[0], tokens: int = 10) -> Leaf:
    return Leaf(submission=submission, node=node.address, sha256=FILE, tokens=tokens)


class Court:
    """Enters work and judges it; remembers which batch and which beacon come next."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.batch = 0

    def begin(self, treasury: int = 100_000, stake: int = 1000) -> None:
        """A treasury, stake for the first node, and enough for one bond for the others."""
        self.ledger.enter(COORDINATOR, Fund(id="budget", amount=treasury))
        self.ledger.enter(COORDINATOR, Deposit(id="stake", node=NODES[0].address, amount=stake))
        for node in NODES[1:]:
            self.ledger.enter(COORDINATOR, Deposit(id=node.address, node=node.address, amount=50))

    def node(self, address: str) -> Standing:
        standing = self.ledger.node(address)
        assert standing is not None
        return standing

    def work(self, *leaves: Leaf, step: int | None = None, plants: str = "") -> int:
        number, self.batch = self.batch, self.batch + 1
        step = self.ledger.totals().clock if step is None else step
        sealed = plants_hash(RUN, number, plants, SALT) if plants else NO_HASH
        act = Work(batch=number, step=step, leaves=leaves, beacon=LINKS[step + 1], plants=sealed)
        assert self.ledger.enter(COORDINATOR, act)
        return number

    def pass_steps(self, count: int) -> None:
        """Moves the clock on. A step without files is begun like any other."""
        for _ in range(count):
            if self.ledger.look(lambda state: not state.links):
                self.work(step=0)
            self.work(step=self.ledger.totals().clock + 1)

    def vote(self, batch: int, votes: str | Mapping[str, str]) -> None:
        """All who were drawn commit, then reveal; by address, or all the same."""
        jury = self.ledger.jury(batch)
        acts = {who: reveal(batch, votes if isinstance(votes, str) else votes[who]) for who in jury}
        for who, act in acts.items():
            self.ledger.enter(KEYS[who], Commit(batch=batch, hash=vote_hash(RUN, who, act)))
        for who, act in acts.items():
            self.ledger.enter(KEYS[who], act)

    def judged(self, leaves: Sequence[Leaf], votes: str | Mapping[str, str]) -> int:
        """Work that was judged and settled; its batch."""
        batch = self.work(*leaves)
        self.vote(batch, votes)
        assert self.ledger.enter(COORDINATOR, Settle(batch=batch))
        return batch


def reveal(batch: int, votes: str) -> Reveal:
    return Reveal(batch=batch, votes=votes, evidence=(EVIDENCE,) * votes.count("r"), salt=SALT)


def refusal(ledger: Ledger, key: Key, act: Act) -> str:
    """The code with which an act is refused; the totals must not have changed. Empty if it is entered."""
    before = ledger.totals()
    try:
        ledger.enter(key, act)
    except Refused as error:
        assert ledger.totals() == before
        return error.code
    return ""
