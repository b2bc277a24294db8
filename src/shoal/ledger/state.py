"""Ledger state: accounts, judges, batches and the treasury, as the sum of all entries."""

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
    """Paid in, and still all there."""
    gift: int = 0
    """Welcome credits: they can be slashed and put up as a bond, never withdrawn. They are not money."""
    welcomed: bool = False
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
    since: int = 0
    """Step from which on it is drawn."""
    standing: int = FULL_STANDING
    judged: int = 0
    refuted: int = 0
    misjudged: int = 0
    missed: int = 0


Bond = Literal["taken", "gift", "stake"]
"""What stands behind a challenge: what a reject took of the challenger itself, welcome credits, or stake."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a reject took, so that a challenge can give it back."""

    stake: int
    gift: int
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
    """A letter per submission once it is settled: as votes, or x for one that does not count: planted, or handed in
    before."""
    settled: int = 0
    """Window in which it was settled."""
    taken: dict[int, Taken] = field(default_factory=dict)
    """Of rejected ones whose node had an account."""
    challenges: dict[tuple[int, str], Challenge] = field(default_factory=dict)
    bonds: dict[tuple[int, str], Bond] = field(default_factory=dict)
    """What each challenge put up."""
    answered: set[tuple[int, str]] = field(default_factory=set)
    """Challenges that the arbiter refuted."""
    rulings: dict[int, str] = field(default_factory=dict)
    """What the arbiter found a submission to be; that is final."""

    @property
    def is_closed(self) -> bool:
        """Whether it waits for nobody: it is settled, or has nothing to settle."""
        return bool(self.outcomes) or not self.leaves


@dataclass(slots=True)
class State:
    """The sum of a ledger. Only `rules.apply` changes it."""

    run: str
    coordinator: str
    terms: Terms
    on_chain: bool = False
    """Whether money is the chain's own, which anybody can bring in, and time is the chain's, which anybody can tell."""
    links: list[str] = field(default_factory=list)
    """The beacon's links by step, as far as steps were begun."""
    clock: int = 0
    """The newest step that work was entered for, or that a stalled clock was moved to. Windows and deadlines count
    steps: a run that stands still takes nobody's right to object."""
    advanced: int = 0
    """Steps that others than the coordinator moved the clock by since its last work."""
    closed: bool = False
    ended: int = 0
    """Window of the last settling, or of the closing."""
    unsettled: int = 0
    """Batches that wait to be settled."""
    accounts: dict[str, Account] = field(default_factory=dict)
    judges: dict[str, Judge] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    entered: set[tuple[str, str]] = field(default_factory=set)
    """Author and name of every act."""
    seen: set[tuple[int, int]] = field(default_factory=set)
    """Step and number of every submission that was settled."""
    treasury: int = 0
    funded: dict[str, int] = field(default_factory=dict)
    """What each brought into the treasury."""
    forfeited: int = 0
    """What punishments took: it pays for work, and is refunded to nobody, so that nobody gains by punishing."""
    held: Lock = field(default_factory=Lock)
    """What rejects took, on its way to the treasury."""
    brought_in: int = 0
    paid_out: int = 0

    @property
    def window(self) -> int:
        return self.clock // self.terms.window

    @property
    def beacon(self) -> str:
        """What the next link hashes to."""
        return self.links[-1] if self.links else self.terms.beacon

    @property
    def leaving_steps(self) -> int:
        """Steps after which whatever was handed in before is settled, and can be challenged no more."""
        return 2 * self.terms.patience + 2 * self.terms.window

    @property
    def finished(self) -> bool:
        """Whether nothing can change any more but by withdrawing: closed, settled, and the last window over.

        A ruling of the last window that allows one takes money that is held for two more.
        """
        return self.closed and not self.unsettled and self.window >= self.ended + 3

    def total(self) -> int:
        """Everything that is somebody's; it equals what was brought in less what was paid out."""
        of_nodes = sum(a.stake + a.leaving + a.lock.total + a.earned for a in self.accounts.values())
        return of_nodes + self.treasury + self.held.total


@dataclass(frozen=True, slots=True)
class Holdings:
    """A node's credits as of now."""

    stake: int
    gift: int
    leaving: int
    locked: int
    earned: int


def holdings(state: State, account: Account) -> Holdings:
    lock = replace(account.lock)
    let_go = lock.turn(state.window)
    return Holdings(account.stake, account.gift, account.leaving, lock.total, account.earned + let_go)


Status = Literal["active", "suspended", "banned"]


def status(state: State, account: Account) -> Status:
    if account.offences >= state.terms.ban_after:
        return "banned"
    return "suspended" if state.clock < account.suspended_until else "active"


def leases(state: State, account: Account) -> int:
    """How many leases a node may hold: one for nothing, and one more for each `stake_per_lease` that it paid in."""
    if status(state, account) != "active":
        return 0
    return min(state.terms.leases, 1 + account.stake // state.terms.stake_per_lease)


def in_standing(state: State) -> list[str]:
    """Validators that can be drawn."""
    return [judge.address for judge in state.judges.values() if judge.standing > 0 and state.clock >= judge.since]
