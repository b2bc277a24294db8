"""What a supervisor does: its owner's wish comes before everything, and an honest worker is tried again."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lend.decisions import FIRST_RETRY_S, LONGEST_RETRY_S, after_end, decide, retry_after_s
from shoal.lend.state_files import Want
from shoal.process import EXIT_BANNED, EXIT_LIMIT, EXIT_REFUSED

wants = st.sampled_from(get_args(Want))
reasons = st.sampled_from(["", "some reason"])


@given(wants, reasons, reasons, st.booleans(), st.floats(-10, 10), st.booleans())
def test_nothing_is_ever_started_against_a_wish_or_a_condition(
    want: Want, blocked: str, halted: str, running: bool, retry_in_s: float, renew: bool
) -> None:
    found = decide(want, blocked, halted, running=running, retry_in_s=retry_in_s, renew=renew)
    if want != "work" or blocked or (halted and not running):
        assert found.act not in ("start", "watch")
    if running and (want in ("pause", "stop") or blocked):
        assert found.act == "end at once"
    if found.act == "start":
        assert not running
    if found.act == "exit":
        assert not running
        assert want in ("stop", "finish")


def test_finish_lets_the_worker_hand_in_what_it_has_and_then_ends() -> None:
    assert decide("finish", "", "", running=True, retry_in_s=0).act == "finish"
    assert decide("finish", "", "", running=False, retry_in_s=0).act == "exit"


@pytest.mark.parametrize(
    ("blocked", "halted", "failure", "handed_in", "reason"),
    [
        ("", "", "", True, "the leases were handed in"),
        ("it is 12:30", "", "", True, "the leases were handed in"),
        ("", "", "the worker ended with 1", False, "nothing more was handed in: the worker ended with 1"),
        ("", "--memory 1 GB: used 2 GB", "", False, "nothing more was handed in: --memory 1 GB: used 2 GB"),
        ("it is 12:30", "", "", False, "nothing more was handed in: it is 12:30"),
        ("", "", "", False, "nothing was under way"),
    ],
)
def test_a_finish_says_that_leases_were_handed_in_only_if_they_were(
    blocked: str, halted: str, failure: str, handed_in: bool, reason: str
) -> None:
    found = decide("finish", blocked, halted, running=False, retry_in_s=9.0, failure=failure, handed_in=handed_in)
    assert (found.act, found.state, found.reason) == ("exit", "ended", reason)


def test_other_limits_wait_for_the_leases_under_way() -> None:
    assert decide("work", "", "", running=True, retry_in_s=0, renew=True).act == "finish"
    assert decide("work", "", "", running=False, retry_in_s=0, renew=True).act == "start"


@pytest.mark.parametrize(
    ("code", "words", "halts", "completes", "failure"),
    [
        (0, "", False, True, ""),
        (EXIT_BANNED, "bad files", True, False, "this node is banned: bad files"),
        (EXIT_LIMIT, "--memory 1 GB: too small", True, False, "--memory 1 GB: too small; shoal lend limits changes it"),
        (EXIT_REFUSED, "no coordinator", False, False, "no coordinator"),
        (-9, "", False, False, "the worker was killed by signal 9"),
        (1, "", False, False, "the worker ended with 1"),
    ],
)
def test_an_end_means_what_its_code_says(code: int, words: str, halts: bool, completes: bool, failure: str) -> None:
    ended = after_end(code, words, asked_to_finish=False)
    assert (ended.halts, ended.completes, ended.failure) == (halts, completes, failure)


def test_a_worker_that_ended_because_it_was_asked_to_has_not_completed_the_run() -> None:
    assert not after_end(0, "", asked_to_finish=True).completes


def test_tries_come_further_and_further_apart_but_never_end() -> None:
    pauses = [retry_after_s(failures) for failures in range(1, 2000)]
    assert pauses[0] == FIRST_RETRY_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_RETRY_S
