"""Claims about waiting: until it is so, and never past the deadline."""

import time

import pytest

from shoal.errors import StorageError, WaitError
from shoal.wait import Wait, wait_until


def test_it_ends_as_soon_as_what_is_waited_for_is_there() -> None:
    answers = iter(["", "", "here"])
    told: list[float] = []
    assert wait_until(lambda: next(answers), 20.0, "nothing came", pause_s=0.01, on_wait=told.append) == "here"
    assert len(told) == 2
    assert 19 < told[1] <= told[0] <= 20


def test_a_deadline_that_passes_names_what_did_not_come() -> None:
    began = time.monotonic()
    with pytest.raises(WaitError, match="no relay joined"):
        wait_until(lambda: False, 0.2, "no relay joined", pause_s=60.0)
    assert 0.2 <= time.monotonic() - began < 5
    with pytest.raises(StorageError, match="taken"):
        wait_until(lambda: False, 0.0, "taken", error=StorageError)


def test_pauses_grow_up_to_the_longest_and_end_at_the_deadline() -> None:
    slept: list[float] = []
    wait = Wait(1000.0, 0.1, 0.5, sleep=slept.append)
    for _ in range(5):
        assert wait.pause()
    assert slept == [0.1, 0.2, 0.4, 0.5, 0.5]
    over = Wait(0.0, sleep=slept.append)
    assert not over.pause()
    assert len(slept) == 5


def test_progress_renews_the_whole_time() -> None:
    wait = Wait(60.0, 0.01)
    time.sleep(0.15)
    renewed = time.monotonic()
    wait.renew()
    left = wait.left
    assert left >= 60.0 - (time.monotonic() - renewed)
