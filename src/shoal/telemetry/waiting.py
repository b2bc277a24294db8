"""A wait without a deadline that reports itself at intervals, so that no wait is silent."""

import time
from collections.abc import Callable

from shoal.telemetry.metrics import MetricsWriter


class Patience:
    """Notes what is still waited for, once per `say_s` without progress: nothing waits in silence or gives up on a run.

    Strangers can keep files from coming for as long as they like, and a run must outlive them. What is waited for with
    a deadline is an answer of the coordinator.
    """

    def __init__(self, metrics: MetricsWriter, say_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._say_s = say_s
        self._clock = clock
        self.progressed()

    def progressed(self) -> None:
        self._began = self._said = self._clock()

    def waits(self, what: str) -> None:
        """Called again and again while `what` does not come."""
        now = self._clock()
        if now - self._said >= self._say_s:
            self._said = now
            self._metrics.write("note", text=f"waiting for {what}, for {now - self._began:.0f} s so far; it goes on")
