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

SMALL = Size(2, 4, 8, files=2, honest={1: 2, 64: 2}, plain=2, lr=1e-2, trained_on=4)
# One kind of each sort of check; tests/attacks has all of them caught.
CHECKED_BY = {
    "false_reward": "rewards",
    "parquet_bomb": "format",
    "random_proof": "computation",
    "best_of_n": "sampling",
}


@pytest.fixture(scope="module")
def tally(tiny_dir: Path) -> Tally:
    torch.set_num_threads(1)
    with Progress(Console(file=io.StringIO())) as progress, pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "ATTACKS", {attack: ATTACKS[attack] for attack in CHECKED_BY})
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


def test_attacks_are_made_and_counted_under_the_check_that_caught_them(tally: Tally) -> None:
    assert tally.caught == dict.fromkeys(CHECKED_BY, 1.0)
    assert tally.counted == dict.fromkeys(CHECKED_BY, 2)
    assert tally.by == {attack: Counter({check: 2}) for attack, check in CHECKED_BY.items()}


def test_honest_files_of_every_kind_pass(tally: Tally) -> None:
    assert tally.honest == 6
    assert tally.rejected == Counter()


def test_the_rate_of_an_attack_is_the_lower_of_the_two_models() -> None:
    good = Tally(dict.fromkeys(ATTACKS, 1.0), {a: Counter(format=4) for a in ATTACKS}, dict.fromkeys(ATTACKS, 4), {}, 9)
    rates = {**good.caught, "int8": 0.99}
    by = {**good.by, "int8": Counter({"logprobs": 2, "not caught": 2})}
    bad = Tally(rates, by, good.counted, {}, 5, Counter(sampling=1))
    result = bench._result({"tiny": good, "smollm2": bad}, {}, {})
    assert (result.values["caught.int8"], result.values["caught_tiny.int8"]) == (0.99, 1.0)
    assert result.values["by.int8"] == "format 4, logprobs 2, not caught 2"
    assert result.values["honest_files"] == 14
    assert not result.met("caught.int8")
    assert not result.met("honest_rejected")
    assert not result.met("honest_files")
    assert "honest_files" not in bench._result({"tiny": good}, {}, {}, quick=True).bars
    assert result.met("caught.int4")
