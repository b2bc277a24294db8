"""Claims about group commit: one wait for many, and an answer only after it."""

import threading
from collections.abc import Sequence

import pytest

from shoal.group_commit import GroupCommit


class Disk:
    """Commits when it is let, and refuses odd numbers below zero."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.free = threading.Event()
        self.fails: Exception | None = None

    def commit(self, jobs: Sequence[int]) -> list[int | Exception]:
        assert self.free.wait(20.0)
        self.batches.append(list(jobs))
        if self.fails:
            raise self.fails
        return [ValueError(str(job)) if job < 0 else 10 * job for job in jobs]


def test_what_waits_is_committed_together_in_order_and_answered_after() -> None:
    disk = Disk()
    writer = GroupCommit("test", disk.commit, 4)
    answers = [writer.submit(number) for number in range(1, 8)]
    assert not any(answer.done() for answer in answers)
    disk.free.set()
    assert [answer.result(20.0) for answer in answers] == [10, 20, 30, 40, 50, 60, 70]
    writer.close()
    assert [number for batch in disk.batches for number in batch] == list(range(1, 8))
    assert len(disk.batches) <= 3  # the first may have been taken alone
    assert max(map(len, disk.batches)) <= 4


def test_a_refusal_is_one_callers_and_a_failed_commit_is_everybodys() -> None:
    disk = Disk()
    writer = GroupCommit("test", disk.commit, 8)
    disk.free.set()
    good, bad = writer.submit(1), writer.submit(-1)
    assert good.result(20.0) == 10
    with pytest.raises(ValueError, match="-1"):
        bad.result(20.0)
    disk.fails = OSError("disk full")
    for answer in [writer.submit(number) for number in range(3)]:
        with pytest.raises(OSError, match="disk full"):
            answer.result(20.0)
    disk.fails = None
    assert writer.submit(2).result(20.0) == 20  # the writer itself goes on
    writer.close()


def test_closing_commits_what_waits_and_what_was_cancelled_is_left_out() -> None:
    disk = Disk()
    writer = GroupCommit("test", disk.commit, 1)
    answers = [writer.submit(number) for number in range(4)]
    assert answers[3].cancel()
    disk.free.set()
    writer.close()
    assert [answer.result(0.0) for answer in answers[:3]] == [0, 10, 20]
    assert disk.batches == [[0], [1], [2]]
