"""Which step the next lease is for: the smallest one still short of rollouts that the newest version may serve.

The invariant: no lease is given for a step whose rollouts would be too old by then. Workers wait instead of producing
what would be thrown away, and leases that are out count as rollouts that will come. With the online filter only groups
with signal fill a step, and without it every group that arrives does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

# At least this share of the groups is expected to have signal. Without a floor a few unlucky submissions would call for
# a flood of leases.
RATE_FLOOR = 0.05


@dataclass(frozen=True, slots=True)
class StepCount:
    """Groups of one step: arrived, arrived with signal, and out on leases that have not expired."""

    seen: int = 0
    signal: int = 0
    leased: int = 0

    def filling(self, online_filter: bool) -> int:
        """Those that count towards what the step needs."""
        return self.signal if online_filter else self.seen


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease may be given for this many groups of this step."""

    step: int
    groups: int


def next_grant(
    counts: Mapping[int, StepCount],
    *,
    version: int,
    async_level: int,
    steps: int,
    needed: int,
    max_seen: int,
    submission_groups: int,
    first_step: int = 0,
    online_filter: bool = True,
) -> Grant | None:
    """The next piece of work, or None when everything that `version` may serve is provided for.

    `needed` groups fill a step, with the online filter only those with signal; after `max_seen` groups no more are
    asked for. Steps before `first_step` are trained, whatever they are short of.
    """
    rate = signal_rate(counts) if online_filter else 1.0
    for step in range(max(version, first_step), min(version + async_level, steps - 1) + 1):
        count = counts.get(step, StepCount())
        short = needed - count.filling(online_filter) - count.leased * rate
        room = max_seen - count.seen - count.leased
        if short > 0 and room > 0:
            # The tail of a step is split no finer than half a submission: small batches generate slowly.
            wanted = max(ceil(short / rate), ceil(submission_groups / 2))
            return Grant(step, min(wanted, submission_groups, room))
    return None


def is_collected(filling: int, seen: int, leased: int, *, needed: int, most: int) -> bool:
    """Whether a step is trained on what it has: enough groups count, or no more will be sampled for it.

    `seen` groups are there, `filling` of them count, and `leased` are out; after `most` no more are asked for.
    """
    return filling >= needed or (seen >= most and not leased)


def signal_rate(counts: Mapping[int, StepCount]) -> float:
    """Share of groups expected to have signal, judged by what has arrived; one imagined good group stands for hope."""
    seen = sum(count.seen for count in counts.values())
    signal = sum(count.signal for count in counts.values())
    return max(RATE_FLOOR, (signal + 1) / (seen + 1))
