"""Resolves the ledger that a command is about: a coordinator's, or a contract whose coordinator may be gone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shoal.client.client import CoordinatorClient
from shoal.client.known_coordinators import PUBLIC, trusted
from shoal.client.ledger import ASK_S, Access, OnChain, access
from shoal.crypto.keys import Key
from shoal.errors import ConfigError, LedgerError, WaitError
from shoal.ledger.contract_file import Deployed, is_on_chain, remembered
from shoal.rundir import RUN_FILE, is_own, open_run
from shoal.shardcast.fetch.http import distance_to

WITHOUT = (
    "--run DIR with the directory of the run, or of this machine's part in it (in ~/.local/state/shoal); or "
    "--rpc URL --contract 0x... --created 0x... --run NAME"
)


@dataclass(frozen=True, slots=True)
class Where:
    """What was said of the place of a ledger."""

    join: str | None = None
    run: str | None = None
    """A directory, or with `contract` the run's name."""
    rpc: str | None = None
    contract: str | None = None
    created: str | None = None


@contextmanager
def reach_ledger(where: Where, key: Key) -> Iterator[Access]:
    """The ledger, spoken on with this key."""
    direct = (where.run, where.rpc, where.contract, where.created)
    if where.join and any(direct):
        raise ConfigError("--join: asks the coordinator where the ledger is; leave out --run, --rpc and --contract")
    if not where.join:
        if not where.run:
            raise ConfigError(f"ledger: which one? Give --join URL, or where its coordinator is gone, {WITHOUT}")
        yield _contract(where, where.run, key)
        return
    with CoordinatorClient(trusted(where.join), key, ASK_S) as link:
        try:
            found = access(link)
        except WaitError as error:
            raise WaitError(
                f"{error}. A contract can be used without its coordinator: in place of --join, give {WITHOUT}"
            ) from None
        yield found


def _contract(where: Where, run: str, key: Key) -> OnChain:
    if bool(where.contract) != bool(where.created) or (where.contract and not where.rpc):
        raise ConfigError(
            "--contract: a contract is believed by the transaction that created it; give all of --rpc, --contract and "
            "--created, as the run card has them under ledger"
        )
    if where.contract is None and not Path(run).is_dir():
        raise ConfigError(f"--run {run}: no such directory; with a run's name, give --rpc, --contract and --created")
    if where.contract is None and not is_on_chain(Path(run)):
        return _joined(Path(run), where.rpc, key)
    from pydantic import ValidationError

    from shoal.ledger.evm.deployed import chain_at
    from shoal.ledger.evm.ledger import EvmLedger

    if where.contract is None:
        known = remembered(Path(run))
        assert known is not None
        chain = chain_at(where.rpc or known.rpc)
        if chain.id != known.chain:
            raise LedgerError(f"chain {chain.url}: has id {chain.id}, that of run {run} has {known.chain}; give --rpc")
        return OnChain(EvmLedger(chain, known.contract, known.created, known.run), key)
    try:
        named = Deployed(run=run, chain=0, contract=where.contract, created=where.created or "", rpc=where.rpc or "")
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"--{first['loc'][0]} {first['input']}: {first['msg']}; lower case, with 0x, as the run card has it"
        ) from None
    return OnChain(EvmLedger(chain_at(named.rpc), named.contract, named.created, named.run), key)


def _joined(run: Path, rpc: str | None, key: Key) -> OnChain:
    """The contract that the card of somebody else's run named when this machine joined."""
    wanted = open_run(run).config if (run / RUN_FILE).is_file() else None
    if wanted is None or not wanted.ledger.contract:
        raise LedgerError(
            f"--run {run}: names no contract. A ledger that is a file is its coordinator's, who alone enters anything: "
            "give --join URL while it serves (the run's owner starts it again with shoal coordinator RUN)"
        )
    from shoal.ledger.evm.deployed import OWN_RPC, chain_at, way_to
    from shoal.ledger.evm.ledger import EvmLedger
    from shoal.ledger.evm.rpc import MAX_FEE

    ledger = wanted.ledger
    is_named = rpc is None and way_to(ledger.rpc) == ledger.rpc and not is_own(run)
    if is_named and distance_to(ledger.rpc) < PUBLIC:
        raise LedgerError(
            f"--run {run}: its run card named a chain's node at {ledger.rpc}, which is near this machine and is not "
            f"asked on a stranger's word; if this is intended, give --rpc {ledger.rpc}, or set {OWN_RPC}"
        )
    chain = chain_at(rpc or ledger.rpc, None, ledger.confirmations, MAX_FEE if is_named else None)
    return OnChain(EvmLedger(chain, ledger.contract, ledger.created, wanted.name), key)
