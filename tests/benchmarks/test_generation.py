"""Both sides of the engine benchmark do the work they are timed for."""

from pathlib import Path

import pytest

from benchmarks.generation.sides import Generate, Ours, Work, ragged_work, stopwatch
from shoal.models.load import load
from shoal.tasks.sources.gym.source import ReasoningGym


def work() -> Work:
    policy_prompts = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [14]]
    return Work(policy_prompts, [3, 9, 1, 6])


def test_work_is_ragged_and_the_same_every_time(tiny_dir: Path) -> None:
    policy, tasks = load(tiny_dir), ReasoningGym("spell_backward", {})
    once = ragged_work(policy, tasks, 64, 256)
    assert once == ragged_work(policy, tasks, 64, 256)
    assert 8 <= min(once.lengths) < 40
    assert 220 < max(once.lengths) <= 256
    assert once.lengths != sorted(once.lengths)
    assert once.first(3).tokens == sum(once.lengths[:3])
    assert [len(part.prompts) for part in once.batches(24)] == [24, 24, 16]


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_both_sides_run_every_answer_to_its_own_length(tiny_dir: Path, batch: int) -> None:
    # Each side asserts the lengths it produced.
    assert Ours(load(tiny_dir)).tokens_per_s(work(), batch) > 0
    assert Generate(tiny_dir).tokens_per_s(work(), batch) > 0


def test_generate_draws_from_the_whole_distribution_and_nothing_ends_an_answer(tiny_dir: Path) -> None:
    settings = Generate(tiny_dir)._model.generation_config
    assert (settings.top_k, settings.top_p, settings.temperature, settings.eos_token_id) == (0, 1.0, 1.0, None)


def test_the_share_of_sampling_is_a_share(tiny_dir: Path) -> None:
    assert 0 < Ours(load(tiny_dir)).sampling_share([5, 6, 7], batch=4, length=8) < 1


def test_a_stopwatch_on_something_that_never_runs_says_so() -> None:
    class Owner:
        def work(self) -> None: ...

    with pytest.raises(AssertionError, match="never called"), stopwatch(Owner, "work"):
        pass
