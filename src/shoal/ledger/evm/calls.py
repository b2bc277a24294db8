"""ABI encoding: acts as calls of the contract, and acts decoded from its log.

The contract has only the root of a batch. The submissions themselves stand in the coordinator's transaction, after what
`work` is called with: there the contract does not look, and everybody else can.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.crypto.keys import checksummed
from shoal.errors import LedgerError
from shoal.ledger.acts import (
    Act,
    Advance,
    Challenge,
    Close,
    Commit,
    Deposit,
    Fund,
    Head,
    Leaf,
    Open,
    Refund,
    Register,
    Reveal,
    Rule,
    Settle,
    Stake,
    Unbond,
    Withdraw,
    Work,
    masks,
)
from shoal.ledger.merkle import keccak_text, keccak_words, merkle_proof, merkle_root
from shoal.ledger.refusal import Refused

KINDS: tuple[type[Act], ...] = (
    Register,
    Fund,
    Deposit,
    Unbond,
    Withdraw,
    Work,
    Commit,
    Reveal,
    Settle,
    Challenge,
    Rule,
    Stake,
    Advance,
    Close,
    Refund,
)
"""In the order of their numbers in the contract, from 1 on."""
PACKED = 4 + 20 + 32 + 5
ADDRESS = (1 << 160) - 1
LeavesOf = Callable[[int], Sequence[Leaf]]


def call_of(act: Act, leaves_of: LeavesOf, step_of: Callable[[int], int]) -> tuple[str, list[Any], int]:
    """The contract's function for an act, its arguments, and the wei that go with it."""
    match act:
        case Register():
            return "register", [checksummed(act.node)], 0
        case Fund():
            return "fund", [keccak_text(act.id)], act.amount
        case Deposit():
            return "deposit", [keccak_text(act.id), checksummed(act.node)], act.amount
        case Stake():
            return "stake", [keccak_text(act.id), act.amount], 0
        case Unbond():
            return "unbond", [keccak_text(act.id), act.amount], 0
        case Withdraw():
            return "withdraw", [keccak_text(act.id)], 0
        case Work():
            hashes = [bytes.fromhex(act.beacon), bytes.fromhex(act.plants)]
            return "work", [act.batch, act.step, act.root, len(act.leaves), *hashes], 0
        case Advance():
            return "advance", [act.step], 0
        case Close():
            return "close", [], 0
        case Refund():
            return "refund", [], 0
        case Commit():
            return "commit", [act.batch, bytes.fromhex(act.hash)], 0
        case Reveal():
            evidence = [bytes.fromhex(one) for one in act.evidence]
            salt = bytes.fromhex(act.salt)
            return "reveal", [act.batch, len(act.votes), *masks(act.votes), evidence, salt], 0
        case Settle():
            return "settle", _settle(act, leaves_of(act.batch)), 0
        case Challenge():
            return "challenge", [act.batch, act.index, act.claim == "a", bytes.fromhex(act.evidence)], 0
        case Rule():
            return "rule", _rule(act, leaves_of(act.batch), step_of(act.batch)), 0
        case Head() | Open():
            raise Refused("pointless", f"{act.name}: a chain signs its own history")


def _settle(act: Settle, leaves: Sequence[Leaf]) -> list[Any]:
    if act.plants and len(act.plants) != len(leaves):
        raise Refused("mismatch", f"{act.name}: {len(act.plants)} letters for {len(leaves)} submissions")
    opened = [*masks(act.plants), bool(act.plants), bytes.fromhex(act.salt)]
    return [act.batch, [_leaf(leaf) for leaf in leaves], *opened]


def _rule(act: Rule, leaves: Sequence[Leaf], step: int) -> list[Any]:
    if act.index >= len(leaves):
        raise Refused("early", f"{act.name}: batch {act.batch} has {len(leaves)} submissions")
    proof = merkle_proof([leaf.hash(step) for leaf in leaves], act.index)
    answer = [act.upheld, act.excused]
    return [act.batch, act.index, checksummed(act.challenger), *answer, _leaf(leaves[act.index]), proof]


def _leaf(leaf: Leaf) -> tuple[int, str, bytes, int]:
    return leaf.submission, checksummed(leaf.node), bytes.fromhex(leaf.sha256), leaf.tokens


def packed(leaves: Sequence[Leaf]) -> bytes:
    """The submissions of a batch, as they stand behind the call."""
    return b"".join(
        leaf.submission.to_bytes(4, "big")
        + bytes.fromhex(leaf.node[2:])
        + bytes.fromhex(leaf.sha256)
        + leaf.tokens.to_bytes(5, "big")
        for leaf in leaves
    )


def unpacked(data: bytes, step: int, root: bytes, count: int) -> tuple[Leaf, ...]:
    """The submissions at the end of a transaction; LedgerError unless they are those of the root."""
    tail = data[len(data) - count * PACKED :] if count else b""
    parts = [tail[i : i + PACKED] for i in range(0, len(tail), PACKED)]
    leaves = tuple(
        Leaf(
            submission=int.from_bytes(part[:4]),
            node=f"0x{part[4:24].hex()}",
            sha256=part[24:56].hex(),
            tokens=int.from_bytes(part[56:]),
        )
        for part in parts
    )
    if len(leaves) != count or merkle_root([leaf.hash(step) for leaf in leaves]) != root:
        raise LedgerError("its submissions are not those of its root; the coordinator has kept them to itself")
    return leaves


def act_of(author: str, logged: Mapping[str, Any], count_of: Callable[[int], int], leaves_of: LeavesOf) -> Act:
    """What an author entered, out of the contract's log. The leaves are asked for where it is work."""
    key, one, two, three = (int(logged[name]) for name in ("key", "one", "two", "three"))
    kind = KINDS[int(logged["kind"]) - 1]
    identity = named(author, key.to_bytes(32))
    if kind is Register:
        return Register(node=_address(key))
    if kind is Fund:
        return Fund(id=identity, amount=one)
    if kind is Deposit:
        return Deposit(id=identity, node=_address(two), amount=one)
    if kind is Stake:
        return Stake(id=identity, amount=one)
    if kind is Unbond:
        return Unbond(id=identity, amount=one)
    if kind is Withdraw:
        return Withdraw(id=identity)
    if kind is Work:
        return Work(batch=key, step=one, leaves=tuple(leaves_of(key)), beacon=f"{two:064x}", plants=f"{three:064x}")
    if kind is Commit:
        return Commit(batch=key, hash=f"{one:064x}")
    if kind is Reveal:
        evidence = tuple(bytes(proof).hex() for proof in logged["evidence"])
        votes = _letters(one, two, count_of(key), "v")
        return Reveal(batch=key, votes=votes, evidence=evidence, salt=f"{three:064x}")
    if kind is Settle:
        batch = key & 0xFFFFFFFF
        plants = _letters(one, two, count_of(batch), ".") if key >> 32 else ""
        return Settle(batch=batch, plants=plants, salt=f"{three:064x}")
    if kind is Challenge:
        return Challenge(batch=key >> 8, index=key & 0xFF, claim="a" if one else "r", evidence=f"{two:064x}")
    if kind is Advance:
        return Advance(step=key)
    if kind is Close:
        return Close()
    if kind is Refund:
        return Refund()
    place = key >> 160
    challenger, upheld, excused = _address(key), bool(one), bool(two)
    return Rule(batch=place >> 8, index=place & 0xFF, challenger=challenger, upheld=upheld, excused=excused)


def as_logged(author: str, act: Act) -> Act:
    """An act as it comes back from the contract, which has only the hash of an id."""
    if isinstance(act, Fund | Deposit | Stake | Unbond | Withdraw):
        return act.model_copy(update={"id": named(author, keccak_text(act.id))})
    return act


def named(author: str, key: bytes) -> str:
    """An id that no two authors share."""
    return keccak_words(author, key).hex()


def _address(word: int) -> str:
    return f"0x{word & ADDRESS:040x}"


def _letters(accepted: int, rejected: int, count: int, other: str) -> str:
    return "".join("a" if accepted >> i & 1 else "r" if rejected >> i & 1 else other for i in range(count))
