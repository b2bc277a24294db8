"""A worker that may wait for a newer version gains nothing by it: what comes is drawn after it has named the version.

The cheat wants files with high rewards. What a file earns is a function of its noise and its version, with the spread
that means of files have (`tests/attacks/test_best_draw.py`). Where noise followed from the lease alone, it would
compute all continuations and hand in the best. With span leases it computes on what it knows when it names a version.
"""

import logging
from statistics import NormalDist

import pytest

from shoal.protocol.lease import Lease
from shoal.protocol.spans import SPANS, SpanLease
from shoal.tasks.source import draw
from tests.support.submissions import ROOT, make_lease

FILES = 4000
SPREAD = 0.24
TWO63 = float(1 << 63)


def earns(seed: int, version: int) -> float:
    """What a file earns whose continuation has this noise and version."""
    return 1 + SPREAD * NormalDist().inv_cdf(((draw("earns", seed, version) >> 1) + 0.5) / TWO63)


def known_noise(lease: Lease, choices: int) -> float:
    """The best of several continuations whose noise follows from the lease."""
    return max(earns(lease.seed, version) for version in range(choices))


def leased_noise(lease: Lease, choices: int) -> float:
    """The same cheat under span leases: it names the version that would be best with all that it can compute before."""
    named = max(range(choices), key=lambda version: earns(lease.seed, version))
    beacon = draw("the coordinator draws it now", lease.submission) >> 1
    return earns(SpanLease(32, named, ROOT, beacon).seed(lease), named)


@pytest.mark.parametrize("choices", [2, SPANS + 1])
def test_choosing_a_version_after_seeing_its_text_would_pay_and_span_leases_leave_nothing_of_it(choices: int) -> None:
    leases = [make_lease(submission=number) for number in range(FILES)]
    best = sum(known_noise(lease, choices) for lease in leases) / FILES - 1
    left = sum(leased_noise(lease, choices) for lease in leases) / FILES - 1
    error = 2 * SPREAD / FILES**0.5
    logging.getLogger("shoal").info(
        "best of %d continuations: %.1f %% above the mean; with span leases: %.2f %% +- %.2f %%",
        choices,
        100 * best,
        100 * left,
        100 * error,
    )
    assert best == pytest.approx({2: 0.135, SPANS + 1: 0.43}[choices], abs=0.02)
    assert abs(left) < 1.5 * error
