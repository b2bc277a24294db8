"""How long leases last and roles wait when the config does not say: what answers of full length take at measured speed.

A node that has shown nothing yet is trusted to be as fast as `NEWCOMER_TOKENS_PER_S`, however long its answers may
become; one with accepted files gets a multiple of what its own speed asks for. A draw that is given again gets twice
the time of before, so that a node which is honest and slower than that finishes it in the end. All of it is bounded,
and the leases of a node that falls silent count no more after two minutes, however long they last.
"""

MIN_LEASE_S = 240.0
NEWCOMER_TOKENS_PER_S = 200.0
# A lease over what the node's measured speed asks for: the last answers of a batch are generated at a fraction of it.
HEADROOM = 3.0
# The longest lease, in multiples of a newcomer's.
MAX_TIMES = 8
MIN_WAIT_S, MAX_WAIT_S = 600.0, 3600.0
# A validator reads all answers side by side, which takes at most this share of the time to generate them.
CHECKING = 0.25
# No engine gives one answer more tokens per second, and no machine checks more: what asks for more cannot work.
FASTEST_ANSWER, FASTEST_CHECK = 1_000.0, 100_000.0


def newcomer_lease_s(tokens: int) -> float:
    """Seconds for a node of unknown speed to generate at most so many tokens."""
    return max(MIN_LEASE_S, tokens / NEWCOMER_TOKENS_PER_S)


def lease_s(tokens: int, tokens_per_s: float | None, given: int = 1) -> float:
    """Seconds for a node of this measured speed, if any, under a lease that gives its draw for the `given`-th time."""
    longest = newcomer_lease_s(tokens)
    needed = longest if tokens_per_s is None else max(MIN_LEASE_S, HEADROOM * tokens / tokens_per_s)
    return min(needed * 2.0 ** (given - 1), MAX_TIMES * longest)


def wait_s(longest_lease_s: float) -> float:
    """Seconds that roles wait for each other, where a newcomer's lease lasts so long."""
    return min(max(MIN_WAIT_S, CHECKING * longest_lease_s), MAX_WAIT_S)
