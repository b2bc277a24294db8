"""Links as fluids: a sender's rate is shared evenly among transfers, none faster than its receiver."""

from collections.abc import Callable

from shoal.simulate.events import Events

# Bytes per machine below which a transfer is done: less than rounding leaves of a large one.
DONE = 1.0


class Transfer:
    """One stretch on its way to `weight` machines at once, each of which receives at most `most` bytes per second."""

    __slots__ = ("call", "left", "most", "rate", "weight")

    def __init__(self, size: float, weight: float, most: float, call: Callable[[], None]) -> None:
        self.left, self.weight, self.most, self.call = size, weight, most, call
        self.rate = 0.0


class Link:
    """A sender. What it sends in all is at most `rate`; what some cannot take goes to the others (max-min fair)."""

    __slots__ = ("_alarm", "_since", "_transfers", "busy_s", "events", "rate", "sent")

    def __init__(self, events: Events, rate: float) -> None:
        self.events, self.rate = events, rate
        self.sent = 0.0
        self.busy_s = 0.0
        """Seconds at full rate."""
        self._transfers: list[Transfer] = []
        self._since = events.now
        self._alarm = 0

    def send(self, size: float, weight: float, most: float, call: Callable[[], None]) -> None:
        self.pass_time()
        self._transfers.append(Transfer(size, weight, most, call))
        self._share()

    def pass_time(self) -> None:
        """Counts what was sent up to now."""
        passed, self._since = self.events.now - self._since, self.events.now
        if passed and self._transfers:
            flow = 0.0
            for transfer in self._transfers:
                transfer.left -= passed * transfer.rate
                flow += transfer.rate * transfer.weight
            self.sent += passed * flow
            self.busy_s += passed * flow / self.rate

    def _share(self) -> None:
        """Fills the slowest receivers first and gives the rest an equal rate; looks again when the first is done."""
        self._alarm += 1
        left, weight = self.rate, sum(transfer.weight for transfer in self._transfers)
        for transfer in sorted(self._transfers, key=lambda transfer: transfer.most):
            transfer.rate = min(transfer.most, left / weight) if weight > 0 else transfer.most
            left = max(0.0, left - transfer.rate * transfer.weight)
            weight -= transfer.weight
        if self._transfers:
            first_s = min(max(0.0, transfer.left) / transfer.rate for transfer in self._transfers)
            self.events.after(first_s, self._look, self._alarm)

    def _look(self, alarm: int) -> None:
        if alarm != self._alarm:
            return
        self.pass_time()
        done = [transfer for transfer in self._transfers if transfer.left <= DONE]
        self._transfers = [transfer for transfer in self._transfers if transfer.left > DONE]
        self._share()
        for transfer in done:
            transfer.call()
