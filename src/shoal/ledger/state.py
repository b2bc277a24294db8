"""What a ledger's entries add up to: accounts, judges, batches and the treasury."""

from dataclasses import dataclass, field, replace
from typing import Literal

from shoal.ledger.acts import Challenge, Leaf, Reveal, Terms

FULL_STANDING = 100


@dataclass(slots=True)
class Lock:
    """Credits that are held for a challenge window, by the window in which they came.

    Two sums do for any number of amounts: what came in window w is let go when window w + 2 begins.
    """

    window: int = 0
    fresh: int = 0
    old: int = 0

    @property
    def total(self) -> int:
        return self.fresh + self.old

    def add(self, amount: int, window: int) -> int:
        """Holds an amount; gives what is let go by now."""
        let_go = self.turn(window)
        self.fresh += amount
        return let_go

    def turn(self, window: int) -> int:
        """Lets go what was held long enough; how much that is."""
        passed = window - self.window
        let_go = 0 if passed == 0 else self.old if passed == 1 else self.old + self.fresh
        if passed:
            self.old = self.fresh if passed == 1 else 0
            self.fresh, self.window = 0, window
        return let_go

    def take(self, amount: int) -> None:
        """Takes out an amount that came in this window or the one before."""
        from_old = min(self.old, amount)
        self.old -= from_old
        self.fresh -= amount - from_old

    def empty(self) -> int:
        """Takes out everything; how much that is."""
        amount, self.fresh, self.old = self.total, 0, 0
        return amount


@dataclass(slots=True)
class Account:
    """What a node has to its name."""

    address: str
    stake: int = 0
    leaving: int = 0
    leaves_at: int = 0
    """Step from which what is leaving can be withdrawn."""
    lock: Lock = field(default_factory=Lock)
    """Earnings that a challenge could still void."""
    earned: int = 0
    paid: int = 0
    accepted: int = 0
    offences: int = 0
    suspended_until: int = 0
    submitted: int = 0
    tokens: int = 0
    tokens_accepted: int = 0
    earned_ever: int = 0
    slashed: int = 0
    voided: int = 0


@dataclass(slots=True)
class Judge:
    """A validator, and how far it is believed; at 0 it is drawn no more."""

    address: str
    standing: int = FULL_STANDING
    judged: int = 0
    refuted: int = 0
    misjudged: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """What a reject took, so that a challenge can give it back."""

    stake: int
    voided: int


@dataclass(slots=True)
class Batch:
    """Submissions that are judged together."""

    number: int
    step: int
    entered: int
    """The clock when it was entered; deadlines count from there."""
    leaves: tuple[Leaf, ...]
    root: bytes
    plants: str
    jury: tuple[str, ...]
    commits: dict[str, str] = field(default_factory=dict)
    reveals: dict[str, Reveal] = field(default_factory=dict)
    outcomes: str = ""
    """A letter a submission once it is settled: as votes, or x for one that does not count: planted, handed in
    before, or of nobody registered."""
    settled: int = 0
    """Window in which it was settled."""
    taken: dict[int, Taken] = field(default_factory=dict)
    challenges: dict[tuple[int, str], Challenge] = field(default_factory=dict)
    answered: set[tuple[int, str]] = field(default_factory=set)
    """Challenges that the arbiter refuted."""
    rulings: dict[int, str] = field(default_factory=dict)
    """What the arbiter found a submission to be; that is final."""


@dataclass(slots=True)
class State:
    """The sum of a ledger. Only `rules.apply` changes it."""

    run: str
    coordinator: str
    terms: Terms
    beacon: str
    clock: int = 0
    """The newest step that work was entered for. Windows and deadlines count steps: a run that stands still takes
    nobody's right to object, and no clock of a machine has to be believed."""
    accounts: dict[str, Account] = field(default_factory=dict)
    judges: dict[str, Judge] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    entered: set[tuple[str, str]] = field(default_factory=set)
    """Author and name of every act."""
    seen: set[tuple[int, int]] = field(default_factory=set)
    """Step and number of every submission that was settled."""
    treasury: int = 0
    held: Lock = field(default_factory=Lock)
    """What rejects took, on its way to the treasury."""
    brought_in: int = 0
    paid_out: int = 0

    @property
    def window(self) -> int:
        return self.clock // self.terms.window

    def total(self) -> int:
        """Everything that is somebody's; it equals what was brought in less what was paid out."""
        of_nodes = sum(a.stake + a.leaving + a.lock.total + a.earned for a in self.accounts.values())
        return of_nodes + self.treasury + self.held.total


@dataclass(frozen=True, slots=True)
class Holdings:
    """A node's credits as of now."""

    stake: int
    leaving: int
    locked: int
    earned: int


def holdings(state: State, account: Account) -> Holdings:
    lock = replace(account.lock)
    let_go = lock.turn(state.window)
    return Holdings(account.stake, account.leaving, lock.total, account.earned + let_go)


Status = Literal["active", "suspended", "banned"]


def status(state: State, account: Account) -> Status:
    if account.offences >= state.terms.ban_after:
        return "banned"
    return "suspended" if state.clock < account.suspended_until else "active"


def leases(state: State, account: Account) -> int:
    """How many leases a node may hold: by its stake, or by what was accepted of it."""
    terms = state.terms
    if status(state, account) != "active":
        return 0
    without = terms.trusted_leases if account.accepted >= terms.probation else terms.probation_leases
    return min(terms.leases, max(without, account.stake // terms.stake_per_lease))


def in_standing(state: State) -> list[str]:
    return [judge.address for judge in state.judges.values() if judge.standing > 0]
