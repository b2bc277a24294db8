"""Results that are told when a test lets them."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class HeldResults:
    """While `is_held`, what passes through is told at `release`."""

    is_held: bool = False
    _held: list[tuple[Future[Any], Future[Any]]] = field(default_factory=list)

    def through(self, own: Future[Any]) -> Future[Any]:
        if not self.is_held:
            return own
        found: Future[Any] = Future()
        self._held.append((found, own))
        return found

    def release(self) -> None:
        self.is_held = False
        for found, own in self._held:
            found.set_result(own.result())
        self._held.clear()
