"""Credits: deposits, stake, locked pay, slashes, unbonding and withdrawals.

Stake + leaving + locked + earned + treasury + held = brought in - paid out, always. A node's gift is not part of it: it
backs the node's word, and is owed to nobody.
"""

from shoal.ledger.acts import Deposit, Fund, Leaf, Refund, Stake, Unbond, Withdraw
from shoal.ledger.refusal import Refused
from shoal.ledger.state import Account, Bond, State, Taken, holdings, status


def account_of(state: State, address: str, name: str) -> Account:
    account = state.accounts.get(address)
    if account is None:
        raise Refused("unknown", f"{name}: {address} has no account; an accepted file or a deposit opens one")
    return account


def opened_account(state: State, address: str) -> Account:
    return state.accounts.setdefault(address, Account(address))


def fund(state: State, author: str, act: Fund) -> None:
    _must_bring_in(state, author, act.name)
    if state.closed:
        raise Refused("late", f"{act.name}: the ledger is closed, and pays for no more work")
    state.treasury += act.amount
    state.funded[author] = state.funded.get(author, 0) + act.amount
    state.brought_in += act.amount


def deposit(state: State, author: str, act: Deposit) -> None:
    _must_bring_in(state, author, act.name)
    if act.amount == 0:
        raise Refused("short", f"{act.name}: nothing is paid in")
    opened_account(state, act.node).stake += act.amount
    state.brought_in += act.amount


def _must_bring_in(state: State, author: str, name: str) -> None:
    if author != state.coordinator and not state.on_chain:
        raise Refused(
            "not-allowed", f"{name}: {author} is not the coordinator, and only the coordinator records deposits"
        )


def stake(state: State, author: str, act: Stake) -> None:
    account = account_of(state, author, act.name)
    has = holdings(state, account).earned
    if has < act.amount or act.amount == 0:
        raise Refused("short", f"{act.name}: {act.amount} of {has} earned and unlocked; give 1..{has}")
    account.earned += account.lock.turn(state.window) - act.amount
    account.stake += act.amount


def unbond(state: State, author: str, act: Unbond) -> None:
    account = account_of(state, author, act.name)
    if account.stake < act.amount or act.amount == 0:
        raise Refused("short", f"{act.name}: {act.amount} of a stake of {account.stake}; give 1..{account.stake}")
    let_leave(state, account, act.amount)


def let_leave(state: State, account: Account, amount: int) -> None:
    account.stake -= amount
    account.leaving += amount
    # Whatever the node handed in is settled, and can be challenged no more, before its stake is out of reach.
    account.leaves_at = state.clock + state.leaving_steps


def withdraw(state: State, author: str, act: Withdraw) -> None:
    account = account_of(state, author, act.name)
    now = holdings(state, account)
    left = now.leaving if state.clock >= account.leaves_at or state.finished else 0
    if now.earned + left == 0:
        raise Refused("short", f"{act.name}: nothing can be paid out; {now.locked} locked, {now.leaving} leaving")
    account.lock.turn(state.window)
    account.earned, account.leaving = 0, account.leaving - left
    account.paid += now.earned + left
    state.paid_out += now.earned + left


def refund(state: State, author: str, act: Refund) -> None:
    if not state.finished:
        raise Refused("early", f"{act.name}: the treasury still pays for work, or could by a challenge; close it first")
    brought, total = state.funded.get(author, 0), sum(state.funded.values())
    share = brought * max(0, state.treasury - state.forfeited) // total if brought else 0
    if share == 0:
        raise Refused("short", f"{act.name}: nothing of what {author} brought in is left")
    state.funded[author] = 0
    state.treasury -= share
    state.paid_out += share


def pay(state: State, account: Account, amount: int) -> None:
    """Locks so much for a node, or what the treasury has."""
    amount = min(amount, state.treasury)
    state.treasury -= amount
    account.earned += account.lock.add(amount, state.window)
    account.earned_ever += amount


def accept(state: State, leaf: Leaf) -> None:
    """Pays for a file; the first one of a node opens its account and brings it the welcome credits."""
    account = opened_account(state, leaf.node)
    banned = status(state, account) == "banned"
    pay(state, account, 0 if banned else state.terms.rate * leaf.tokens)
    account.accepted += 1
    account.tokens_accepted += leaf.tokens
    if not account.welcomed and not banned:
        account.welcomed = True
        account.gift += state.terms.welcome


def punish(state: State, account: Account, leaf: Leaf) -> Taken:
    """Takes everything locked, and of stake a multiple of what the file would have brought in."""
    terms = state.terms
    voided = void(state, account)
    wanted = max(terms.slash, terms.slash_files * terms.rate * leaf.tokens)
    from_stake = min(wanted, account.stake)
    from_leaving = min(wanted - from_stake, account.leaving)
    gift = min(terms.slash, account.gift)
    account.stake -= from_stake
    account.leaving -= from_leaving
    account.gift -= gift
    account.slashed += from_stake + from_leaving
    account.offences += 1
    account.suspended_until = state.clock + terms.suspend_steps
    hold(state, from_stake + from_leaving)
    return Taken(from_stake + from_leaving, gift, voided)


def give_back(state: State, account: Account, taken: Taken) -> None:
    state.held.take(taken.stake + taken.voided)
    state.forfeited -= taken.stake + taken.voided
    account.stake += taken.stake
    account.gift += taken.gift
    account.earned += account.lock.add(taken.voided, state.window)
    account.offences -= 1
    account.suspended_until = 0
    account.slashed -= taken.stake
    account.voided -= taken.voided


def void(state: State, account: Account) -> int:
    """Takes everything locked; how much that is."""
    account.earned += account.lock.turn(state.window)
    amount = account.lock.empty()
    account.voided += amount
    hold(state, amount)
    return amount


def hold(state: State, amount: int) -> None:
    """What was taken is on its way to the treasury, and to nobody else."""
    state.held.add(amount, state.window)
    state.forfeited += amount


def put_up_bond(state: State, account: Account, own: Taken | None, name: str) -> Bond:
    """Sets the bond of a challenge aside. Refused if the challenger does not have it.

    A node that objects to its own reject has paid already with what that took. Stake leaves meanwhile: it can be taken
    until every ruling is past, and is not lost if none is made.
    """
    bond = state.terms.bond
    if own is not None and own.stake + own.gift >= bond:
        return "taken"
    if account.gift >= bond:
        account.gift -= bond
        return "gift"
    if account.stake < bond:
        raise Refused("short", f"{name}: a challenge puts up {bond} credits of stake, {account.address} has fewer")
    let_leave(state, account, bond)
    return "stake"


def take_bond(state: State, account: Account, bond: Bond) -> None:
    taken = min(state.terms.bond, account.leaving) if bond == "stake" else 0
    account.leaving -= taken
    account.slashed += taken
    hold(state, taken)


def return_bond(state: State, account: Account, bond: Bond) -> None:
    if bond == "gift":
        account.gift += state.terms.bond
    elif bond == "stake":
        back = min(state.terms.bond, account.leaving)
        account.leaving -= back
        account.stake += back
