"""A run's ledger over the network: followed with every entry checked, and added to with signed statements."""

from shoal.errors import LedgerError
from shoal.ledger import chain
from shoal.ledger.acts import Act
from shoal.ledger.chain import History
from shoal.ledger.entry import Entry, Statement
from shoal.swarm.client import Link


def follow(link: Link, history: History | None = None) -> History:
    """The history that a coordinator gives out, each entry checked; of one that is known, what is new of it."""
    while lines := link.get(f"/v1/ledger/entries?first={history.number + 1 if history else 0}")["lines"]:
        for entry in map(Entry.from_line, lines):
            if history is None:
                history = _begin(link, entry)
            else:
                chain.extend(history, entry)
    if history is None:
        raise LedgerError(f"{link.join_at.url}: has no ledger of the coordinator {link.card.coordinator}")
    return history


def _begin(link: Link, entry: Entry) -> History:
    history = chain.begin(entry)
    state, card = history.state, link.card
    if (state.coordinator, state.run) != (card.coordinator, card.run):
        raise LedgerError(
            f"ledger of {link.join_at.url}: is of run {state.run} by {state.coordinator}, expected {card.run} by "
            f"{card.coordinator}"
        )
    return history


def enter(link: Link, history: History, act: Act) -> None:
    """Hands in an act, signed with the link's key."""
    statement = Statement.sign(link.key, history.state.run, history.ledger, act)
    link.send("POST", "/v1/ledger/statements", statement.model_dump(mode="json"))
