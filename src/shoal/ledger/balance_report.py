"""What a node owns on a ledger, what is locked and until which step, and who can advance the clock."""

from dataclasses import replace

from shoal.crypto.keys import checksummed
from shoal.ledger.state import Account, State, holdings, leases, status


def unit(state: State) -> str:
    return "wei" if state.on_chain else "credits"


def outlook(state: State, address: str, advance_in_s: int | None) -> list[str]:
    """The lines that people see after each command that concerns their credits.

    `advance_in_s`: seconds until anybody may move the clock; None where only the coordinator can.
    """
    account = state.accounts.get(address)
    if account is None:
        return [f"{checksummed(address)} has no account here", *_end(state), _clock(state, advance_in_s)]
    said = [f"{checksummed(address)}, {status(state, account)}, has:"]
    said += [f"  {line}" for line in _holdings(state, account)] or ["  nothing"]
    return [*said, *_end(state), _clock(state, advance_in_s)]


def _holdings(state: State, account: Account) -> list[str]:
    has, name, said = holdings(state, account), unit(state), list[str]()
    if has.stake:
        said.append(f"stake {has.stake:,} {name}, and with it may hold {leases(state, account)} leases")
    if has.leaving:
        said.append(f"leaving {has.leaving:,} {name}, {_leaves(state, account)}")
    lock, window = replace(account.lock), state.terms.window
    lock.turn(state.window)
    for amount, until in ((lock.old, state.window + 1), (lock.fresh, state.window + 2)):
        if amount:
            said.append(f"locked {amount:,} {name}, until step {until * window}; a bad file found till then voids it")
    if has.earned:
        said.append(f"earned {has.earned:,} {name}, which can be withdrawn or staked now")
    return said


def _leaves(state: State, account: Account) -> str:
    if state.finished or state.clock >= account.leaves_at:
        return "which can be withdrawn now"
    return f"until step {account.leaves_at}; it can be slashed till then"


def _end(state: State) -> list[str]:
    if state.finished:
        return ["the ledger is over: all stake can be unbonded and withdrawn now, and what is left of funds refunded"]
    if not state.closed:
        return []
    waits = f" and {state.unsettled} batches are settled" if state.unsettled else ""
    return [f"the ledger is closed: it is over at step {(state.ended + 3) * state.terms.window}{waits}"]


def _clock(state: State, advance_in_s: int | None) -> str:
    at = f"the clock is at step {state.clock}"
    if advance_in_s is None:
        return f"{at}; the coordinator moves it"
    when = f"in {advance_in_s:,} s" if advance_in_s else "now"
    return f"{at}; the coordinator moves it, and anybody may {when}: shoal ledger advance"
