"""The contract that is a run's ledger: deployed or found again by its coordinator, and read by others."""

import os
from pathlib import Path

from shoal.crypto.keys import Key
from shoal.errors import LedgerError
from shoal.extras import require
from shoal.files import write_whole
from shoal.ledger.acts import Terms
from shoal.ledger.contract_file import CONTRACT_FILE, Deployed, remembered
from shoal.ledger.store import LEDGER_FILE

try:
    from shoal.ledger.evm.ledger import EvmLedger
    from shoal.ledger.evm.rpc import Chain
except ImportError:
    require("chain", "ledger on a chain", LedgerError)
    raise

JOURNAL = "sent.json"
OWN_RPC = "SHOAL_RPC"
"""A machine's own way to the chain, in place of the run's: a client of somebody else's RPC node has to believe it."""
# A chain that is slower is not waited for at a stretch: who waits comes back, and what is under way stays so.
WAIT_S, ANSWER_S = 15.0, 5.0


def way_to(rpc: str) -> str:
    """The address that is asked where a run names this one."""
    return os.environ.get(OWN_RPC) or rpc


def chain_at(rpc: str, journal: Path | None = None, confirmations: int = 1, max_fee: int | None = None) -> Chain:
    """A run's chain with short waits, for roles that have other things to do."""
    return Chain(way_to(rpc), journal, wait_s=WAIT_S, answer_s=ANSWER_S, confirmations=confirmations, max_fee=max_fee)


def contract_of(
    run_dir: Path, key: Key, run: str, terms: Terms, *, rpc: str, contract: str, created: str, confirmations: int
) -> EvmLedger:
    """The coordinator's own contract: the one of its config, that of the last time, or a new one, in this order.

    One that is known is not looked at before it is needed: its chain may be away, and the run goes on.
    """
    if (run_dir / LEDGER_FILE).exists():
        raise LedgerError(
            f"run {run_dir}: was begun with a ledger of its own, in {LEDGER_FILE}; continue without ledger.rpc, or "
            "start another run"
        )
    chain = chain_at(rpc, run_dir / JOURNAL, confirmations)
    known = remembered(run_dir)
    if known is not None:
        if contract not in ("", known.contract):
            raise LedgerError(
                f"run {run_dir}: its contract is {known.contract}, ledger.contract says {contract}; leave it empty"
            )
        if known.rpc != rpc:
            write_whole(run_dir / CONTRACT_FILE, known.model_copy(update={"rpc": rpc}).model_dump_json().encode())
        return EvmLedger(chain, known.contract, known.created, run)
    ledger = EvmLedger.at(chain, contract, created, run) if contract else EvmLedger.deploy(chain, key, run, terms)
    owner, beacon = ledger.look(lambda state: (state.coordinator, state.terms.beacon))
    if owner != key.address or beacon != terms.beacon:
        raise LedgerError(
            f"contract {contract}: was deployed by {owner}, or for another run than {run} of the coordinator "
            f"{key.address}, who alone could enter work there; leave ledger.contract empty"
        )
    found = Deployed(run=run, chain=chain.id, contract=ledger.address, created=ledger.created, rpc=rpc)
    write_whole(run_dir / CONTRACT_FILE, found.model_dump_json().encode(), durable=True)
    return ledger


def reading(known: Deployed) -> EvmLedger:
    """The contract as of now, for readers."""
    return EvmLedger.at(chain_at(known.rpc), known.contract, known.created, known.run)
