"""Ledger entries by kind: one class per act. The signer of an act is its author; `rules.py` says who may do what, and
when.

An act has a name among those of its author. Entering it a second time changes nothing, and another act under a name
that is taken is refused.
"""

from functools import lru_cache
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    TypeAdapter,
    model_serializer,
)

from shoal.ledger.merkle import keccak_text, keccak_words, merkle_root

MAX_LEAVES = 256
"""Submissions of one batch: a validator's votes on them fit into two words of a chain."""
MAX_VALIDATORS = 32
NO_HASH = "0" * 64
FORMAT: Literal[2] = 2
"""Of ledgers: another one is refused by name."""

Address = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-f]{40}$")]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
TxHash = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,80}$")]
Votes = Annotated[str, StringConstraints(pattern=rf"^[arv]{{1,{MAX_LEAVES}}}$")]
"""A letter a submission: accept, reject with evidence, or void, which costs the node nothing but the work."""
Small = Annotated[int, Field(ge=0, lt=1 << 32)]
Count = Annotated[int, Field(ge=1, lt=1 << 32)]
Amount = Annotated[int, Field(ge=0, lt=1 << 112)]
"""Credits; wei on a chain. The bound keeps sums and products within 256 bits."""
Tokens = Annotated[int, Field(ge=0, lt=1 << 40)]
Index = Annotated[int, Field(ge=0, lt=MAX_LEAVES)]


class Record(BaseModel):
    """Something that is written down: strict types, no more fields than named, and never changed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Terms(Record):
    """What a ledger goes by, fixed when it is opened."""

    arbiter: Address
    """Rules on challenges after replaying the evidence."""
    validators: Annotated[tuple[Address, ...], Field(strict=False, max_length=MAX_VALIDATORS)]
    drawn: Annotated[int, Field(ge=1, le=MAX_VALIDATORS)] = 1
    """Validators that judge a batch."""
    quorum: Annotated[int, Field(ge=1, le=MAX_VALIDATORS)] = 1
    """Votes of one kind that decide; more than half of those drawn."""
    rate: Amount = 1
    """Credits for each accepted token."""
    judge_pay: Amount = 0
    """Credits for a validator for each file on which it voted as it was decided."""
    stake_per_lease: Annotated[int, Field(ge=1, lt=1 << 112)] = 1000
    """Stake that was paid in for each lease after the first."""
    leases: Small = 4
    """Leases that no node may exceed, however much it staked."""
    welcome: Amount = 0
    """Credits that a node is given with its first accepted file. They back its word and are nobody's money."""
    slash: Amount = 1000
    """Credits that a reject takes at least, or what there is."""
    slash_files: Small = 10
    """How many times the rejected file's pay a reject takes of paid-in stake, if that is more."""
    suspend_steps: Small = 2
    ban_after: Count = 3
    """Rejects with evidence after which a node is banned."""
    window: Count = 4
    """Steps for which a verdict can be challenged and its money stays locked, at least; at most twice as many."""
    patience: Count = 2
    """Steps after which a batch goes on without validators that did not commit, and as many again for revealing."""
    bond: Amount = 0
    """Credits that a challenger puts up, and loses if the challenge is refuted."""
    stall: Count = 21_600
    """Seconds for which the clock must have stood still before anybody may move it a step, on a chain."""
    beacon: Hash
    """Last link of the coordinator's chain of hashes, from which validators are drawn."""


class Leaf(Record):
    """A submission, as its owner can prove it."""

    submission: Small
    node: Address
    sha256: Hash
    tokens: Tokens
    """The node's claim; validators reject a false one."""

    def hash(self, step: int) -> bytes:
        return keccak_words(step, self.submission, self.node, self.sha256, self.tokens)


class Open(Record):
    """Opens a ledger; its author is the coordinator."""

    kind: Literal["open"] = "open"
    format: Literal[2] = FORMAT
    terms: Terms

    @property
    def name(self) -> str:
        return "open"


class Register(Record):
    """The coordinator admits a validator, which is drawn only after as many steps as stake takes to leave.

    Workers need no entry: an account comes into being with the first accepted file, or with a deposit.
    """

    kind: Literal["register"] = "register"
    node: Address

    @property
    def name(self) -> str:
        return f"register {self.node}"


class Fund(Record):
    """Credits for the treasury, which pays for accepted tokens."""

    kind: Literal["fund"] = "fund"
    id: Name
    amount: Amount

    @property
    def name(self) -> str:
        return f"fund {self.id}"


class Deposit(Record):
    """Stake for a node."""

    kind: Literal["deposit"] = "deposit"
    id: Name
    node: Address
    amount: Amount

    @property
    def name(self) -> str:
        return f"deposit {self.id}"


class Stake(Record):
    """The author pays in what it has earned."""

    kind: Literal["stake"] = "stake"
    id: Name
    amount: Amount

    @property
    def name(self) -> str:
        return f"stake {self.id}"


class Unbond(Record):
    """The author's stake begins to leave: it gives no leases any more, and can still be slashed until it has left."""

    kind: Literal["unbond"] = "unbond"
    id: Name
    amount: Amount

    @property
    def name(self) -> str:
        return f"unbond {self.id}"


class Withdraw(Record):
    """Pays out what the author has earned and what of its stake has left."""

    kind: Literal["withdraw"] = "withdraw"
    id: Name

    @property
    def name(self) -> str:
        return f"withdraw {self.id}"


class Work(Record):
    """Submissions of one step, under a Merkle root; the beacon draws who judges them."""

    kind: Literal["work"] = "work"
    batch: Small
    step: Small
    leaves: Annotated[tuple[Leaf, ...], Field(strict=False, max_length=MAX_LEAVES)]
    """None at all only moves the clock on."""
    beacon: Hash
    """The link of the step: the next one of the chain with the first batch of a step, the same one with the others."""
    plants: Hash = NO_HASH
    """`plants_hash` of the samples among them whose verdict is known; zeros if there are none."""

    @property
    def name(self) -> str:
        return f"work {self.batch}"

    @property
    def hashes(self) -> list[bytes]:
        return [leaf.hash(self.step) for leaf in self.leaves]

    @property
    def root(self) -> bytes:
        return merkle_root(self.hashes)


class Advance(Record):
    """Anybody moves a clock that stood still, to this step. Only a chain can tell how long it has."""

    kind: Literal["advance"] = "advance"
    step: Small

    @property
    def name(self) -> str:
        return f"advance {self.step}"


class Close(Record):
    """No more submissions are entered: by the coordinator's word, or anybody's once it has been silent for long."""

    kind: Literal["close"] = "close"

    @property
    def name(self) -> str:
        return "close"


class Refund(Record):
    """Pays out the author's share of what is left in the treasury, once everything else is over."""

    kind: Literal["refund"] = "refund"

    @property
    def name(self) -> str:
        return "refund"


class Commit(Record):
    """A drawn validator's sealed votes."""

    kind: Literal["commit"] = "commit"
    batch: Small
    hash: Hash

    @property
    def name(self) -> str:
        return f"commit {self.batch}"


class Reveal(Record):
    """The votes; with the hash of the evidence for each reject, in their order."""

    kind: Literal["reveal"] = "reveal"
    batch: Small
    votes: Votes
    evidence: Annotated[tuple[Hash, ...], Field(strict=False, max_length=MAX_LEAVES)] = ()
    salt: Hash = NO_HASH

    @property
    def name(self) -> str:
        return f"reveal {self.batch}"


class Settle(Record):
    """Counts the votes of a batch and opens its plants."""

    kind: Literal["settle"] = "settle"
    batch: Small
    plants: Annotated[str, StringConstraints(pattern=rf"^[ar.]{{0,{MAX_LEAVES}}}$")] = ""
    """A letter a submission: planted as good, planted as bad, or (.) not planted; empty if the plants stay closed."""
    salt: Hash = NO_HASH

    @property
    def name(self) -> str:
        return f"settle {self.batch}"


class Challenge(Record):
    """The author replayed the evidence and says what the verdict on a submission should have been."""

    kind: Literal["challenge"] = "challenge"
    batch: Small
    index: Index
    claim: Literal["a", "r"]
    evidence: Hash

    @property
    def name(self) -> str:
        return f"challenge {self.batch}/{self.index}"


class Rule(Record):
    """The arbiter's answer to a challenge, after its own replay."""

    kind: Literal["rule"] = "rule"
    batch: Small
    index: Index
    challenger: Address
    upheld: bool
    excused: bool = False
    """Whether those who rejected the file were right by what the run went by then: it costs them nothing."""

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Without what does not apply: a ruling that excuses nobody has the form that it has always had."""
        tree: dict[str, object] = write(self)
        if not self.excused:
            del tree["excused"]
        return tree

    @property
    def name(self) -> str:
        return f"rule {self.batch}/{self.index} {self.challenger}"


class Head(Record):
    """A validator's signature on the history so far: entry `number` has this hash, and no other."""

    kind: Literal["head"] = "head"
    number: Small
    hash: Hash

    @property
    def name(self) -> str:
        return f"head {self.number}"


Act = (
    Open
    | Register
    | Fund
    | Deposit
    | Stake
    | Unbond
    | Withdraw
    | Work
    | Advance
    | Commit
    | Reveal
    | Settle
    | Challenge
    | Rule
    | Close
    | Refund
    | Head
)
ACT: TypeAdapter[Act] = TypeAdapter(Annotated[Act, Field(discriminator="kind")])


def masks(letters: str) -> tuple[int, int]:
    """Votes or plants as the contract has them: two bit sets over submissions, of those accepted and those rejected."""
    accepted = sum(1 << i for i, letter in enumerate(letters) if letter == "a")
    rejected = sum(1 << i for i, letter in enumerate(letters) if letter == "r")
    return accepted, rejected


def vote_hash(run: str, author: str, reveal: Reveal) -> str:
    """What a validator commits to. The author is part of it, so another's commitment is of no use to a copier."""
    evidence = bytes(32)
    for one in reveal.evidence:
        evidence = keccak_words(evidence, one)
    words = (keccak_text(run), reveal.batch, author, *masks(reveal.votes), evidence, reveal.salt)
    return keccak_words(*words).hex()


def plants_hash(run: str, batch: int, plants: str, salt: str) -> str:
    """What the coordinator commits to before anybody votes."""
    return keccak_words(keccak_text(run), batch, *masks(plants), salt).hex()


@lru_cache(maxsize=2)
def beacons(secret: bytes, count: int) -> tuple[bytes, ...]:
    """A chain of hashes in the order of its use: the first is for the terms, each next one hashes to the one before.

    It is fixed before the run, so that a coordinator cannot choose judges to suit a file, and unknown to everybody
    else until the files are entered. A long one takes half a second, which a process spends once.
    """
    links = [secret]
    for _ in range(count):
        links.append(keccak_words(links[-1]))
    return tuple(reversed(links))
