"""Waits of tests: until something is so, or the test fails."""

from collections.abc import Callable

from shoal.wait import wait_until


def until(ready: Callable[[], object], seconds: float = 60.0) -> None:
    wait_until(ready, seconds, f"it was not so within {seconds:g} s", pause_s=0.02)
