"""Evidence of several validators comes to what one validator would have, in whatever order verdicts come."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.validate.numerics.account import BAN_NATS, Account
from shoal.validate.numerics.judge import BETS, Weighed
from shoal.validate.numerics.shared_evidence import SharedEvidence, Shown

BET = BETS[0]


def alone(won: list[float]) -> Account:
    """What a single validator has against a node after these files."""
    account = Account()
    for nats in won:
        account.add({BET: nats}, 64, BETS)
    return account


def shown(nats: float | None, step: int = 0, rates: int = 0) -> Shown:
    return Shown(step, None if nats is None else {BET: nats}, 64, rates)


@settings(max_examples=50)
@given(st.lists(st.floats(-3, 9), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_any_order_of_verdicts_comes_to_the_account_of_one_validator(won: list[float], rng: random.Random) -> None:
    files = list(enumerate(won, 1))
    rng.shuffle(files)
    evidence, known = SharedEvidence(), set()
    for ordinal, nats in files:
        evidence.take("node", ordinal, shown(nats))
        known.add(ordinal)
        ready = next(n for n in range(len(won) + 1) if n + 1 not in known)
        assert evidence.of("node") == alone(won[:ready])  # never more than the files before which none is missing
    assert evidence.of("node") == alone(won)


def test_a_cheat_is_found_after_as_many_files_as_by_one_validator() -> None:
    """Three nats per file, half of the files seen by each of two validators."""
    needed = next(n for n in range(1, 99) if alone([3.0] * n).is_over)
    shared, by_half = SharedEvidence(), 0
    while not shared.of("cheat").is_over:
        by_half += 1
        shared.take("cheat", by_half, shown(3.0))
    assert by_half == needed
    assert not alone([3.0] * math.ceil(needed / 2)).is_over


def test_a_file_counts_with_itself_only_where_none_before_it_is_missing() -> None:
    evidence = SharedEvidence()
    evidence.listed(0, 7, 2)
    weighed = Weighed({BET: BAN_NATS + 9}, 64)
    assert evidence.with_file("node", 0, 7, weighed) == Account()
    evidence.take("node", 1, shown(None))
    assert evidence.with_file("node", 0, 7, weighed).is_over
    assert not evidence.of("node").is_over  # nothing is counted before its verdict has come back


def test_a_file_that_nobody_judged_is_not_waited_for_after_its_step() -> None:
    evidence = SharedEvidence()
    evidence.take("node", 2, shown(1.0, step=5))
    evidence.give_up(before=7, spread=2)
    assert evidence.of("node") == Account()
    evidence.give_up(before=8, spread=2)
    assert evidence.of("node") == alone([1.0])
    evidence.take("node", 1, shown(9.0, step=5))  # too late, and out of order
    assert evidence.of("node") == alone([1.0])


def test_files_judged_by_stricter_odds_are_counted_without_what_they_won() -> None:
    evidence = SharedEvidence()
    evidence.take("node", 1, shown(9.0))
    evidence.loosened(1)
    assert not evidence.of("node").won
    evidence.take("node", 2, shown(9.0, rates=0))
    evidence.take("node", 3, shown(1.0, rates=1))
    expected = alone([9.0])
    expected.forget()
    expected.add({}, 64, BETS)
    expected.add({BET: 1.0}, 64, BETS)
    assert evidence.of("node") == expected


@pytest.mark.parametrize("validators", [1, 2, 5])
def test_honest_nodes_reach_the_limit_no_more_often_with_several_validators(validators: int) -> None:
    """Bets that pay 1 on average, verdicts that come later the more they show: the fraction above x nats is below e^-x,
    at any moment of a life, as with one validator."""
    rng, nodes, limit = random.Random(5), 300, 2.0
    over = 0
    for _ in range(nodes):
        evidence, most = SharedEvidence(), -math.inf
        files = [(n, math.log(rng.choice((0.5, 1.5)) * rng.choice((0.5, 1.5)))) for n in range(1, 25)]
        while files:
            inflight, files = files[:validators], files[validators:]
            for ordinal, nats in sorted(inflight, key=lambda file: file[1]):
                evidence.take("node", ordinal, Shown(0, dict.fromkeys(BETS, nats), 64, 0))
                most = max(most, evidence.of("node").highest)
        over += most >= limit
    assert over / nodes <= math.exp(-limit) + 3 * (math.exp(-limit) / nodes) ** 0.5
