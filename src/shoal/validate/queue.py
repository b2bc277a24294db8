"""Validation queue: priority by record, round robin over nodes, and time budgets (token buckets).

Files of nodes that had files accepted come first, but for an eighth of the time: nodes with a record may keep a
validator busy, and who is new would wait for ever. So what fresh keys hand in delays proven nodes by one file at a
time, and by a seventh on average. Among equals the nodes take turns. Keys are free, so a bound per node bounds nothing
by itself: it only keeps one node from taking the time of others like it.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from shoal.protocol.stores import PROVEN, Upload

# Seconds that a node's files may take at once without being accepted, and per second from then on. A newcomer's answers
# are known to be drawn before they are scored, so it needs less.
BURST_S = 30.0
NEWCOMER_BURST_S = 5.0
REFILL = 0.05
MAX_NODES = 10_000
# Of the time in which proven nodes have files waiting, this part is for those without a record.
NEWCOMER_SHARE = 1 / 8
MAX_SAVED_S = 5.0


def in_turn(uploads: Sequence[Upload], rank: Callable[[Upload], int], loaded: int | None = None) -> list[Upload]:
    """Highest rank first, then the earliest step, then each node's first file before any node's second.

    Files of proven nodes for one step go version by version, that which is `loaded` first: weights are changed once per
    version then, and not with every file.
    """
    had: Counter[tuple[int, str]] = Counter()
    keyed = []
    for upload in sorted(uploads, key=lambda upload: (upload.step, upload.submission)):
        turn = had[upload.step, upload.node]
        had[upload.step, upload.node] += 1
        ranked, version = rank(upload), upload.lease.version
        switch = (version != loaded, version) if ranked >= PROVEN else (False, 0)
        keyed.append(((-ranked, upload.step, *switch, turn, upload.submission), upload))
    return [upload for _, upload in sorted(keyed, key=lambda pair: pair[0])]


def one_newcomer_first(ordered: Sequence[Upload], rank: Callable[[Upload], int]) -> list[Upload]:
    """The same order, but the first file of a node without a record comes before all others."""
    first = next((upload for upload in ordered if 0 <= rank(upload) < PROVEN), None)
    return list(ordered) if first is None else [first, *(upload for upload in ordered if upload is not first)]


class NewcomerTime:
    """A token bucket of seconds for all nodes without a record: what proven nodes take fills it."""

    def __init__(self) -> None:
        self._saved = 0.0

    @property
    def is_due(self) -> bool:
        return self._saved > 0

    def proven_took(self, seconds: float) -> None:
        self._saved = min(MAX_SAVED_S, self._saved + seconds * NEWCOMER_SHARE / (1 - NEWCOMER_SHARE))

    def newcomer_took(self, seconds: float) -> None:
        """While a proven node had a file waiting; at other times it costs nobody anything."""
        self._saved -= seconds


class TimeBudget:
    """A token bucket of seconds per node."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """What each node has spent beyond its refill, and when that was so."""

    def left(self, node: str, record: int) -> float:
        """Seconds that it may still take; below 0 if it took more than it had."""
        return (BURST_S if record >= PROVEN else NEWCOMER_BURST_S) - self._owed(node)

    def spend(self, node: str, seconds: float) -> None:
        self._spent[node] = (self._owed(node) + seconds, self._clock())
        self._spent.move_to_end(node)
        while len(self._spent) > MAX_NODES:
            self._spent.popitem(last=False)

    def _owed(self, node: str) -> float:
        spent, at = self._spent.get(node, (0.0, 0.0))
        return max(0.0, spent - REFILL * (self._clock() - at))
