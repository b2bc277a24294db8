"""Margin between rejection and blame: a file near a threshold is rejected, but its node is not accused.

Two machines that compute the same file get numbers that differ in the last bits. A file right at a threshold is over it
for one judge and not for another: a node that makes such a file on purpose sets judges against each other. So a file
beyond a threshold is rejected, and its maker is blamed only if it is also beyond `TIMES` the threshold.
"""

from collections.abc import Callable
from dataclasses import replace

from shoal.config import ThresholdsConfig
from shoal.protocol.verdict import MARGIN, Finding

# Far more than machines differ by: honest values are hundreds of times below the thresholds.
TIMES = 2.0


def graded(check: Callable[[float], Finding | None]) -> Finding | None:
    """A check's finding; one of `margin`, which is nobody's fault, unless the file fails `TIMES` as wide bounds too.

    `check` is given what to multiply its bounds by. It looks at the whole file both times: a small fault in front does
    not hide a large one behind it.
    """
    found = check(1.0)
    if found is None:
        return None
    rule = f"{found.check}: {found.rule}; off by less than {TIMES:g} times that, which is nobody's fault"
    return check(TIMES) or replace(found, check=MARGIN, rule=rule)


def widened(thresholds: ThresholdsConfig, times: float) -> ThresholdsConfig:
    """Thresholds that are so many times as wide."""
    return ThresholdsConfig(
        shortfall=thresholds.shortfall * times,
        inexact_share=min(1.0, thresholds.inexact_share * times),
        inexact_tokens=int(thresholds.inexact_tokens * times),
        logprob=thresholds.logprob * times,
        exponents=min(128, int(thresholds.exponents * times)),
        mantissa_mean=thresholds.mantissa_mean * times,
        mantissa_median=thresholds.mantissa_median * times,
        surprise_sample=thresholds.surprise_sample * times,
        surprise_file=thresholds.surprise_file * times,
    )
