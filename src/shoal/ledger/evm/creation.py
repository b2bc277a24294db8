"""Contract verification: a contract is believed only if its creation transaction has our code and terms as input.

The code at an address says nothing about what is in its storage: the author of the code that runs at a contract's
creation can plant a balance first, and then leave our code there. So the transaction that created the contract is
looked at: sent by an account to nobody, with our code and the terms as its input, and nothing else.
"""

from dataclasses import dataclass
from typing import Any

from eth_abi.exceptions import DecodingError
from eth_typing import HexStr
from eth_utils.abi import collapse_if_tuple
from pydantic import ValidationError
from web3.exceptions import TransactionNotFound

from shoal.crypto.keys import checksummed
from shoal.errors import LedgerError
from shoal.ledger.acts import Terms
from shoal.ledger.evm.contract import compiled
from shoal.ledger.evm.rpc import Chain, ChainError
from shoal.ledger.merkle import keccak_text


@dataclass(frozen=True, slots=True)
class Creation:
    """What a contract began with."""

    coordinator: str
    terms: Terms
    block: int


def creation_input(run: str, terms: Terms) -> HexStr:
    """What is sent to create a run's contract."""
    values = {**terms.model_dump(), "arbiter": checksummed(terms.arbiter), "beacon": bytes.fromhex(terms.beacon)}
    struct = tuple(values[name] for name in _term_names())
    validators = [checksummed(address) for address in terms.validators]
    arguments = Chain.codec.encode(_types(), [keccak_text(run), struct, validators])
    return HexStr(f"0x{compiled().bytecode.removeprefix('0x')}{arguments.hex()}")


def read_creation(chain: Chain, created: str, address: str, run: str) -> Creation:
    """What a run's contract began with; LedgerError unless that transaction made it, and made it as we do."""
    what = f"contract {address} on chain {chain.url}"
    try:
        sent: Any = chain.ask("a transaction", lambda: chain.web3.eth.get_transaction(HexStr(created)))
        receipt: Any = chain.ask("a receipt", lambda: chain.web3.eth.get_transaction_receipt(HexStr(created)))
    except TransactionNotFound:
        raise ChainError(
            f"{what}: the chain has no transaction {created}, which should have created it; is it the right chain, "
            "up to date, and not reset?"
        ) from None
    made = receipt["contractAddress"]
    if sent["to"] is not None or receipt["status"] != 1 or made is None or made.lower() != address:
        raise LedgerError(f"{what}: was not created by transaction {created}; do not use it")
    data, code = bytes(sent["input"]), bytes.fromhex(compiled().bytecode.removeprefix("0x"))
    if not data.startswith(code):
        raise LedgerError(
            f"{what}: was created with other code than that of a ledger of this version of Shoal, and may hold "
            "balances that nobody sees; do not use it"
        )
    try:
        of_run, struct, validators = Chain.codec.decode(_types(), data[len(code) :])
        values = dict(zip(_term_names(), struct, strict=True))
        values |= {"beacon": bytes(values["beacon"]).hex(), "validators": validators}
        terms = Terms(**values)
    except (DecodingError, ValidationError) as error:
        raise LedgerError(f"{what}: was created with terms that cannot be read ({error})") from None
    if of_run != keccak_text(run):
        raise LedgerError(f"{what}: is the ledger of another run than {run}")
    if creation_input(run, terms).removeprefix("0x") != data.hex():
        raise LedgerError(f"{what}: was created with more than its terms; do not use it")
    return Creation(sent["from"].lower(), terms, int(receipt["blockNumber"]))


def _inputs() -> Any:
    return next(entry for entry in compiled().abi if entry["type"] == "constructor")["inputs"]


def _types() -> list[str]:
    return [collapse_if_tuple(one) for one in _inputs()]


def _term_names() -> list[str]:
    """The terms in the contract's order."""
    return [field["name"] for field in _inputs()[1]["components"]]
