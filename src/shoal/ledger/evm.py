"""The ledger as a contract on any EVM chain. The rules are the contract's; who sends a transaction is its author.

The chain orders entries and keeps them, so there are no seals and no heads here. Submissions are entered by their
Merkle root; the leaves lie in `folder` until the batch is settled, when they go to the chain with the transaction.
"""

import json
import threading
import time
from pathlib import Path
from typing import Any, Self, get_args

from hexbytes import HexBytes
from web3.contract.contract import ContractFunction
from web3.types import TxData, TxParams, Wei

from shoal.errors import LedgerError
from shoal.files import make_directory, write_whole
from shoal.keys import Key, checksummed
from shoal.ledger.acts import (
    Act,
    Challenge,
    Commit,
    Deposit,
    Fund,
    Head,
    Leaf,
    Open,
    Register,
    Reveal,
    Rule,
    Settle,
    Terms,
    Unbond,
    Withdraw,
    Work,
    masks,
)
from shoal.ledger.contract import compiled
from shoal.ledger.interface import Standing, Totals
from shoal.ledger.merkle import keccak_text, merkle_proof
from shoal.ledger.refusal import Code, Refused
from shoal.ledger.rpc import Chain, Reverted, Sent
from shoal.ledger.state import Status

KINDS = {
    kind: number
    for number, kind in enumerate(
        (Register, Fund, Deposit, Unbond, Withdraw, Work, Commit, Reveal, Settle, Challenge, Rule), start=1
    )
}
STATUSES: tuple[Status, ...] = ("active", "suspended", "banned")


class EvmLedger:
    """A ledger on a chain, through one of its nodes."""

    def __init__(self, chain: Chain, address: str, run: str, folder: Path) -> None:
        self.chain, self.address, self._run, self._folder = chain, address, run, folder
        eth = chain.web3.eth
        self._contract = eth.contract(address=chain.web3.to_checksum_address(address), abi=compiled().abi)
        self._lock = threading.Lock()
        self.spent_s = 0.0
        """Seconds that entering took."""
        self.last: Sent | None = None

    @classmethod
    def deploy(cls, chain: Chain, key: Key, run: str, terms: Terms, folder: Path) -> Self:
        """A new contract; its coordinator is who deploys it."""
        make_directory(folder)
        code = compiled()
        factory = chain.web3.eth.contract(abi=code.abi, bytecode=code.bytecode)
        values = {**terms.model_dump(), "arbiter": checksummed(terms.arbiter), "beacon": bytes.fromhex(terms.beacon)}
        fields = next(entry for entry in code.abi if entry["type"] == "constructor")["inputs"][1]["components"]
        struct = tuple(values[field["name"]] for field in fields)
        call = factory.constructor(keccak_text(run), struct, [checksummed(address) for address in terms.validators])
        data: TxParams = {"data": call.data_in_transaction}
        try:
            sent = chain.send(key, "the contract", data)
        except Reverted as error:
            raise Refused(_known(error.code), f"open: the contract refuses the terms ({error.code})") from None
        receipt = chain.ask("the contract", lambda: chain.web3.eth.get_transaction_receipt(sent.hash))  # type: ignore[arg-type]
        address = receipt["contractAddress"]
        if address is None:
            raise LedgerError(f"chain {chain.url}: made no contract of transaction {sent.hash}")
        return cls(chain, address.lower(), run, folder)

    @classmethod
    def at(cls, chain: Chain, address: str, run: str, folder: Path) -> Self:
        """The ledger of a run that is there already, if it is one."""
        make_directory(folder)
        place = chain.web3.to_checksum_address(address)
        code = chain.ask("the contract's code", lambda: chain.web3.eth.get_code(place))
        if not code.startswith(bytes.fromhex(compiled().runtime.removeprefix("0x"))):
            raise LedgerError(f"chain {chain.url}: at {address} is no ledger of this version of Shoal")
        ledger = cls(chain, address.lower(), run, folder)
        if ledger._read(ledger._contract.functions.RUN()) != keccak_text(run):
            raise LedgerError(f"chain {chain.url}: the ledger at {address} is of another run than {run}")
        chain.tend()
        return ledger

    @property
    def run(self) -> str:
        return self._run

    def enter(self, key: Key, act: Act) -> bool:
        with self._lock:
            began = time.monotonic()
            try:
                self.chain.tend()
                return self._enter(key, act)
            finally:
                self.spent_s += time.monotonic() - began

    def _enter(self, key: Key, act: Act) -> bool:
        if isinstance(act, Work):
            self.learn(act)
        function, arguments, value = self._call(act)
        data = self._contract.encode_abi(function, arguments)
        try:
            transaction: TxParams = {"to": self._contract.address, "data": data, "value": Wei(value)}
            self.last = self.chain.send(key, act.name, transaction)
        except Reverted as error:
            before = self._entered(key.address, act)
            if (data, value) in before:
                return False
            code: Code = "taken" if before else _known(error.code)
            raise Refused(code, f"{act.name}: the contract refuses it ({error.code or 'it reverted'})") from None
        return True

    def learn(self, work: Work) -> None:
        """Keeps the leaves of a batch, which the chain has only the root of."""
        tree = [leaf.model_dump() for leaf in work.leaves]
        write_whole(self._leaves_file(work.batch), json.dumps(tree).encode(), durable=True)

    def leaves(self, batch: int) -> list[Leaf]:
        try:
            return [Leaf(**tree) for tree in json.loads(self._leaves_file(batch).read_bytes())]
        except FileNotFoundError:
            raise LedgerError(
                f"batch {batch}: its submissions are not in {self._folder}; `learn` them from the coordinator"
            ) from None

    def node(self, address: str) -> Standing | None:
        registered, *amounts, status = self._read(self._contract.functions.node(checksummed(address)))
        numbers: tuple[int, int, int, int, int, int, int] = tuple(amounts)
        return Standing(*numbers, STATUSES[status]) if registered else None

    def judge(self, address: str) -> int | None:
        is_judge, standing = self._read(self._contract.functions.judge(checksummed(address)))
        return int(standing) if is_judge else None

    def jury(self, batch: int) -> tuple[str, ...]:
        return tuple(address.lower() for address in self._read(self._contract.functions.jury(batch)))

    def outcomes(self, batch: int) -> str:
        settled, count, accepted, rejected, excluded = self._read(self._contract.functions.outcomes(batch))
        if not settled:
            return ""
        kinds = (("a", accepted), ("r", rejected), ("x", excluded))
        return "".join(next((kind for kind, mask in kinds if mask >> i & 1), "v") for i in range(count))

    def totals(self) -> Totals:
        return Totals(*self._read(self._contract.functions.totals()))

    def close(self) -> None:
        """There is nothing to close."""

    def _read(self, function: ContractFunction) -> Any:
        return self.chain.ask(function.fn_name, function.call)

    def _leaves_file(self, batch: int) -> Path:
        return self._folder / f"batch-{batch:06d}.json"

    def _call(self, act: Act) -> tuple[str, list[Any], int]:
        """The contract's function for an act, its arguments, and the wei that go with it."""
        match act:
            case Register():
                return "register", [checksummed(act.node), act.role == "validator"], 0
            case Fund():
                return "fund", [keccak_text(act.id)], act.amount
            case Deposit():
                return "deposit", [keccak_text(act.id), checksummed(act.node)], act.amount
            case Unbond():
                return "unbond", [keccak_text(act.id), act.amount], 0
            case Withdraw():
                return "withdraw", [keccak_text(act.id)], 0
            case Work():
                hashes = [bytes.fromhex(act.beacon), bytes.fromhex(act.plants)]
                return "work", [act.batch, act.step, act.root, len(act.leaves), *hashes], 0
            case Commit():
                return "commit", [act.batch, bytes.fromhex(act.hash)], 0
            case Reveal():
                evidence = [bytes.fromhex(one) for one in act.evidence]
                salt = bytes.fromhex(act.salt)
                return "reveal", [act.batch, len(act.votes), *masks(act.votes), evidence, salt], 0
            case Settle():
                return "settle", self._settle(act), 0
            case Challenge():
                return "challenge", [act.batch, act.index, act.claim == "a", bytes.fromhex(act.evidence)], 0
            case Rule():
                return "rule", self._rule(act), 0
            case Head() | Open():
                raise Refused("pointless", f"{act.name}: a chain signs its own history")

    def _settle(self, act: Settle) -> list[Any]:
        leaves = self._known_leaves(act.batch, act.name)
        if act.plants and len(act.plants) != len(leaves):
            raise Refused("mismatch", f"{act.name}: {len(act.plants)} letters for {len(leaves)} submissions")
        opened = [*masks(act.plants), bool(act.plants), bytes.fromhex(act.salt)]
        return [act.batch, [_leaf(leaf) for leaf in leaves], *opened]

    def _known_leaves(self, batch: int, name: str) -> list[Leaf]:
        if batch >= (count := self.totals().batches):
            raise Refused("unknown", f"{name}: there is no batch {batch}; the last is {count - 1}")
        return self.leaves(batch)

    def _rule(self, act: Rule) -> list[Any]:
        leaves = self._known_leaves(act.batch, act.name)
        if act.index >= len(leaves):
            raise Refused("early", f"{act.name}: batch {act.batch} has {len(leaves)} submissions")
        step = self._read(self._contract.functions.step_of(act.batch))
        proof = merkle_proof([leaf.hash(step) for leaf in leaves], act.index)
        leaf = _leaf(leaves[act.index])
        return [act.batch, act.index, checksummed(act.challenger), act.upheld, leaf, proof]

    def _entered(self, author: str, act: Act) -> set[tuple[str, int]]:
        """Data and wei of the transactions with which this author entered acts of this kind and key."""
        event = self._contract.events.Entered()
        filters = {"author": checksummed(author), "kind": KINDS[type(act)], "key": _key(act)}
        logs = self.chain.ask("what was entered", lambda: event.get_logs(from_block=0, argument_filters=filters))
        found = [self._transaction(log["transactionHash"]) for log in logs]
        return {(f"0x{bytes(one['input']).hex()}", int(one["value"])) for one in found}

    def _transaction(self, digest: HexBytes) -> TxData:
        return self.chain.ask("a transaction", lambda: self.chain.web3.eth.get_transaction(digest))


def _leaf(leaf: Leaf) -> tuple[int, str, bytes, int]:
    return leaf.submission, checksummed(leaf.node), bytes.fromhex(leaf.sha256), leaf.tokens


def _key(act: Act) -> int:
    match act:
        case Register():
            return int(act.node, 16) | (act.role == "validator") << 160
        case Fund() | Deposit() | Unbond() | Withdraw():
            return int.from_bytes(keccak_text(act.id))
        case Challenge():
            return act.batch << 8 | act.index
        case Rule():
            return (act.batch << 8 | act.index) << 160 | int(act.challenger, 16)
        case Work() | Commit() | Reveal() | Settle():
            return act.batch
        case Head() | Open():
            return 0


def _known(code: str) -> Code:
    return code if code in get_args(Code) else "not-allowed"  # type: ignore[return-value]
