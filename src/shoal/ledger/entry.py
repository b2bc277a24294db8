"""One entry: an act signed by its author, linked to the entry before by hash, sealed by the coordinator.

Everything is canonical JSON (RFC 8785), so that an entry has one form only and any other is found.
The author signs what is done, for this one ledger; the coordinator seals where it stands. So nobody can put words into
a node's or a validator's mouth, and the coordinator cannot deny an order that it gave out.
"""

import hashlib
from typing import Annotated, Self, TypeVar

from pydantic import Field, ValidationError

from shoal.crypto.keys import Key
from shoal.crypto.signed import canonical, check_signed, message
from shoal.errors import LedgerError
from shoal.ledger.acts import ACT, FORMAT, NO_HASH, Act, Address, Hash, Open, Record, Small

ACT_DOMAIN = "shoal ledger act 2"
SEAL_DOMAIN = "shoal ledger seal 2"

Signature = Annotated[str, Field(pattern=r"^0x[0-9a-f]{130}$")]
Time = Annotated[int, Field(ge=0, lt=1 << 53)]
RunName = Annotated[str, Field(pattern=r"^[ -~]{1,200}$")]

AnyRecord = TypeVar("AnyRecord", bound=Record)


class Statement(Record):
    """An act and its author's signature. `ledger` is the hash of the ledger's first entry: it counts nowhere else."""

    run: RunName
    ledger: Hash
    author: Address
    act: Annotated[Act, Field(discriminator="kind")]
    signature: Signature

    @classmethod
    def sign(cls, key: Key, run: str, ledger: str, act: Act) -> Self:
        signature = key.sign(_act_message(run, ledger, act))
        return cls(run=run, ledger=ledger, author=key.address, act=act, signature=signature)

    def check(self) -> None:
        """A LedgerError unless the author signed it."""
        said = _act_message(self.run, self.ledger, self.act)
        check_signed(said, self.signature, self.author, self.act.name, LedgerError)


class Entry(Record):
    """A statement in its place."""

    number: Small
    time: Time
    """Milliseconds since 1970 by the coordinator's clock; for people, no rule uses it."""
    previous: Hash
    statement: Statement
    hash: Hash
    seal: Signature

    @classmethod
    def after(cls, key: Key, previous: "Entry | None", statement: Statement, time: int) -> Self:
        """The next entry, sealed with the coordinator's key."""
        number, link = (previous.number + 1, previous.hash) if previous else (0, NO_HASH)
        time = max(time, previous.time) if previous else time
        digest = _hash(number, time, link, statement)
        seal = key.sign(_seal_message(statement.run, number, digest))
        return cls(number=number, time=time, previous=link, statement=statement, hash=digest, seal=seal)

    def check(self, previous: "Entry | None", coordinator: str, ledger: str) -> None:
        """A LedgerError unless it belongs after `previous` in this ledger and is signed as it should be."""
        said, act = self.statement, self.statement.act
        number, link = (previous.number + 1, previous.hash) if previous else (0, NO_HASH)
        if self.number != number:
            raise LedgerError(f"has number {self.number} where {number} should stand")
        if self.previous != link:
            raise LedgerError(f"follows {self.previous[:12]}, the entry before it is {link[:12]}")
        if previous and (self.time < previous.time or said.run != previous.statement.run):
            raise LedgerError("is older than the entry before it, or of another run")
        if said.ledger != ledger or isinstance(act, Open) != (previous is None):
            raise LedgerError(f"{act.name} was signed for ledger {said.ledger[:12]}, this is {ledger[:12]}")
        if _hash(self.number, self.time, self.previous, said) != self.hash:
            raise LedgerError(f"its content does not have the hash {self.hash[:12]} that it gives")
        said.check()
        check_signed(_seal_message(said.run, self.number, self.hash), self.seal, coordinator, "the seal", LedgerError)

    def to_line(self) -> str:
        return canonical(self.model_dump(mode="json"))

    @classmethod
    def from_line(cls, line: str | bytes) -> Self:
        """An entry out of its one line of JSON; LedgerError for anything else."""
        raw = line.encode() if isinstance(line, str) else line
        if b'"kind":"open"' in raw and f'"format":{FORMAT},'.encode() not in raw:
            raise LedgerError(
                f"is of a ledger of another version of Shoal; this one reads format {FORMAT}: read it with the version "
                "that wrote it, or begin another run"
            )
        entry = parsed(cls, raw)
        if entry.to_line().encode() != raw:
            raise LedgerError("is not written as it should be: canonical JSON (RFC 8785)")
        return entry


def parsed(kind: type[AnyRecord], line: str | bytes) -> AnyRecord:
    try:
        return kind.model_validate_json(line)
    except (ValidationError, ValueError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        where = ".".join(str(part) for part in first["loc"])
        raise LedgerError(f"cannot be read: {where or 'the line'}: {first['msg']}") from None


def _act_message(run: str, ledger: str, act: Act) -> bytes:
    return message(ACT_DOMAIN, run, ledger, canonical(ACT.dump_python(act, mode="json")))


def _seal_message(run: str, number: int, digest: str) -> bytes:
    return message(SEAL_DOMAIN, run, str(number), digest)


def _hash(number: int, time: int, previous: str, statement: Statement) -> str:
    tree = {"number": number, "time": time, "previous": previous, "statement": statement.model_dump(mode="json")}
    return hashlib.sha256(canonical(tree).encode()).hexdigest()
