"""`python -m benchmarks attacks`: what it counts is what happened."""

import io
from collections import Counter
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.common.progress import Progress
from benchmarks.validation import attacks as bench
from benchmarks.validation.attacks import Size, Tally
from shoal.attacks import ATTACKS
from shoal.config import RunConfig
from tests.support.roles_in_process import make_config

SMALL = Size(2, 4, 8, files=3, honest={1: 2, 64: 2}, plain=2, lr=1e-2, trained_on=4)


@pytest.fixture(scope="module")
def tally(tiny_dir: Path) -> Tally:
    torch.set_num_threads(1)
    with Progress(Console(file=io.StringIO())) as progress:
        return bench._measure("tiny", small_config(tiny_dir), SMALL, progress)


def small_config(directory: Path) -> RunConfig:
    """With partial credit, so that a model that knows nothing can be trained for a step."""
    tasks = [
        {
            "source": "reasoning-gym/spell_backward",
            "binary": False,
            "options": {"min_word_len": 3, "max_word_len": 5},
        }
    ]
    return make_config(directory, tasks=tasks, sampling={"max_prompt_tokens": 64}, train={"token_budget": 1024})


def test_every_attack_is_made_and_caught_by_a_check_that_is_named(tally: Tally) -> None:
    assert set(tally.caught) == set(ATTACKS)
    assert {attack: rate for attack, rate in tally.caught.items() if rate < 1.0} == {}
    assert all(tally.counted[attack] > 0 for attack in ATTACKS)
    assert tally.by["false_reward"] == Counter(rewards=3)
    assert tally.by["parquet_bomb"] == Counter(format=3)
    assert tally.by["random_proof"] == Counter(computation=3)
    assert tally.by["best_of_n"] == Counter(sampling=3)


def test_honest_files_of_every_kind_pass(tally: Tally) -> None:
    assert tally.honest == 6
    assert tally.rejected == Counter()


def test_the_rate_of_an_attack_is_the_lower_of_the_two_models() -> None:
    good = Tally(dict.fromkeys(ATTACKS, 1.0), {a: Counter(format=4) for a in ATTACKS}, dict.fromkeys(ATTACKS, 4), {}, 9)
    rates = {**good.caught, "int8": 0.5}
    by = {**good.by, "int8": Counter({"logprobs": 2, "not caught": 2})}
    bad = Tally(rates, by, good.counted, {}, 5, Counter(sampling=1))
    result = bench._result({"tiny": good, "smollm2": bad}, {}, {})
    assert (result.values["caught.int8"], result.values["caught_tiny.int8"]) == (0.5, 1.0)
    assert result.values["by.int8"] == "format 4, logprobs 2, not caught 2"
    assert result.values["honest_files"] == 14
    assert not result.met("caught.int8")
    assert not result.met("honest_rejected")
    assert result.met("caught.int4")
