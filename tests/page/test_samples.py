"""Samples on the page: what was drawn beside how likely it was, whatever a file says of its parts."""

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shoal.page.rollouts import sample_document
from shoal.protocol.rollout import bare_rollout


class Plain:
    """Shows token numbers."""

    def text(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return list(map(str, ids))


def test_log_probs_stand_beside_the_tokens_that_were_drawn_and_none_beside_what_was_inserted() -> None:
    runs = np.array([2, 3, 1], np.int32)
    turned = replace(bare_rollout([5], [6, 7, 8, 9, 10, 11], [-1.0, -2.0, -3.0]), runs=runs)
    shown = sample_document(turned, Plain(), tokens=True)
    assert shown["logprobs"] == [-1.0, -2.0, 0.0, 0.0, 0.0, -3.0]
    assert len(shown["pieces"]) == 6  # type: ignore[arg-type]
    assert shown["mean_logprob"] == -2.0


def test_parts_that_are_nested_too_deeply_are_none_and_end_no_process() -> None:
    limit = sys.getrecursionlimit()
    deep = replace(bare_rollout([5], [6]), parts="[" * 100_000)
    try:
        sys.setrecursionlimit(100_000)
        assert sample_document(deep, Plain())["parts"] == {}
    finally:
        sys.setrecursionlimit(limit)
