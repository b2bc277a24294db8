"""The event queue: what happens next, in simulated seconds."""

import heapq
from collections.abc import Callable
from typing import Any


class Events:
    """Calls in the order of their times; those of one time in the order in which they were asked for."""

    __slots__ = ("_heap", "_number", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0

    def after(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Calls with these arguments so many seconds from now."""
        self._number += 1
        heapq.heappush(self._heap, (self.now + seconds, self._number, call, arguments))

    def run(self, is_over: Callable[[], bool], longest_s: float) -> bool:
        """Lets time pass until `is_over`; False if nothing is left to happen before that, or it takes longer."""
        heap, pop = self._heap, heapq.heappop
        while not is_over():
            if not heap or heap[0][0] > longest_s:
                return False
            self.now, _, call, arguments = pop(heap)
            call(*arguments)
        return True

    @property
    def count(self) -> int:
        """How many events were asked for so far."""
        return self._number
