"""All rules of the ledger, as one fold: `apply` enters an act into the state, or refuses it by name and changes
nothing.

Every refusal comes before the first change. Nothing here knows of files, clocks, signatures or networks: the caller has
made sure that the author signed. The contract on a chain does what these rules say; the same tests hold for both.

- `money.py`: a node holds one lease, and more for stake that it paid in. Accepted tokens are paid out of the treasury,
  judging is too, and pay is locked for the challenge window. A reject takes stake and locked pay, never to an accuser.
- `court.py`: validators are drawn, commit, then reveal. They lose standing and locked pay for an accusation that a
  replay refutes and for misjudging a planted sample, and some standing for not revealing.
"""

from shoal.ledger import court, money
from shoal.ledger.acts import (
    MAX_VALIDATORS,
    Act,
    Advance,
    Challenge,
    Close,
    Commit,
    Deposit,
    Fund,
    Head,
    Open,
    Refund,
    Register,
    Reveal,
    Rule,
    Settle,
    Stake,
    Unbond,
    Withdraw,
    Work,
)
from shoal.ledger.refusal import Refused
from shoal.ledger.state import Account, Judge, State


def opened(run: str, author: str, act: Open, *, on_chain: bool = False) -> State:
    """The state that a ledger begins with."""
    terms = act.terms
    if not terms.quorum <= terms.drawn < 2 * terms.quorum:
        raise Refused("mismatch", f"open: quorum {terms.quorum} must be more than half of {terms.drawn} drawn, or all")
    if len(set(terms.validators)) != len(terms.validators):
        raise Refused("mismatch", "open: a validator is named twice")
    state = State(run, author, terms, on_chain)
    for address in terms.validators:
        state.accounts[address] = Account(address)
        state.judges[address] = Judge(address)
    return state


def apply(state: State, author: str, act: Act) -> None:
    """Enters an act of this author."""
    if (author, act.name) in state.entered:
        raise Refused("taken", f"{act.name}: {author} has entered it already")
    _enter(state, author, act)
    state.entered.add((author, act.name))


def _enter(state: State, author: str, act: Act) -> None:
    match act:
        case Register():
            _register(state, author, act)
        case Fund():
            money.fund(state, author, act)
        case Deposit():
            money.deposit(state, author, act)
        case Stake():
            money.stake(state, author, act)
        case Unbond():
            money.unbond(state, author, act)
        case Withdraw():
            money.withdraw(state, author, act)
        case Refund():
            money.refund(state, author, act)
        case Work():
            court.work(state, author, act)
        case Advance():
            _advance(state, act)
        case Close():
            _close(state, author, act)
        case Commit():
            court.commit(state, author, act)
        case Reveal():
            court.reveal(state, author, act)
        case Settle():
            court.settle(state, author, act)
        case Challenge():
            court.challenge(state, author, act)
        case Rule():
            court.rule(state, author, act)
        case Head():
            if author not in state.judges:
                raise Refused("not-allowed", f"{act.name}: {author} is not a validator, and only validators sign heads")
        case Open():
            raise Refused("taken", f"open: run {state.run} is open already")


def max_judges(state: State) -> int:
    """How many validators a ledger may have: as many may come later as it began with, or as a jury needs."""
    return min(MAX_VALIDATORS, max(2 * len(state.terms.validators), state.terms.drawn))


def _register(state: State, author: str, act: Register) -> None:
    if author != state.coordinator:
        raise Refused("not-allowed", f"{act.name}: only the coordinator admits validators")
    if act.node in state.judges:
        raise Refused("taken", f"{act.name}: is a validator already")
    if len(state.judges) >= max_judges(state):
        raise Refused(
            "full", f"{act.name}: this ledger may have {max_judges(state)} validators, and already has that many"
        )
    # A node that does not trust the new judges can take its stake out before they are drawn.
    state.judges[act.node] = Judge(act.node, since=state.clock + state.leaving_steps)
    state.accounts.setdefault(act.node, Account(act.node))


def _advance(state: State, act: Advance) -> None:
    if not state.on_chain:
        raise Refused(
            "not-allowed",
            f"{act.name}: only the coordinator advances the clock of a ledger that is a file, by entering work",
        )
    if act.step != state.clock + 1:
        raise Refused("order", f"{act.name}: step {act.step} after step {state.clock}; steps come one by one")
    state.advanced += 1
    court.move_clock(state, act.step)


def _close(state: State, author: str, act: Close) -> None:
    if state.closed:
        raise Refused("taken", f"{act.name}: the ledger is closed already")
    if author != state.coordinator and state.advanced < state.leaving_steps:
        raise Refused(
            "not-allowed",
            f"{act.name}: only the coordinator closes a ledger, or anybody after it was silent for "
            f"{state.leaving_steps} steps; it was for {state.advanced}",
        )
    state.closed = True
    state.ended = state.window
