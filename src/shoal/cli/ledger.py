"""Help panel "Ledger": check and read a run's ledger, challenge a verdict, and move credits in and out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.app import app, console
from shoal.cli.options import ConfigFlags, NodeKey, Run, Target, takes_options

if TYPE_CHECKING:
    from shoal.client.credits import Teller
    from shoal.ledger.reader import Record

PANEL = "Ledger"
ledger = typer.Typer(help="A run's ledger: verify or read it, challenge a verdict, deposit and withdraw credits.")
app.add_typer(ledger, name="ledger", no_args_is_help=True, rich_help_panel=PANEL)
LedgerFile = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, a ledger.db or an export.")]
AnyLedger = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, a ledger.db, an export, or a coordinator's URL.")
]
Amount = Annotated[int, typer.Argument(metavar="AMOUNT", min=1, help="Credits; on a chain, wei.")]


def _record(where: str) -> "Record":
    """A ledger, verified from its first entry to its last."""
    with console.status(f"verifying the ledger of {where}"):
        if where.startswith(("http://", "https://")):
            from shoal.client.ledger import record_at

            return record_at(where)
        from shoal.ledger.reader import read_record

        return read_record(Path(where))


@app.command(rich_help_panel=PANEL)
def earnings(run: AnyLedger) -> None:
    """Show how many tokens each node contributed, and what was accepted, earned and slashed."""
    from shoal.cli.ledger_views import show_earnings

    show_earnings(_record(run), console)


@app.command(rich_help_panel=PANEL)
def node(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="A node's address, or its first characters.")],
    run: AnyLedger,
) -> None:
    """Show one contributor: how it computes, evidence, leases let go, stake, work, verdicts, earnings."""
    from shoal.cli.ledger_views import show_node
    from shoal.client.run_status import coordinator_says

    show_node(_record(run), address, console, lambda who: coordinator_says(run, who))


@ledger.command("verify")
def verify(
    path: LedgerFile,
    coordinator: Annotated[str | None, typer.Option(help="The address that must have opened and sealed it.")] = None,
    heads: Annotated[
        Path | None,
        typer.Option(help="Heads that a validator signed and kept, one per line: the ledger must contain all of them."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Another copy to compare with: a fork is shown with both signatures.")
    ] = None,
) -> None:
    """Check every link, signature and rule from the first entry to the last, and name the first bad entry.

    A file is verified by itself, on any machine: shoal ledger verify run.jsonl. If a run's ledger is a contract, its
    log is replayed by the rules and compared with every balance that the contract holds.
    """
    from shoal.cli.ledger_views import verify_ledger

    verify_ledger(path, coordinator, heads, against, console)


@ledger.command("show")
def show(
    run: AnyLedger, count: Annotated[int, typer.Option("-n", min=1, help="Number of entries to show.")] = 20
) -> None:
    """Show the last entries."""
    from shoal.cli.ledger_views import show_ledger

    show_ledger(_record(run), count, console)


@ledger.command("export")
def export(
    path: LedgerFile, to: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, one entry per line.")]
) -> None:
    """Write a copy as JSON lines that anyone can verify."""
    from shoal.cli.ledger_views import export_ledger

    export_ledger(path, to, console)


@ledger.command("gas")
@takes_options
def gas(
    run: Target,
    changes: ConfigFlags,
    dev: Annotated[
        bool, typer.Option("--dev", help="Fund each of them from the first account of a development chain (anvil).")
    ] = False,
) -> None:
    """Show what the coordinator and the validators can pay for transactions on the run's chain, even before the run.

    The sender of a transaction pays its gas: the coordinator for joining, work and settling; a validator for its
    votes, for which ledger.gas funds it; a node for withdrawing; a challenger and the arbiter for their own.
    """
    from shoal.client.gas import show_gas
    from shoal.rundir import locate_config

    show_gas(*locate_config(run, changes.settings or [], changes.out), dev, console)


@ledger.command("challenge")
def challenge(
    submission: Annotated[str, typer.Argument(metavar="STEP/NUMBER", help="A submission, as in 12/3.")],
    claim: Annotated[str, typer.Option(help="What its verdict should have been: accept or reject.")],
    join: Annotated[str, typer.Option(metavar="URL", help="The run's coordinator.")],
    evidence: Annotated[
        Path | None,
        typer.Option(help="A bundle whose hash is recorded, for people to read; the arbiter does not need it."),
    ] = None,
    key: NodeKey = None,
) -> None:
    """Challenge a verdict within its window. You must have joined; the arbiter judges the file itself and rules."""
    from shoal.client.challenge import challenge as enter
    from shoal.client.identity import default_key
    from shoal.crypto.keys import Key

    enter(join, submission, claim, evidence, Key.load(key or default_key()), console)


@ledger.command("arbitrate")
def arbitrate(
    run: Run,
    join: Annotated[str, typer.Option(metavar="URL", help="The run's coordinator.")],
    key: Annotated[Path | None, typer.Option(help="The arbiter's key; default: the coordinator's.")] = None,
) -> None:
    """Recompute the whole file of every open challenge, and rule; for the run's arbiter.

    The bytes and the signed lease come from the coordinator, the config and the versions from RUN. A challenge whose
    bytes, lease or version are missing stays open.
    """
    from shoal.client.challenge import arbitrate as rule
    from shoal.client.honest_rates import newest_rates
    from shoal.crypto.keys import Key
    from shoal.rundir import key_path, open_run
    from shoal.validate.evidence.arbiter import open_arbiter

    own = Key.load(key or key_path(run, "coordinator"))
    with open_arbiter(open_run(run)) as arbiter:
        if arbiter.run.config.model.dtype == "bfloat16":
            arbiter.rates = newest_rates(join, own, arbiter.run)
        found = rule(join, arbiter.run, own, arbiter.judge, console, arbiter.judge_as_begun)
    console.print(
        f"{found.upheld} challenges upheld, {found.refuted} refuted, {found.left_open} left open", highlight=False
    )


@dataclass(frozen=True)
class CreditFlags:
    """Which ledger, and whose credits."""

    join: Annotated[
        str | None, typer.Option("--join", metavar="URL", help="The run's coordinator, which says where the ledger is.")
    ] = None
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="DIR|NAME",
            help="Without a coordinator: the directory of the run, or of this machine's part in it; with --contract, "
            "the run's name.",
        ),
    ] = None
    rpc: Annotated[
        str | None, typer.Option("--rpc", metavar="URL", help="Without a coordinator: a node of the chain.")
    ] = None
    contract: Annotated[
        str | None, typer.Option("--contract", metavar="0x...", help="Without a coordinator: the contract's address.")
    ] = None
    created: Annotated[
        str | None, typer.Option("--created", metavar="0x...", help="With --contract: the transaction that created it.")
    ] = None
    key: Annotated[
        Path | None, typer.Option("--key", help="Key to sign with; default: this machine's (shoal identity).")
    ] = None

    @contextmanager
    def teller(self) -> "Iterator[Teller]":
        """Enters acts on that ledger with that key."""
        from shoal.client.credits import teller
        from shoal.client.identity import default_key
        from shoal.client.ledger_access import Where
        from shoal.crypto.keys import Key

        where = Where(self.join, self.run, self.rpc, self.contract, self.created)
        with teller(where, Key.load(self.key or default_key()), console) as found:
            yield found


@ledger.command("stake")
@takes_options
def stake(amount: Amount, flags: CreditFlags) -> None:
    """Turn credits that this machine earned into stake: each ledger.stake_per_lease of it allows one more lease."""
    with flags.teller() as own:
        own.stake(amount)


@ledger.command("deposit")
@takes_options
def deposit(
    amount: Amount,
    flags: CreditFlags,
    node: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="The node whose stake it becomes; default: the key's own.")
    ] = None,
) -> None:
    """Deposit stake; a contract takes it in wei from the key's address.

    In a ledger that is a file, only the coordinator records deposits: pay the run's owner, who then runs
    shoal ledger deposit AMOUNT --node ADDRESS --join URL --key RUN/keys/coordinator.key.
    """
    with flags.teller() as own:
        own.deposit(amount, node)


@ledger.command("unbond")
@takes_options
def unbond(
    flags: CreditFlags,
    amount: Annotated[
        int | None, typer.Argument(metavar="AMOUNT", min=1, help="Credits, or wei; default: all stake.")
    ] = None,
) -> None:
    """Begin to release stake. It can be withdrawn once nothing the node submitted before can still be challenged."""
    with flags.teller() as own:
        own.unbond(amount)


@ledger.command("withdraw")
@takes_options
def withdraw(flags: CreditFlags) -> None:
    """Withdraw released stake and the earnings of this machine that can no longer be challenged.

    A contract pays it to the key's address, which pays the gas. A ledger that is a file records it as paid out, and
    the run's owner pays.
    """
    with flags.teller() as own:
        own.withdraw()


@ledger.command("advance")
@takes_options
def advance(flags: CreditFlags) -> None:
    """Advance a contract's clock by one step if its coordinator has not done so for ledger.stall seconds.

    Anyone may do this. It also settles what validators have had enough time for. Locks and the release of stake are
    counted in steps: repeat until they are over. If the ledger is a file, only the coordinator advances the clock.
    """
    with flags.teller() as own:
        own.advance()


@ledger.command("close")
@takes_options
def close(flags: CreditFlags) -> None:
    """Close a ledger, so that the rest of its treasury can be refunded.

    The coordinator does this by itself at the end of a run. Anyone may do it once others have advanced a contract's
    clock by as many steps as stake takes to be released.
    """
    with flags.teller() as own:
        own.close()


@ledger.command("refund")
@takes_options
def refund(flags: CreditFlags) -> None:
    """Withdraw this key's share of what is left of the treasury, if it funded the treasury and the ledger is closed."""
    with flags.teller() as own:
        own.refund()
