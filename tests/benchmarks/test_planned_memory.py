"""A plan against memory that is tracked while real code runs, on the tiny model; the benchmark has larger ones."""

import pytest

from benchmarks.training.planned_memory import WITHIN, compare, tiny


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_plan_is_within_a_tenth_of_what_training_generation_versions_and_files_take(recomputed: bool) -> None:
    ratios = compare(tiny(activation_checkpointing=recomputed))
    assert {what: ratio for what, ratio in ratios.items() if abs(ratio - 1) > WITHIN} == {}
