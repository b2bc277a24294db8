"""Random histories: credits are never negative, lost or made; a refusal changes nothing; nothing counts twice."""

import copy
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.ledger.acts import Act, Open
from shoal.ledger.refusal import Refused
from shoal.ledger.rules import apply, opened
from shoal.ledger.state import FULL_STANDING, State
from tests.support.ledgers import COORDINATOR, RUN, make_terms

from .moves import MAX_KIND, MOVES, Move, act_of


def fresh() -> State:
    return opened(RUN, COORDINATOR.address, Open(terms=make_terms(rate=3, judge_pay=5, slash_files=2)), on_chain=True)


def amounts(state: State) -> list[int]:
    found = [state.treasury, state.held.fresh, state.held.old, state.paid_out, state.forfeited, state.unsettled]
    for account in state.accounts.values():
        lock = account.lock
        found += [
            account.stake,
            account.gift,
            account.leaving,
            account.earned,
            lock.fresh,
            lock.old,
            account.offences,
            account.accepted,
        ]
        found += [account.slashed, account.voided, account.paid]
    return found


@settings(max_examples=60)
@given(st.lists(MOVES, min_size=60, max_size=120))
def test_balances_stay_positive_and_everything_is_conserved(moves: list[Move]) -> None:
    state, entered = fresh(), list[tuple[str, Act]]()
    for move in moves:
        author, act = act_of(state, move)
        with suppress(Refused):
            apply(state, author.address, act)
            entered.append((author.address, act))
        assert min(amounts(state)) >= 0
        assert state.total() == state.brought_in - state.paid_out
        assert all(0 <= judge.standing <= FULL_STANDING for judge in state.judges.values())
    again = fresh()
    for address, act in entered:
        apply(again, address, act)
    assert again == state  # so what was refused had changed nothing


@settings(max_examples=30)
@given(st.lists(MOVES, min_size=40, max_size=80))
def test_no_entry_applies_twice(moves: list[Move]) -> None:
    state = fresh()
    entered: list[tuple[str, Act]] = []
    for move in moves:
        author, act = act_of(state, move)
        try:
            apply(state, author.address, act)
        except Refused:
            continue
        entered.append((author.address, act))
    before = copy.deepcopy(state)
    for address, act in entered:
        with pytest.raises(Refused):
            apply(state, address, act)
    assert state == before


def test_random_histories_reach_every_kind_of_entry() -> None:
    """The two properties above say something only if acts of every kind are entered."""
    random, kinds, outcomes = Random(3), set[str](), set[str]()
    rulings = 0
    for _ in range(60):
        state = fresh()
        for _ in range(200):
            a, b, c = (random.randrange(1 << 16) for _ in range(3))
            author, act = act_of(state, (random.randrange(MAX_KIND + 1), a, b, c))
            try:
                apply(state, author.address, act)
            except Refused:
                continue
            kinds.add(act.kind)
        rulings += sum(len(batch.rulings) for batch in state.batches)
        outcomes |= {letter for batch in state.batches for letter in batch.outcomes}
    assert kinds >= {"register", "fund", "deposit", "unbond", "withdraw", "work", "commit", "reveal"}
    assert kinds >= {"settle", "challenge", "rule", "stake", "advance", "close", "refund"}
    assert outcomes == {"a", "r", "v", "x"}
    assert rulings > 20
