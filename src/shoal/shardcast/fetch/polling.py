"""How often a source that cannot wait is asked: an object store, a CDN, a plain web server.

Our own servers answer when there is news or the wait is over (long polling). Others answer at once, and an object store
charges for it.
"""

import time

MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0
SHARE = 1 / 20  # of the time since the last news: so much later than at once the next is heard of
WAITED = 0.5  # a source that took at least this share of the wait has waited


class Polling:
    """The pause before one source is asked for the same thing again, from how long there was nothing new."""

    def __init__(self) -> None:
        self._news = time.monotonic()

    def pause(self, *, new: bool, asked: float, wait_s: float) -> float:
        """Seconds until the next request, after one that was sent at `asked` and could have waited for `wait_s`."""
        now = time.monotonic()
        if new:
            self._news = now
        if new or now - asked >= WAITED * wait_s:
            return 0.0
        return min(max(MIN_PAUSE_S, SHARE * (now - self._news)), MAX_PAUSE_S)
