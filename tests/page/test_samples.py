"""Samples on the page: what was drawn beside how likely it was, whatever a file says of its parts."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.page.documents import to_json
from shoal.page.rollouts import sample_document
from shoal.page.tokens import decoder_of
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


@pytest.mark.parametrize("said", ["NaN", "1e999", "-1e999"])
def test_parts_that_are_no_numbers_of_json_break_no_page(said: str) -> None:
    """A validator may accept such parts where the score itself failed, and evidence of a refused file shows any."""
    strange = replace(bare_rollout([5], [6]), parts=f'{{"format": {said}, "task": 1}}')
    shown = sample_document(strange, Plain())
    assert shown["parts"] == {"task": 1.0}
    assert json.loads(to_json(shown))["parts"] == {"task": 1.0}


def test_a_part_that_is_larger_than_any_float_breaks_no_page() -> None:
    shown = sample_document(replace(bare_rollout([5], [6]), parts='{"task": 1' + "0" * 400 + "}"), Plain())
    assert shown["parts"] == {}


def test_a_reward_and_an_advantage_that_are_not_finite_are_none_on_a_page() -> None:
    """A bundle of evidence is read as it was written: nobody has looked at its numbers here."""
    strange = replace(bare_rollout([5], [6], [-1.0]), reward=math.nan, advantage=math.inf)
    shown = json.loads(to_json(sample_document(strange, Plain(), tokens=True)))
    assert (shown["reward"], shown["advantage"]) == (None, None)


def test_a_tokenizer_is_read_once_and_found_when_it_comes_later(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    assert decoder_of(tmp_path).text([1, 2]) == "1 2"
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    assert decoder_of(tmp_path).text([1]) == "b"
    assert decoder_of(tmp_path) is decoder_of(tmp_path)
