"""Gas balances: which roles can pay for transactions on the run's chain, and funds for them on a development chain."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from shoal.config import RunConfig
from shoal.crypto.keys import checked_address, checksummed
from shoal.errors import LedgerError
from shoal.ledger.evm.deployed import WAIT_S, chain_at
from shoal.ledger.evm.rpc import Chain
from shoal.rundir import role_key, validator_names

if TYPE_CHECKING:
    from web3.types import TxParams

DEV_WEI = 10**20


def show_gas(config: RunConfig, run: Path, dev: bool, console: Console) -> None:
    """Balances of a run's own roles; with `dev`, after each was given some by the chain's first unlocked account."""
    wanted = config.ledger
    if not wanted.rpc:
        raise LedgerError(f"run {config.name}: its ledger is a file, and needs no gas; ledger.rpc names a chain")
    chain = chain_at(wanted.rpc)
    named = [checked_address(address) for address in config.swarm.validators]
    validators = named or [role_key(run, name).address for name in validator_names(config)]
    purses = [("coordinator", role_key(run, "coordinator").address), *(("validator", who) for who in validators)]
    for role, address in purses:
        if dev:
            _give(chain, address)
        has = chain.balance(address)
        console.print(f"{role:11}  {checksummed(address)}  {has:,} wei", highlight=False, soft_wrap=True)
    if wanted.gas:
        said = f"the coordinator tops up each validator to {wanted.gas:,} wei (ledger.gas)"
        console.print(said, highlight=False, soft_wrap=True)


def _give(chain: Chain, address: str) -> None:
    eth = chain.web3.eth
    unlocked = chain.ask("its accounts", lambda: eth.accounts)
    if not unlocked:
        raise LedgerError(f"chain {chain.url}: has no unlocked account; --dev is for development chains such as anvil")
    gift: TxParams = {
        "from": unlocked[0],
        "to": eth.w3.to_checksum_address(address),
        "value": eth.w3.to_wei(DEV_WEI, "wei"),
    }
    digest = chain.ask("some money", lambda: eth.send_transaction(gift))
    chain.ask("some money", lambda: eth.wait_for_transaction_receipt(digest, timeout=WAIT_S))
