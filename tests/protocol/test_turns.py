"""Runs of drawn and inserted tokens, and what a file may say of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import RolloutError
from shoal.protocol.rollout_rules import Limits
from shoal.protocol.submission import Submission, groups_with_signal, read_rollouts, write_rollouts
from shoal.protocol.turns import breaks_form, drawn_count, drawn_places, drawn_runs, inserted_runs, turns_of
from tests.support.submissions import ROOT, make_lease, make_rollout

LIMITS = Limits(group_size=2, vocab=260, max_prompt_tokens=16, max_new_tokens=8, max_turns=3)


def runs(*lengths: int) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    return np.array(lengths, np.int32)


@given(st.lists(st.integers(1, 5), min_size=3, max_size=9).filter(lambda lengths: len(lengths) % 2))
def test_drawn_and_inserted_places_divide_an_answer_between_them(lengths: list[int]) -> None:
    own, total = runs(*lengths), sum(lengths)
    drawn = [place for begin, end in drawn_runs(own, total) for place in range(begin, end)]
    inserted = [place for begin, end in inserted_runs(own) for place in range(begin, end)]
    assert sorted(drawn + inserted) == list(range(total))
    assert drawn_places(own, total).tolist() == drawn
    assert (drawn_count(own, total), turns_of(own)) == (len(drawn), len(lengths) // 2 + 1)
    assert breaks_form(own, total, turns_of(own)) == ""


def test_an_answer_of_one_turn_is_drawn_whole() -> None:
    none = runs()
    assert list(drawn_runs(none, 4)) == [(0, 4)]
    assert drawn_places(none, 4).tolist() == [0, 1, 2, 3]
    assert (turns_of(none), drawn_count(none, 4), list(inserted_runs(none))) == (1, 4, [])


def submission(**changes: Any) -> Submission:
    lease = make_lease(groups=1)
    first = make_rollout(0, 0, completion=[20, 1, 40, 41, 30, 1], logprobs=[-0.5, -0.1, -0.2, -0.3])
    episode = replace(first, **{"runs": runs(2, 2, 2), **changes})
    return Submission(lease, 3, ROOT, [episode, make_rollout(0, 1)])


def read(path: Path, own: Submission, limits: Limits = LIMITS) -> Submission:
    path.write_bytes(write_rollouts(own, groups_with_signal(own)))
    return read_rollouts(path, own.lease, limits)


def test_an_episode_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    own = submission()
    found = read(tmp_path / "0000.parquet", own)
    assert found == own
    assert found.rollouts[0].drawn.tolist() == [20, 1, 30, 1]
    assert found.rollouts[0].turns == [(0, 2), (4, 6)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"runs": runs(2, 4)}, "drawn tokens first and last"),
        ({"runs": runs(6)}, "drawn tokens first and last"),
        ({"runs": runs(2, 0, 4)}, "a run of 0 tokens"),
        ({"runs": runs(2, 2, 3)}, "runs of 7 tokens together, the answer has 6"),
        ({"runs": runs(1, 1, 1, 1, 1, 0, 1)}, "a run of 0 tokens"),
        ({"logprobs": np.zeros(6, np.float32)}, "6 log-probs for 4 tokens"),
    ],
)
def test_runs_that_are_not_those_of_turns_are_refused_by_name(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(RolloutError, match=said):
        read(tmp_path / "0000.parquet", submission(**changes))


def test_turns_are_refused_where_no_task_is_played_in_turns(tmp_path: Path) -> None:
    one_turn = Limits(group_size=2, vocab=260, max_prompt_tokens=16, max_new_tokens=8)
    with pytest.raises(RolloutError, match="2 turns, allowed 1"):
        read(tmp_path / "0000.parquet", submission(), one_turn)
