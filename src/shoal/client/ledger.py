"""Ledger follower: a member's verified copy of the run's ledger, and statements signed with the member's key.

Where the ledger is the coordinator's file, it goes through the coordinator, and validators sign heads: each for a
history that it has checked from its first entry on, and never for one that contradicts a head it signed before. Where
it is a contract, members talk to the chain themselves, and the coordinator is not asked.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal.client.client import CoordinatorClient
from shoal.client.known_coordinators import trusted
from shoal.crypto.keys import Key
from shoal.errors import HiddenError, LedgerError, RolloutError
from shoal.files import write_whole
from shoal.ledger import chain
from shoal.ledger.acts import Act, Head
from shoal.ledger.chain import History, TamperedError
from shoal.ledger.entry import Entry, Statement
from shoal.ledger.reader import Record, record_of
from shoal.ledger.state import State
from shoal.protocol.refusal import Refusal
from shoal.shardcast.fetch.http import distance_to

if TYPE_CHECKING:
    from shoal.ledger.evm.ledger import EvmLedger

# A head is signed once this many entries have come since the last one, and when the run ends.
HEAD_EVERY = 50
ASK_S = 30.0
FINISH_S, CHAIN_FINISH_S = 30.0, 120.0


class Access(Protocol):
    """What a member does with the ledger."""

    finish_s: float
    """How long the end of a run is waited for while nothing is entered."""

    def catch_up(self) -> State: ...

    def say(self, act: Act) -> None:
        """Enters an act of the member's own; a refusal says why not."""
        ...

    def advance_in_s(self, state: State) -> int | None:
        """Seconds until anybody may move the clock; None where only the coordinator can."""
        ...

    def vouch(self, *, last: bool) -> State:
        """Signs what was checked, where that is of use: now and then, and the last time. The state as it is then."""
        ...


def access(link: CoordinatorClient, kept_head: Path | None = None) -> Access:
    """The ledger that the run card names. Beside the head a member keeps what it has sent to a chain."""
    if not link.card.run_config().ledger.rpc:
        return ThroughCoordinator(link, kept_head)
    ledger = _contract(link, kept_head.parent if kept_head else None)
    return OnChain(ledger, link.key, link.card.coordinator)


class OnChain:
    """The ledger as a contract, also where nobody says any more who the coordinator is."""

    finish_s = CHAIN_FINISH_S

    def __init__(self, ledger: "EvmLedger", key: Key, coordinator: str | None = None) -> None:
        self.ledger, self._key, self._coordinator = ledger, key, coordinator

    def catch_up(self) -> State:
        try:
            self.ledger.catch_up()
        except TamperedError as error:  # all was read twice; another node of the chain may know more
            raise HiddenError(
                f"{self.ledger.place}: the chain's node or the coordinator leaves something out: {error}"
            ) from None
        state = self.ledger.look(lambda state: state)
        if self._coordinator not in (None, state.coordinator):
            raise LedgerError(
                f"{self.ledger.place}: its coordinator is {state.coordinator}, the run's is {self._coordinator}; do "
                "not vote on it"
            )
        return state

    def say(self, act: Act) -> None:
        self.ledger.enter(self._key, act)

    def say_unread(self, make: Callable[["EvmLedger"], Act]) -> Act:
        """Enters an act that follows from what the contract itself says: its history cannot be read."""
        act = make(self.ledger)
        self.ledger.send(self._key, act)
        return act

    def advance_in_s(self, state: State) -> int | None:
        return max(0, self.ledger.moved_at() + state.terms.stall - self.ledger.chain.now())

    def vouch(self, *, last: bool) -> State:  # noqa: ARG002
        """The chain does."""
        return self.catch_up()


def _contract(link: CoordinatorClient, home: Path | None) -> "EvmLedger":
    from shoal.ledger.evm.deployed import JOURNAL, OWN_RPC, chain_at, way_to
    from shoal.ledger.evm.ledger import EvmLedger
    from shoal.ledger.evm.rpc import MAX_FEE

    wanted, url = link.card.run_config().ledger, link.join_at.url
    if way_to(wanted.rpc) == wanted.rpc and distance_to(wanted.rpc) < distance_to(url):
        raise LedgerError(
            f"run card of {url}: names a chain's node at {wanted.rpc}, which is nearer to this machine than the "
            f"coordinator is and so is not asked; if this is intended, set {OWN_RPC} to it"
        )
    max_fee = MAX_FEE if way_to(wanted.rpc) == wanted.rpc else None
    chain = chain_at(wanted.rpc, home / JOURNAL if home else None, wanted.confirmations, max_fee)
    return EvmLedger(chain, wanted.contract, wanted.created, link.card.run)


class ThroughCoordinator:
    """The ledger that the coordinator keeps, every entry checked."""

    finish_s = FINISH_S

    def __init__(self, link: CoordinatorClient, kept_head: Path | None) -> None:
        self._link = link
        self._kept = kept_head
        self._history: History | None = None
        self._signed = -1

    def catch_up(self) -> State:
        return self._follow().state

    def say(self, act: Act) -> None:
        history = self._history or self._follow()
        statement = Statement.sign(self._link.key, history.state.run, history.ledger, act)
        self._link.send("POST", "/v1/ledger/statements", statement.model_dump(mode="json"))

    def advance_in_s(self, state: State) -> int | None:  # noqa: ARG002
        return None

    def vouch(self, *, last: bool) -> State:
        history = self._follow()
        if last or history.number - self._signed >= HEAD_EVERY:
            self._sign_head(history)
        return history.state

    def _follow(self) -> History:
        """Takes the entries that are new."""
        self._history = follow(self._link, self._history)
        self._check_kept(self._history)
        return self._history

    def _sign_head(self, history: History) -> None:
        head = Head(number=history.number, hash=history.last.hash)
        if head.number == self._signed or self._kept is None:
            return
        statement = Statement.sign(self._link.key, history.state.run, history.ledger, head)
        write_whole(self._kept, statement.model_dump_json().encode(), durable=True)  # before anybody else has it
        try:
            self.say(head)
        except (Refusal, RolloutError):
            return
        self._signed = head.number

    def _check_kept(self, history: History) -> None:
        """Refuses a history that is not the one whose head this validator signed before."""
        if self._kept is None or not self._kept.exists():
            return
        kept = Statement.model_validate_json(self._kept.read_bytes())
        assert isinstance(kept.act, Head)
        if kept.ledger != history.ledger:
            raise LedgerError(
                f"ledger of {self._link.join_at.url}: is not the ledger whose head was signed in {self._kept}; if a "
                "new run was started, remove that file"
            )
        chain.check_head(history, kept.author, kept.act)


def follow(link: CoordinatorClient, history: History | None = None, entries: list[Entry] | None = None) -> History:
    """The history that a coordinator gives out, each entry checked; of one that is known, what is new of it."""
    while lines := link.get(f"/v1/ledger/entries?first={history.number + 1 if history else 0}")["lines"]:
        for entry in map(Entry.from_line, lines):
            if history is None:
                history = _begin(link, entry)
            else:
                chain.extend(history, entry)
            if entries is not None:
                entries.append(entry)
    if history is None:
        raise LedgerError(f"{link.join_at.url}: has no ledger of the coordinator {link.card.coordinator}")
    return history


def _begin(link: CoordinatorClient, entry: Entry) -> History:
    history = chain.begin(entry)
    state, card = history.state, link.card
    if (state.coordinator, state.run) != (card.coordinator, card.run):
        raise LedgerError(
            f"ledger of {link.join_at.url}: is of run {state.run} by {state.coordinator}, expected {card.run} by "
            f"{card.coordinator}"
        )
    return history


def record_at(join: str) -> Record:
    """The ledger of a run whose coordinator is somewhere else, for people."""
    with CoordinatorClient(trusted(join), Key.create(), ASK_S) as link:
        ledger = access(link)
        if isinstance(ledger, OnChain):
            return Record(ledger.catch_up(), ledger.ledger.lines(), ledger.ledger.time_of)
        entries: list[Entry] = []
        return record_of(follow(link, None, entries), entries)
