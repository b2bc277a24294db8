"""The coordinator's books in memory: nodes, leases, files and what steps have. Every decision is the coordinator's own.

`coordinator/lease_rules.py`, `coordinator/node_states.py`, `coordinator/policy.py` and `protocol/pacing.py` decide, as
they do for `coordinator/grants.py`; here numbers are kept up to date where the coordinator asks its database. Each node
is a network of its own, has no stake, and its files are honest. `tests/simulate` puts both before the same requests.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Literal

from shoal.coordinator import lease_rules as rules
from shoal.coordinator.node_states import (
    LOST_S,
    QUIET_S,
    RECENT,
    SUSPENDED_S,
    Event,
    State,
    after,
    holds_leases,
    lets_expire,
    may_lease,
)
from shoal.coordinator.policy import Terms
from shoal.protocol.pacing import StepCount
from shoal.protocol.stores import PROVEN
from shoal.simulate.events import Events

Place = tuple[int, int]
Status = Literal["open", "expired", "used", "void", "again", "lost"]
# Why there is no lease: for nobody with this version, or for this node alone.
PROVIDED, OWN = "provided", "own"


class LeaseRow:
    """A lease as the coordinator knows it."""

    __slots__ = (
        "debts",
        "given",
        "groups",
        "is_again",
        "issued",
        "node",
        "status",
        "step",
        "submission",
        "until",
        "version",
    )

    def __init__(
        self, node: "NodeRow", step: int, submission: int, version: int, groups: int, issued: float, until: float
    ) -> None:
        self.node, self.step, self.submission, self.version, self.groups = node, step, submission, version, groups
        self.issued, self.until = issued, until
        self.given, self.is_again, self.debts = 1, False, 0
        self.status: Status = "open"


class File:
    """A file that was handed in."""

    __slots__ = ("lease", "previous", "received", "signal", "tokens")

    def __init__(self, lease: LeaseRow, signal: int, tokens: float, received: float) -> None:
        self.lease, self.signal, self.tokens, self.received = lease, signal, tokens, received
        self.previous = lease.node.received
        """When its node's file before it came."""

    @property
    def place(self) -> Place:
        return self.lease.step, self.lease.submission


def judging_order(files: Iterable[File]) -> list[File]:
    """Files that wait for a verdict in the order in which the coordinator lists them (`coordinator/verdicts.py`): those
    of nodes that have shown that they work step by step and version by version, then newcomers' node by node."""
    turns: Counter[int] = Counter()
    keyed = []
    for file in sorted(files, key=lambda file: (file.lease.step, file.received, file.lease.submission)):
        row, node = file.lease, file.lease.node
        by = (row.step, row.version) if node.record == PROVEN else (0, 0)
        turns[node.number] += 1
        keyed.append(((-node.record, *by, turns[node.number], *file.place), file))
    return [file for _, file in sorted(keyed, key=itemgetter(0))]


class NodeRow:
    """A node as the coordinator knows it."""

    __slots__ = (
        "abandoned",
        "accepted",
        "busy_s",
        "ended",
        "expired",
        "files",
        "given_up",
        "handed_in",
        "leases",
        "let_go",
        "number",
        "owed",
        "received",
        "record",
        "state",
        "tokens",
        "undone",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = State.JOINED
        self.accepted = self.owed = self.abandoned = self.expired = self.tokens = self.handed_in = self.undone = 0
        self.given_up = 0
        self.busy_s = self.received = 0.0
        self.record = 1
        self.leases: list[LeaseRow] = []
        self.let_go: list[LeaseRow] = []
        self.files: list[File] = []
        self.ended: deque[bool] = deque(maxlen=RECENT)

    @property
    def lease_record(self) -> int:
        """What its leases count as: those of a node that let its last ones expire count for its like alone."""
        return 0 if self.expired else self.record


class Tally:
    """Groups of one step, by what their nodes have shown."""

    __slots__ = ("groups", "leased", "number", "signal", "unjudged", "unjudged_signal")

    def __init__(self) -> None:
        self.groups = self.signal = self.number = 0
        self.unjudged = [0, 0, 0]
        self.unjudged_signal = [0, 0, 0]
        self.leased = [0, 0, 0]

    def everything(self) -> StepCount:
        return StepCount(self.groups + sum(self.unjudged), self.signal + sum(self.unjudged_signal), sum(self.leased))

    def proven(self) -> StepCount:
        seen, signal = self.groups + self.unjudged[2], self.signal + self.unjudged_signal[2]
        return StepCount(seen, signal, self.leased[2])


class Book:
    """Nodes ask, hand in and leave; validators judge; the trainer announces versions and looks at what steps have.

    `freed` is called when there may be work again that there was not before, `lifted` with a node whose suspension is
    over.
    """

    def __init__(
        self,
        terms: Terms,
        events: Events,
        freed: Callable[[], None] = lambda: None,
        lifted: Callable[[NodeRow], None] = lambda _node: None,
    ) -> None:
        self.terms, self.events, self.freed, self.lifted = terms, events, freed, lifted
        self.newest = 0
        self.tallies: dict[int, Tally] = {}
        self.let_go: deque[LeaseRow] = deque()
        self.requests = self.granted = self.expired = 0

    # ---- leases

    def grant(self, node: NodeRow, version: int, working_on: set[tuple[int, int]]) -> LeaseRow | str:
        """A lease, or why there is none: `PROVIDED` or `OWN`."""
        terms, now, newest = self.terms, self.events.now, self.newest
        self.requests += 1
        node.state = after(node.state, Event.SEEN)
        if not may_lease(node.state) or version > newest:
            return OWN
        idle = [row for row in node.leases if (row.step, row.submission) not in working_on]
        missed = [row for row in idle if rules.is_given_again(row.step, newest, row.given)]
        held = len(node.leases) - len(missed)
        if self._holds_enough(node, held):
            return OWN
        found = self._counts(node, version)
        granted = rules.next_step(terms, found, version, newest)
        if granted is None:
            return PROVIDED
        tally = self.tally(granted.step)
        if node.record < PROVEN and rules.is_flooded(tally.everything(), terms):
            return OWN
        again = missed[0] if missed else self._waiting_for(node)
        if again is None and self._owes_too_much(node):
            return OWN
        row = LeaseRow(node, granted.step, tally.number, version, granted.groups, now, now)
        if again is not None:
            here = found.get(granted.step, StepCount())
            self._give_again(again, row, terms.max_groups - here.seen - here.leased)
            node.undone += 1
        tally.number += 1
        row.until = now + terms.lease_for(row.groups, node.tokens, node.busy_s, row.given, held)
        node.leases.append(row)
        tally.leased[node.lease_record] += row.groups
        self.granted += 1
        self.events.after(row.until - now, self._expire, row)
        return row

    def _holds_enough(self, node: NodeRow, held: int) -> bool:
        terms = self.terms
        if held >= rules.may_hold(node.record, 1, terms):
            return True
        unjudged = sum(file.lease.step >= self.newest for file in node.files)
        if unjudged >= rules.unjudged_allowed(node.accepted, terms):
            return True
        if node.record >= PROVEN:
            return False
        out = sum(row.step >= self.newest for row in node.leases)
        return out + unjudged >= rules.newcomers_allowed(0, terms)

    def _owes_too_much(self, node: NodeRow) -> bool:
        if any(row.is_again for row in node.leases):
            return True
        if rules.pays_for_itself(node.accepted, node.owed):
            return False
        is_over = node.given_up > rules.given_up_allowed(node.handed_in)
        return is_over or node.undone > rules.undone_allowed(node.handed_in, self.terms)

    def _counts(self, node: NodeRow, version: int) -> dict[int, StepCount]:
        """What steps have as a node sees it: of those without a record it sees its own work alone."""
        last = min(version + self.terms.async_level, self.terms.steps - 1)
        tallies = self.tallies
        found = {
            step: tallies[step].proven()
            for step in range(max(0, self.newest - rules.MEMORY), last + 1)
            if step in tallies
        }
        if node.record < PROVEN:
            for file in node.files:
                if (step := file.lease.step) in found:
                    was = found[step]
                    found[step] = StepCount(was.seen + file.lease.groups, was.signal + file.signal, was.leased)
            if node.lease_record >= node.record:
                for row in node.leases:
                    if row.step in found:
                        was = found[row.step]
                        found[row.step] = StepCount(was.seen, was.signal, was.leased + row.groups)
        return found

    def _waiting_for(self, node: NodeRow) -> LeaseRow | None:
        if node.let_go:
            return node.let_go[0]
        while self.let_go and self.let_go[0].status != "expired":
            self.let_go.popleft()
        if self.let_go and self.let_go[0].until < self.events.now - self.terms.kept_s:
            return self.let_go[0]
        return None

    def _give_again(self, old: LeaseRow, row: LeaseRow, room: int) -> None:
        is_own = old.node is row.node
        row.groups, row.given, row.is_again = min(old.groups, room), old.given + 1, True
        row.debts = old.debts if is_own else 0
        if is_own and rules.keeps_version(old.version, row.step, self.terms):
            row.version = old.version
        if old.status == "open":
            self._close(old, "void")
            return
        if is_own:
            row.debts += 1
        old.node.let_go.remove(old)
        old.node.undone -= is_own
        old.status = "again" if is_own else "lost"

    def _close(self, row: LeaseRow, status: Status) -> None:
        """Ends an open lease."""
        row.status = status
        row.node.leases.remove(row)
        if holds_leases(row.node.state):
            self.tally(row.step).leased[row.node.lease_record] -= row.groups
        if row.is_again:
            row.node.undone -= 1

    def _expire(self, row: LeaseRow) -> None:
        if row.status != "open":
            return
        node = row.node
        is_lost = row.given >= rules.MAX_GIVEN
        self._close(row, "lost" if is_lost else "expired")
        self.expired += 1
        node.undone += 1
        if is_lost:
            node.given_up += 1
            self.events.after(self.terms.kept_s, self._forget_lost, node)
        else:
            node.let_go.append(row)
            self.let_go.append(row)
        before = node.record, node.lease_record
        node.expired += 1
        node.abandoned += 1
        node.owed += 1
        node.ended.append(True)
        self._note_record(node, before)
        if lets_expire(node.expired, sum(node.ended), len(node.ended)):
            state = after(node.state, Event.SUSPEND)
            if state != node.state:
                self.events.after(SUSPENDED_S, self._lift, node)
            self._change_state(node, state)
        self.freed()

    def _forget_lost(self, node: NodeRow) -> None:
        node.given_up -= 1
        node.undone -= 1

    def _lift(self, node: NodeRow) -> None:
        before = node.record, node.lease_record
        node.expired = 0
        self._note_record(node, before)
        self._change_state(node, after(node.state, Event.LIFT))
        self.lifted(node)

    # ---- nodes that leave

    def leave(self, node: NodeRow, heard_s: float) -> None:
        """A node is heard no more; it was `heard_s` seconds ago."""
        if not node.leases:
            node.state = after(node.state, Event.LOST)
            return
        for event, quiet_s in ((Event.QUIET, QUIET_S), (Event.LOST, LOST_S)):
            self.events.after(max(0.0, quiet_s - heard_s), self._fall_silent, node, event)

    def _fall_silent(self, node: NodeRow, event: Event) -> None:
        self._change_state(node, after(node.state, event))
        self.freed()

    def _change_state(self, node: NodeRow, state: State) -> None:
        """Leases of a node that is gone go back to the pool."""
        if holds_leases(node.state) != holds_leases(state):
            sign = 1 if holds_leases(state) else -1
            for row in node.leases:
                self.tally(row.step).leased[node.lease_record] += sign * row.groups
        node.state = state

    # ---- files

    def hand_in(self, row: LeaseRow, signal: int, tokens: float, began: float) -> File | None:
        """Takes a file that began to come then; None if it is too late."""
        self.requests += 1
        node, now = row.node, self.events.now
        if rules.lateness(row.step, self.newest, began, row.until) or row.status not in ("open", "expired"):
            return None
        before = node.record, node.lease_record
        if row.status == "open":
            self._close(row, "used")
        else:
            node.let_go.remove(row)
            node.undone -= 1
            node.owed = max(0, node.owed - 1)
            row.status = "used"
        node.ended.append(False)
        node.handed_in += 1
        node.expired = 0
        self._note_record(node, before)
        file = File(row, signal, tokens, now)
        node.files.append(file)
        node.received = now
        tally = self.tally(row.step)
        tally.unjudged[node.record] += row.groups
        tally.unjudged_signal[node.record] += signal
        return file

    def accept(self, file: File) -> None:
        """A validator's verdict on an honest file."""
        row, node = file.lease, file.lease.node
        tally = self.tally(row.step)
        tally.unjudged[node.record] -= row.groups
        tally.unjudged_signal[node.record] -= file.signal
        tally.groups += row.groups
        tally.signal += file.signal
        node.files.remove(file)
        before = node.record, node.lease_record
        node.accepted += 1
        node.tokens += round(file.tokens)
        node.busy_s += max(0.0, file.received - max(row.issued, file.previous))
        node.owed = max(0, node.owed - row.debts)
        self._note_record(node, before)

    def drop(self, file: File) -> None:
        """A file that nobody judges any more, because its step is over."""
        node, tally = file.lease.node, self.tallies.get(file.lease.step)
        node.files.remove(file)
        if tally is not None:
            tally.unjudged[node.record] -= file.lease.groups
            tally.unjudged_signal[node.record] -= file.signal

    def _note_record(self, node: NodeRow, before: tuple[int, int]) -> None:
        """Counts what a node has under way as that of a node with its new record."""
        node.record = rules.record(node.accepted, 0, node.owed, node.abandoned)
        record, lease_record = before
        if node.record != record:
            for file in node.files:
                tally = self.tally(file.lease.step)
                for column, many in ((tally.unjudged, file.lease.groups), (tally.unjudged_signal, file.signal)):
                    column[record] -= many
                    column[node.record] += many
        if node.lease_record != lease_record and holds_leases(node.state):
            for row in node.leases:
                leased = self.tally(row.step).leased
                leased[lease_record] -= row.groups
                leased[node.lease_record] += row.groups

    # ---- the trainer

    def announce(self, version: int) -> None:
        """A new version; steps long before it are forgotten."""
        self.newest = version
        for step in [step for step in self.tallies if step < version - rules.MEMORY - self.terms.async_level]:
            del self.tallies[step]

    def count_of(self, step: int) -> StepCount:
        """What a step has, as the trainer hears it. Where it has all that it may, newcomers hold it up no longer."""
        tally = self.tally(step)
        count = tally.everything()
        if count.seen >= self.terms.max_groups:
            return StepCount(count.seen, count.signal, tally.proven().leased)
        return count

    def tally(self, step: int) -> Tally:
        found = self.tallies.get(step)
        if found is None:
            found = self.tallies[step] = Tally()
        return found
