"""JSON-RPC client for nodes that are slow, restart or reorganise: transactions are signed once, stored and resent
(idempotent).

Reading is repeated until the node answers or `wait_s` is over. A transaction is signed once, written down, and the same
bytes are sent until a block has them, also by the next process: whatever gets lost on the way, it happens once. What
was sent lately is kept, so that a reorganisation that drops it is noticed and it is sent again.
"""

import io
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from eth_account import Account as Signer
from eth_typing import HexStr
from hexbytes import HexBytes
from requests import PreparedRequest, Response, Session
from requests.exceptions import ReadTimeout, RequestException
from web3 import HTTPProvider, Web3
from web3.exceptions import BlockNotFound, ContractLogicError, TransactionNotFound, Web3Exception, Web3RPCError
from web3.types import TxParams, TxReceipt, Wei

from shoal.crypto.keys import Key, checksummed
from shoal.errors import AwayError, LedgerError
from shoal.files import write_whole
from shoal.wait import Wait

LOG = logging.getLogger("shoal.ledger")
ANSWER_S = 10.0
POLL_S = (0.005, 1.0)
SEND_AGAIN_S = 5.0
KEPT = 64
"""Transactions that are watched for being dropped; more than a reorganisation of any chain in use takes away."""
MAX_ANSWER = 256 << 20
MAX_FEE = 5 * 10**16
"""Wei that one transaction may cost who asks a node that somebody else names: it says what gas costs."""
# What nodes say of a transaction that they have.
KNOWN = ("already known", "already imported", "nonce too low", "transaction already", "known transaction")
T = TypeVar("T")


class ChainError(AwayError):
    """The chain, its node or an empty purse is in the way for now; what was to be entered can be entered later."""


class NoGasError(ChainError):
    """An address that cannot pay for its transaction."""


class Reverted(Exception):
    """The contract refuses; `code` is what it says."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class NotTaken(Exception):
    """A transaction that a node will not have, and why."""


class Wary(Session):
    """Asks the node that was named and no other one that it names, takes no answer without end, and tells it nothing of
    this machine's: a run card may name it, and requests would send it what ~/.netrc has for its host, or for any."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False

    def send(self, request: PreparedRequest, **kwargs: Any) -> Response:
        deadline = time.monotonic() + kwargs["timeout"]
        response = super().send(request, **{**kwargs, "allow_redirects": False, "stream": True})
        body = io.BytesIO()
        with response:
            while piece := response.raw.read1(1 << 16, decode_content=True):
                body.write(piece)
                if time.monotonic() > deadline:
                    raise ReadTimeout("an answer that does not end")
                if body.tell() > MAX_ANSWER:
                    raise RequestException(f"an answer of more than {MAX_ANSWER} bytes")
        body.seek(0)
        response.raw = body
        return response


@dataclass(frozen=True, slots=True)
class Sent:
    """A transaction that was signed, and the block that has it; -1 while none is known."""

    what: str
    sender: str
    count: int
    """How many the sender sent before: no two with the same count are ever in blocks."""
    raw: str
    hash: str
    block: int = -1
    block_hash: str = ""
    gas: int = 0


class Chain:
    """A chain behind one RPC address. Without a journal nothing that was sent is sent again."""

    codec = Web3().codec
    """Reads and writes what contracts are called with."""

    def __init__(
        self,
        url: str,
        journal: Path | None = None,
        *,
        wait_s: float = 120.0,
        answer_s: float = ANSWER_S,
        confirmations: int = 1,
        max_fee: int | None = None,
    ) -> None:
        self.url, self._journal = url, journal
        self._wait_s, self._confirmations, self._max_fee = wait_s, confirmations, max_fee
        kwargs = {"timeout": answer_s}
        provider = HTTPProvider(url, kwargs, session=Wary(), exception_retry_configuration=None)
        self.web3 = Web3(provider)
        self._sent = _read(journal)
        self._stopped = threading.Event()

    @cached_property
    def id(self) -> int:
        return self.ask("its id", lambda: self.web3.eth.chain_id)

    def stop(self) -> None:
        """Ends what waits for the chain, in any thread."""
        self._stopped.set()

    def balance(self, address: str) -> int:
        return self.ask("a balance", lambda: self.web3.eth.get_balance(self.web3.to_checksum_address(address)))

    def now(self) -> int:
        """Seconds since 1970, by the newest block; a chain that makes blocks only on demand may be behind the clock."""
        newest = self.ask("the newest block", lambda: self.web3.eth.get_block("latest"))
        return max(int(newest["timestamp"]), int(time.time()))

    def time_of(self, transaction: str) -> int:
        """When the block of a transaction was made: seconds since 1970."""
        receipt = self.ask("a receipt", lambda: self.web3.eth.get_transaction_receipt(HexStr(transaction)))
        return int(self.ask("a block", lambda: self.web3.eth.get_block(receipt["blockNumber"]))["timestamp"])

    def ask(self, what: str, question: Callable[[], T]) -> T:
        """The answer of the node, which is asked again while it is away."""
        wait = Wait(self._wait_s, 0.1, 2.0, self._pause)
        while True:
            try:
                return question()
            except ContractLogicError as error:
                raise Reverted(_code(error)) from None
            except (RequestException, OSError) as error:
                if not wait.pause():
                    raise ChainError(
                        f"chain {self.url}: did not answer for {self._wait_s:.0f} s when asked for {what} "
                        f"({type(error).__name__}); is the node up?"
                    ) from error
            except (BlockNotFound, TransactionNotFound):
                raise
            except Web3RPCError as error:
                if _has_no_money(error):
                    raise
                raise ChainError(f"chain {self.url}: refused to give {what} ({error})") from error
            except (Web3Exception, ValueError) as error:
                raise ChainError(
                    f"chain {self.url}: gave an invalid answer when asked for {what} ({error!r:.200})"
                ) from error

    def _pause(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise ChainError(f"chain {self.url}: stopped waiting for it because this process is ending")

    def send(self, key: Key, what: str, transaction: TxParams) -> Sent:
        """Signs and sends, and waits until a block has it. `Reverted` if the contract refuses, then or before."""
        sender = self.web3.to_checksum_address(key.address)
        wanted: TxParams = {**transaction, "from": sender}
        fees = self._fees(what, wanted)
        count = self.ask("the sender's count", lambda: self.web3.eth.get_transaction_count(sender, "pending"))
        fields = {**transaction, **fees, "nonce": count, "chainId": self.id}
        raw = bytes(Signer.sign_transaction(fields, key.export()).raw_transaction)
        signed = Sent(what, sender, count, raw.hex(), f"0x{Web3.keccak(raw).hex()}")
        self._keep([*self._sent, signed])
        try:
            receipt = self._deliver(signed)
        except NotTaken as error:
            self._keep(one for one in self._sent if one != signed)
            raise ChainError(f"{what}: the node of chain {self.url} refused it ({error})") from error
        if receipt["status"] == 0:  # something came between asking and the block
            self._keep(one for one in self._sent if one != signed)
            raise Reverted(self._why(wanted, receipt))
        sent = _in_block(signed, receipt)
        self._keep(sent if one == signed else one for one in self._sent)
        return sent

    def pay(self, key: Key, to: str, amount: int) -> None:
        """Wei for somebody else's gas."""
        self.send(key, f"gas for {to}", {"to": self.web3.to_checksum_address(to), "value": Wei(amount)})

    def _fees(self, what: str, wanted: TxParams) -> TxParams:
        """What a transaction may cost; NoGasError if its sender cannot pay that."""
        base = self.ask("the newest block", lambda: self.web3.eth.get_block("latest"))["baseFeePerGas"]
        tip = self.ask("the usual tip", lambda: self.web3.eth.max_priority_fee)
        price, sender = 2 * base + tip, str(wanted["from"])
        try:
            gas = self.ask(f"the price of {what}", lambda: self.web3.eth.estimate_gas(wanted))
        except Web3RPCError:
            gas = 0
        gas += gas // 4
        needed, has = int(wanted.get("value", 0)) + gas * price, self.balance(sender)
        if not gas or has < needed:
            raise NoGasError(
                f"{what}: {checksummed(sender.lower())} has {has} wei on chain {self.url} and needs "
                f"{needed if gas else f'more than {max(has, needed)}'} for it; send it some (on a development chain: "
                "shoal ledger gas RUN --dev). A run's coordinator gives its validators ledger.gas"
            )
        if self._max_fee is not None and gas * price > self._max_fee:
            raise NoGasError(
                f"{what}: chain {self.url} says that it costs up to {gas * price} wei, and for a node that a run card "
                f"names no more than {self._max_fee} are spent; if that is right, set SHOAL_RPC to a node you trust"
            )
        return {"gas": gas, "maxFeePerGas": Wei(price), "maxPriorityFeePerGas": tip}

    def _why(self, wanted: TxParams, receipt: TxReceipt) -> str:
        try:
            self.web3.eth.call(wanted, receipt["blockNumber"])
        except ContractLogicError as error:
            return _code(error)
        except (RequestException, OSError, Web3RPCError):
            pass
        return ""

    def tend(self) -> int:
        """Sends again what no block has: because a reorganisation dropped it, or nobody lived to see it. How much."""
        if not self._sent or self._is_there(self._sent[-1]):
            return 0
        gone = [sent for sent in self._sent if not self._is_there(sent)]
        LOG.warning("chain %s: %d transactions are in no block, and are sent again", self.url, len(gone))
        for sent in gone:
            receipt = self._again(sent)
            if receipt is not None and receipt["status"] == 1:
                there = _in_block(sent, receipt)
                self._keep(there if one == sent else one for one in self._sent)
                continue
            self._keep(one for one in self._sent if one != sent)
            LOG.warning("chain %s: %s is refused now; its author enters it again if needed", self.url, sent.what)
        return len(gone)

    def _again(self, sent: Sent) -> TxReceipt | None:
        """None if no block can ever have it: another transaction of the same sender has its place, or the node says
        no."""
        count = self.ask("the sender's count", lambda: self.web3.eth.get_transaction_count(sent.sender, "latest"))  # type: ignore[arg-type]
        if count > sent.count and not self._is_there(sent):
            return None
        try:
            return self._deliver(sent)
        except NotTaken as error:
            LOG.warning("chain %s: does not take %s again: %s", self.url, sent.what, error)
            return None

    def _deliver(self, sent: Sent) -> TxReceipt:
        """Sends the same bytes until they are in a block with enough blocks on top."""
        what, raw, digest = sent.what, bytes.fromhex(sent.raw), HexBytes(sent.hash)
        wait, send_at = Wait(self._wait_s, *POLL_S, self._pause), 0.0
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
            if not wait.pause():
                raise ChainError(
                    f"{what}: transaction {sent.hash} is in no block, or not deep enough, after "
                    f"{self._wait_s:.0f} s; it may still come: enter it again, which changes nothing if it has"
                )

    def _push(self, what: str, raw: bytes) -> None:
        def push() -> None:
            try:
                self.web3.eth.send_raw_transaction(raw)
            except (Web3RPCError, ValueError) as error:
                if not any(known in str(error).lower() for known in KNOWN):
                    raise NotTaken(str(error)) from error

        self.ask(f"taking {what}", push)

    def has_block(self, number: int, digest: str) -> bool:
        """Whether the chain still has the block with this number and hash."""
        try:
            block = self.ask("a block", lambda: self.web3.eth.get_block(number))
        except BlockNotFound:
            return False
        return bytes(block["hash"]).hex() == digest

    def _is_there(self, sent: Sent) -> bool:
        if sent.block >= 0 and self.has_block(sent.block, sent.block_hash):
            return True
        try:
            self.ask("a receipt", lambda: self.web3.eth.get_transaction_receipt(sent.hash))  # type: ignore[arg-type]
            return True
        except TransactionNotFound:
            return False

    def _keep(self, sent: Iterable[Sent]) -> None:
        self._sent = list(sent)[-KEPT:]
        if self._journal:
            write_whole(self._journal, json.dumps([asdict(one) for one in self._sent]).encode())


def _in_block(sent: Sent, receipt: TxReceipt) -> Sent:
    place = bytes(receipt["blockHash"]).hex()
    return replace(sent, block=receipt["blockNumber"], block_hash=place, gas=receipt["gasUsed"])


def _has_no_money(error: Web3RPCError) -> bool:
    return "insufficient" in str(error).lower()


def _read(journal: Path | None) -> list[Sent]:
    if journal is None:
        return []
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
