"""Talking to a chain through a node that may be late, away, or change its mind.

Reading is repeated until the node answers or `wait_s` is over. A transaction is signed once and the same bytes are sent
until a block has them: whatever gets lost on the way, it happens once. What was sent lately is kept, so that a
reorganisation that drops it is noticed and it is sent again.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from eth_account import Account as Signer
from requests.exceptions import RequestException
from web3 import HTTPProvider, Web3
from web3.exceptions import BlockNotFound, ContractLogicError, TransactionNotFound, Web3RPCError
from web3.types import TxParams, TxReceipt

from shoal.errors import LedgerError
from shoal.files import write_whole
from shoal.keys import Key

LOG = logging.getLogger("shoal.ledger")
ANSWER_S = 10.0
POLL_S = (0.005, 1.0)
SEND_AGAIN_S = 5.0
KEPT = 64
"""Transactions that are watched for being dropped; more than a reorganisation of any chain in use takes away."""
# What nodes say of a transaction that they have.
KNOWN = ("already known", "already imported", "nonce too low", "transaction already", "known transaction")
T = TypeVar("T")


class Reverted(Exception):
    """The contract refuses; `code` is what it says."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Sent:
    """A transaction that a block has."""

    what: str
    raw: str
    hash: str
    block: int
    block_hash: str
    gas: int


class Chain:
    """A chain behind one RPC address."""

    def __init__(
        self, url: str, journal: Path, *, wait_s: float = 120.0, answer_s: float = ANSWER_S, confirmations: int = 1
    ) -> None:
        self.url, self._journal = url, journal
        self._wait_s, self._confirmations = wait_s, confirmations
        provider = HTTPProvider(url, request_kwargs={"timeout": answer_s}, exception_retry_configuration=None)
        self.web3 = Web3(provider)
        self.id: int = self.ask("its id", lambda: self.web3.eth.chain_id)
        self._sent = _read(journal)

    def ask(self, what: str, question: Callable[[], T]) -> T:
        """The answer of the node, which is asked again while it is away."""
        deadline, pause = time.monotonic() + self._wait_s, 0.1
        while True:
            try:
                return question()
            except ContractLogicError as error:
                raise Reverted(_code(error)) from None
            except (RequestException, OSError) as error:
                if time.monotonic() > deadline:
                    raise LedgerError(
                        f"chain {self.url}: did not answer for {self._wait_s:.0f} s while asked for {what} "
                        f"({type(error).__name__}); is the node up?"
                    ) from error
                time.sleep(pause)
                pause = min(2 * pause, 2.0)

    def send(self, key: Key, what: str, transaction: TxParams) -> Sent:
        """Signs and sends, and waits until a block has it. `Reverted` if the contract refuses, then or before."""
        sender = self.web3.to_checksum_address(key.address)
        wanted: TxParams = {**transaction, "from": sender}
        gas = self.ask(f"the price of {what}", lambda: self.web3.eth.estimate_gas(wanted))
        base = self.ask("the newest block", lambda: self.web3.eth.get_block("latest"))["baseFeePerGas"]
        tip = self.ask("the usual tip", lambda: self.web3.eth.max_priority_fee)
        count = self.ask("the sender's count", lambda: self.web3.eth.get_transaction_count(sender, "pending"))
        fees = {"gas": gas + gas // 4, "maxFeePerGas": 2 * base + tip, "maxPriorityFeePerGas": tip}
        fields = {**transaction, **fees, "nonce": count, "chainId": self.id}
        raw = Signer.sign_transaction(fields, key.export()).raw_transaction
        receipt = self._deliver(what, bytes(raw))
        if receipt["status"] == 0:  # something came between asking and the block
            try:
                self.web3.eth.call(wanted, receipt["blockNumber"])
                code = ""
            except ContractLogicError as error:
                code = _code(error)
            raise Reverted(code)
        sent = _sent(what, bytes(raw), receipt)
        self._keep([*self._sent, sent])
        return sent

    def tend(self) -> int:
        """Sends again what a reorganisation dropped; how much that was."""
        if not self._sent or self._is_there(self._sent[-1]):
            return 0
        dropped = [sent for sent in self._sent if not self._is_there(sent)]
        LOG.warning("chain %s: was reorganised; %d transactions are sent again", self.url, len(dropped))
        again = {}
        for sent in dropped:
            receipt = self._deliver(sent.what, bytes.fromhex(sent.raw))
            if receipt["status"] == 0:
                raise LedgerError(f"{sent.what}: was undone by a reorganisation of the chain, and is refused now")
            again[sent.hash] = _sent(sent.what, bytes.fromhex(sent.raw), receipt)
        self._keep([again.get(sent.hash, sent) for sent in self._sent])
        return len(dropped)

    def _deliver(self, what: str, raw: bytes) -> TxReceipt:
        """Sends the same bytes until they are in a block with enough blocks on top."""
        digest = Web3.keccak(raw)
        deadline, send_at, pause = time.monotonic() + self._wait_s, 0.0, POLL_S[0]
        while True:
            if time.monotonic() >= send_at:
                self._push(what, raw)
                send_at = time.monotonic() + SEND_AGAIN_S
            try:
                receipt = self.ask(f"the receipt of {what}", lambda: self.web3.eth.get_transaction_receipt(digest))
                if self._confirmations == 1:
                    return receipt
                head = self.ask("the newest block", lambda: self.web3.eth.block_number)
                if head - receipt["blockNumber"] + 1 >= self._confirmations:
                    return receipt
            except TransactionNotFound:
                pass
            if time.monotonic() > deadline:
                raise LedgerError(
                    f"{what}: transaction 0x{digest.hex()} is in no block, or not deep enough, after "
                    f"{self._wait_s:.0f} s; it may still come: enter it again, which changes nothing if it has"
                )
            time.sleep(pause)
            pause = min(2 * pause, POLL_S[1])

    def _push(self, what: str, raw: bytes) -> None:
        try:
            self.ask(f"taking {what}", lambda: self.web3.eth.send_raw_transaction(raw))
        except (Web3RPCError, ValueError) as error:
            if not any(known in str(error).lower() for known in KNOWN):
                raise LedgerError(f"{what}: the chain's node does not take it ({error})") from error

    def _is_there(self, sent: Sent) -> bool:
        try:
            block = self.ask("a block", lambda: self.web3.eth.get_block(sent.block))
            if block["hash"].hex() == sent.block_hash:
                return True
            self.ask("a receipt", lambda: self.web3.eth.get_transaction_receipt(sent.hash))  # type: ignore[arg-type]
            return True
        except (BlockNotFound, TransactionNotFound):
            return False

    def _keep(self, sent: Iterable[Sent]) -> None:
        self._sent = list(sent)[-KEPT:]
        write_whole(self._journal, json.dumps([asdict(one) for one in self._sent]).encode())


def _sent(what: str, raw: bytes, receipt: TxReceipt) -> Sent:
    return Sent(
        what,
        raw.hex(),
        f"0x{bytes(receipt['transactionHash']).hex()}",
        receipt["blockNumber"],
        bytes(receipt["blockHash"]).hex(),
        receipt["gasUsed"],
    )


def _read(journal: Path) -> list[Sent]:
    try:
        return [Sent(**tree) for tree in json.loads(journal.read_bytes())]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        raise LedgerError(f"{journal}: cannot be read ({error}); remove it, and see that nothing is missing") from error


def _code(error: ContractLogicError) -> str:
    """The contract's own word, out of what the node makes of it."""
    data: Any = error.data
    if isinstance(data, str) and data.startswith("0x08c379a0"):
        raw = bytes.fromhex(data[10:])
        return raw[64 : 64 + int.from_bytes(raw[32:64])].decode(errors="replace")
    return str(error.message or error).rsplit(": ", 1)[-1]
