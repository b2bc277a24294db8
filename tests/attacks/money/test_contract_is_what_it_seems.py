"""A contract whose code is ours and whose storage is not: nobody may take it for a ledger."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import LedgerError
from shoal.ledger.evm.contract import compiled
from shoal.ledger.evm.creation import creation_input
from shoal.ledger.evm.ledger import EvmLedger
from shoal.ledger.evm.rpc import Chain
from tests.conftest import chain_or_skip
from tests.support.ledgers import COORDINATOR, RUN, evm_ledger, make_terms
from tests.support.servers.anvil import Anvil


@pytest.fixture(scope="module")
def chain() -> Iterator[Anvil]:
    with chain_or_skip() as chain:
        chain.enrich(COORDINATOR.address)
        yield chain


def returning(code: bytes, before: bytes = b"") -> bytes:
    """Creation code that does something first, and then leaves this code at the contract's address."""
    rest = bytes.fromhex(f"61{len(code):04x}8061{len(before) + 11:04x}5f395ff3")
    return before + rest + code


def planting(code: bytes) -> bytes:
    """Our code, with five coins for somebody in the storage."""
    store = b"\x7f" + (5 * 10**18).to_bytes(32) + b"\x7f" + (9).to_bytes(32) + b"\x55"
    return returning(code, store)


def nesting(init: bytes) -> bytes:
    """Creation code of a factory, which creates a contract with this creation code, and leaves nothing itself."""
    head = bytes.fromhex(f"61{len(init):04x}8061{22:04x}5f395f5ff06012575f5ffd5b5f5ff3")
    return head + init


def create(rpc: Chain, data: bytes) -> tuple[str, str]:
    sent = rpc.send(COORDINATOR, "a contract", {"data": data})
    receipt: Any = rpc.web3.eth.get_transaction_receipt(sent.hash)  # type: ignore[arg-type]
    return receipt["contractAddress"].lower(), sent.hash


def test_a_contract_with_a_planted_balance_is_no_ledger(chain: Anvil, tmp_path: Path) -> None:
    honest = evm_ledger(chain, tmp_path)
    rpc = honest.chain
    code = bytes(rpc.web3.eth.get_code(rpc.web3.to_checksum_address(honest.address)))
    assert code.startswith(bytes.fromhex(compiled().runtime.removeprefix("0x")))
    address, created = create(rpc, planting(code))
    assert bytes(rpc.web3.eth.get_code(rpc.web3.to_checksum_address(address))) == code  # so the code shows nothing
    assert int(chain.ask("eth_getStorageAt", address, "0x9", "latest"), 16) == 5 * 10**18
    with pytest.raises(LedgerError, match="created with other code"):
        EvmLedger.at(rpc, address, created, RUN)
    with pytest.raises(LedgerError, match="was not created by transaction"):
        EvmLedger.at(rpc, address, honest.created, RUN)


def test_a_contract_that_another_contract_created_is_no_ledger(chain: Anvil, tmp_path: Path) -> None:
    honest = evm_ledger(chain, tmp_path)
    rpc = honest.chain
    init = bytes.fromhex(creation_input(RUN, make_terms()).removeprefix("0x"))
    factory, created = create(rpc, nesting(init))
    child = "0x" + rpc.web3.keccak(b"\xd6\x94" + bytes.fromhex(factory[2:]) + b"\x01")[-20:].hex()
    code = bytes(rpc.web3.eth.get_code(rpc.web3.to_checksum_address(child)))
    assert code.startswith(bytes.fromhex(compiled().runtime.removeprefix("0x")))
    for address in (factory, child):
        with pytest.raises(LedgerError, match=r"was not created by|created with other code"):
            EvmLedger.at(rpc, address, created, RUN)


def test_a_contract_is_created_with_its_terms_and_nothing_more(chain: Anvil, tmp_path: Path) -> None:
    rpc = Chain(chain.url, tmp_path / "sent.json", wait_s=20.0)
    data = bytes.fromhex(creation_input(RUN, make_terms()).removeprefix("0x"))
    with pytest.raises(LedgerError, match="more than its terms"):
        EvmLedger.at(rpc, *create(rpc, data + bytes(32)), RUN)
    assert EvmLedger.at(rpc, *create(rpc, data), RUN).look(lambda state: state.terms) == make_terms()
