"""Wait until a deadline: poll with pauses or exponential backoff, and an error that names what did not come."""

import time
from collections.abc import Callable
from typing import TypeVar

from shoal.errors import ShoalError, WaitError

T = TypeVar("T")


class Wait:
    """The deadline of one wait and its pauses: the first is `pause_s`, each next one doubles up to `longest_s`."""

    def __init__(
        self,
        seconds: float,
        pause_s: float = 0.1,
        longest_s: float | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._seconds = seconds
        self._pause_s = pause_s
        self._longest_s = longest_s or pause_s
        self._sleep = sleep
        self.renew()

    @property
    def left(self) -> float:
        """Seconds until the deadline; below zero when it is past."""
        return self._deadline - time.monotonic()

    def renew(self) -> None:
        """The whole time again from now on, after something has come of it."""
        self._deadline = time.monotonic() + self._seconds

    def pause(self) -> bool:
        """Sleeps a little, but not beyond the deadline; False at once if that is past."""
        if (left := self.left) <= 0:
            return False
        self._sleep(min(self._pause_s, left))
        self._pause_s = min(2 * self._pause_s, self._longest_s)
        return True


def wait_until(
    ready: Callable[[], T],
    seconds: float,
    late: str,
    *,
    pause_s: float = 0.1,
    on_wait: Callable[[float], object] = lambda _left_s: None,
    error: type[ShoalError] = WaitError,
) -> T:
    """What `ready` gives as soon as it is true; an error that says `late` if it is not within so many seconds.

    It is asked at least once. `on_wait` hears before each pause how many seconds are left.
    """
    wait = Wait(seconds, pause_s)
    while not (found := ready()):
        if (left := wait.left) > 0:
            on_wait(left)
        if not wait.pause():
            raise error(late)
    return found
