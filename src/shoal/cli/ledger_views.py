"""What `shoal ledger`, `shoal earnings` and `shoal node` print, for a ledger that is a file or a contract."""

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.crypto.keys import checked_address, checksummed, short
from shoal.errors import LedgerError
from shoal.ledger.acts import Act, Settle, Work
from shoal.ledger.chain import find_fork, verify
from shoal.ledger.contract_file import is_on_chain, remembered
from shoal.ledger.entry import Entry, Statement, parsed
from shoal.ledger.explain import OUTCOMES, PLANTED, sentence
from shoal.ledger.export import export, read_file, verify_file
from shoal.ledger.interface import Line
from shoal.ledger.reader import Record, ledger_file
from shoal.ledger.state import Account, Judge, State, holdings, leases, status
from shoal.text import one_line

MIN_PREFIX = 6  # characters of an address, 0x among them
FULL = re.compile(r"0x[0-9a-fA-F]{40}")


def verify_ledger(path: Path, coordinator: str | None, kept: Path | None, other: Path | None, console: Console) -> None:
    """Verifies a file and says how far others vouch for it; or verifies a contract."""
    address = checked_address(coordinator) if coordinator else None
    if is_on_chain(path) and not kept and not other:
        verify_contract(path, address, console)
        return
    path = ledger_file(path)
    with console.status(f"verifying {path}") as shown:
        history = verify_file(path, address, read_heads(kept) if kept else (), lambda n: shown.update(f"entry {n:,}"))
        fork = find_fork(read_file(path), verified(other)) if other else None
    state = history.state
    console.print(f"[bold green]verified[/] {history.number + 1:,} entries of run {state.run}", highlight=False)
    console.print(f"coordinator  {checksummed(state.coordinator)}", highlight=False)
    console.print(f"last entry   {history.last.hash}", highlight=False)
    for validator, number in sorted(history.cosigned.items()):
        console.print(f"signed up to {number:,} by validator {checksummed(validator)}", highlight=False)
    if not history.cosigned:
        console.print(
            "no validator has signed a head: the coordinator may have shown others another history",
            style="yellow",
        )
    console.print(
        f"{state.brought_in:,} credits brought in, {state.paid_out:,} paid out; the rest adds up", highlight=False
    )
    if fork:
        raise LedgerError(str(fork))


def verify_contract(run: Path, coordinator: str | None, console: Console) -> None:
    """Folds the contract's log by the rules, and compares every balance with what the contract itself has."""
    from shoal.ledger.evm.deployed import reading

    known = remembered(run)
    assert known is not None
    with console.status(f"reading contract {known.contract}"):
        ledger = reading(known)
        ledger.check()
    state = ledger.look(lambda state: state)
    if coordinator not in (None, state.coordinator):
        raise LedgerError(f"{ledger.place}: its coordinator is {state.coordinator}, expected {coordinator}")
    if ledger.chain.id != known.chain:
        raise LedgerError(f"{ledger.place}: this chain has id {ledger.chain.id}, the run's chain has id {known.chain}")
    console.print(f"[bold green]verified[/] {len(ledger.lines()):,} acts of run {state.run}", highlight=False)
    console.print(f"contract     {checksummed(ledger.address)}, chain {known.chain}", highlight=False)
    console.print(f"coordinator  {checksummed(state.coordinator)}", highlight=False)
    console.print("every balance in the contract follows from its log by the rules; the chain vouches for its heads")
    console.print(
        f"{state.brought_in:,} wei brought in, {state.paid_out:,} paid out; the contract holds the rest",
        highlight=False,
    )


def verified(path: Path) -> Iterable[Entry]:
    entries = list(read_file(ledger_file(path)))
    verify(entries)
    return entries


def read_heads(path: Path) -> list[Statement]:
    """Heads that validators kept: one signed statement per line."""
    try:
        return [parsed(Statement, line) for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise LedgerError(f"heads {path}: cannot be read ({error.strerror})") from error


def show_ledger(record: Record, count: int, console: Console) -> None:
    """Prints the last entries, one per line."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("entry", "time (UTC)", "author", "act", "hash"):
        table.add_column(column, overflow="fold" if column == "act" else "ellipsis", no_wrap=column != "act")
    for line in record.lines[-count:]:
        said = Text(sentence(line.act))
        table.add_row(str(line.number), _time(record, line), _who(record.state, line.author), said, line.hash[:12])
    console.print(table)


def export_ledger(path: Path, to: Path, console: Console) -> None:
    """Writes a file that verifies by itself."""
    path = ledger_file(path)
    with console.status(f"verifying {path}"):
        entries = verified(path)
    count = export(entries, to)
    console.print(f"{to}: {count:,} entries; check it anywhere with: shoal ledger verify {to}", highlight=False)


def show_earnings(record: Record, console: Console) -> None:
    """Prints what each node contributed and what it earned."""
    state = record.state
    console.print(earnings_table(state, planters(state, (line.act for line in record.lines))))
    for judge in state.judges.values():
        console.print(f"validator {short(checksummed(judge.address))}: {_standing(judge)}", highlight=False)


def planters(state: State, acts: Iterable[Act]) -> set[str]:
    """Addresses whose planted files have been revealed: they belong to the run's owner."""
    found = set()
    for act in acts:
        if isinstance(act, Settle) and act.plants:
            leaves = state.batches[act.batch].leaves
            found |= {leaf.node for leaf, letter in zip(leaves, act.plants, strict=True) if letter != "."}
    return found


def earnings_table(state: State, left_out: Collection[str] = ()) -> Table:
    """One row per node that submitted something or has stake, including nodes without an account."""
    title = f"{state.run}: who earned what"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("node", no_wrap=True)
    for column in ("tokens", "accepted", "files", "bad", "earned", "locked", "slashed"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    accounts = [*state.accounts.values(), *without_account(state).values()]
    for account in sorted(accounts, key=lambda account: -account.tokens_accepted):
        if account.address not in left_out and (account.submitted or account.stake or account.slashed):
            table.add_row(*_row(state, account))
    table.caption = f"treasury {state.treasury:,}, held until challenges end {state.held.total:,}"
    if left_out:
        table.caption += f"; {len(left_out)} addresses of the owner's planter not shown"
    return table


def _row(state: State, account: Account) -> Iterator[str]:
    has = holdings(state, account)
    numbers = (account.tokens, account.tokens_accepted, account.accepted, account.offences)
    credits_ = (account.earned_ever - account.voided, has.locked, account.slashed)
    name = short(checksummed(account.address))
    return iter((name, *(f"{n:,}" for n in (*numbers, *credits_)), _status(state, account)))


def without_account(state: State) -> dict[str, Account]:
    """Addresses that submitted files of which none was accepted, as accounts that hold nothing.

    The rules open no account for them; their files and verdicts are on the ledger nevertheless.
    """
    found: dict[str, Account] = {}
    for batch in state.batches:
        for leaf, outcome in zip(batch.leaves, batch.outcomes, strict=False):  # without outcomes until it is settled
            if leaf.node not in state.accounts and outcome != "x":
                account = found.setdefault(leaf.node, Account(leaf.node))
                account.submitted += 1
                account.tokens += leaf.tokens
                account.offences += outcome == "r"
    return found


def _status(state: State, account: Account) -> str:
    said = status(state, account)
    return "no account" if account.address not in state.accounts and said != "banned" else said


def _meant(state: State, address: str) -> Account:
    """The node with this address, or the only one whose address begins with it."""
    begins, all_ = address.lower(), {**without_account(state), **state.accounts}
    found = [known for known in all_ if known.startswith(begins)] if len(begins) >= MIN_PREFIX else []
    if len(found) != 1:
        why = f"{len(found)} addresses begin with it" if found else "no address in this ledger begins with it"
        raise LedgerError(f"node {address:.60}: {why}; give more of an address that shoal earnings lists")
    return all_[found[0]]


def show_node(
    record: Record, address: str, console: Console, coordinator_says: Callable[[str], Sequence[str]] = lambda _who: ()
) -> None:
    """One contributor's history; `coordinator_says` has lines about it that no ledger has, from its first file on: the
    ledger has that when its step is over."""
    state = record.state
    try:
        account = _meant(state, address)
    except LedgerError:
        if FULL.fullmatch(address) is None or not (said := coordinator_says(address.lower())):
            raise
        console.print(f"[bold]{checksummed(address.lower())}[/], not on the ledger yet", highlight=False)
        for known in said:
            console.print(one_line(known), markup=False, highlight=False, soft_wrap=True)
        return
    who = account.address
    has = holdings(state, account)
    console.print(f"[bold]{checksummed(who)}[/], {_status(state, account)}", highlight=False)
    for known in coordinator_says(who):
        console.print(one_line(known), markup=False, highlight=False, soft_wrap=True)
    if who not in state.accounts:
        console.print("has no account (the first accepted file or a deposit opens one), so there was nothing to slash")
    console.print(
        f"may hold {leases(state, account)} leases; stake {has.stake:,}, leaving {has.leaving:,}", highlight=False
    )
    console.print(f"earned {has.earned:,}, locked {has.locked:,}, paid out {account.paid:,}", highlight=False)
    console.print(
        f"slashed {account.slashed:,}, voided {account.voided:,}, rejects {account.offences}", highlight=False
    )
    if who in state.judges:
        console.print(f"validator: {_standing(state.judges[who])}", highlight=False)
    for line in record.lines:
        for said in _concerning(state, line, who):
            console.print(f"{line.number:6}  {_time(record, line)}  {said}", markup=False, highlight=False)


def _standing(judge: Judge) -> str:
    return (
        f"standing {judge.standing}, judged {judge.judged}, refuted {judge.refuted}, "
        f"misjudged {judge.misjudged} planted samples, missed {judge.missed} batches"
    )


def _time(record: Record, line: Line) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record.time_of(line) / 1000))


def _who(state: State, address: str) -> str:
    role = "coordinator" if address == state.coordinator else "validator" if address in state.judges else ""
    return role or address[:12]


def _concerning(state: State, line: Line, who: str) -> Iterator[str]:
    """What an entry says about one address."""
    act = line.act
    if isinstance(act, Work):
        mine = [leaf.submission for leaf in act.leaves if leaf.node == who]
        if mine:
            yield f"submitted {', '.join(f'{act.step}/{number}' for number in mine)}"
    elif isinstance(act, Settle):
        batch = state.batches[act.batch]
        for index, (leaf, outcome) in enumerate(zip(batch.leaves, batch.outcomes, strict=True)):
            known = PLANTED.get(act.plants[index : index + 1], "")
            if leaf.node == who:
                yield f"{batch.step}/{leaf.submission} {known or OUTCOMES[outcome]}"
            elif known and who in batch.reveals:
                vote = batch.reveals[who].votes[index]
                right = "right" if vote == act.plants[index] else "wrong"
                yield f"{batch.step}/{leaf.submission} {known}: judged {right}, {OUTCOMES[vote]}"
    elif who in (line.author, getattr(act, "node", ""), getattr(act, "challenger", "")):
        yield sentence(act)
