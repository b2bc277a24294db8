"""`python -m benchmarks verification`: what it counts comes from real judging of real computations."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks.common.progress import Progress
from benchmarks.validation import verification as bench
from benchmarks.validation.numeric_lives import MAX_TOKENS, live, tokens_until_ban, validity, with_draw
from benchmarks.validation.numeric_testbed import CHEATS, Sight, Size, look
from shoal.config import AuditConfig
from shoal.validate.audit import COMPARED
from shoal.validate.numerics.alternative_names import shift_bet
from shoal.validate.numerics.bets import Observed
from shoal.validate.numerics.judge import BETS, Weighed
from shoal.validate.numerics.ways import WAYS
from tests.support.roles_in_process import make_config

SMALL = Size(16, 32, 8, 16, ("flash",), steps=1)


@pytest.fixture(scope="module")
def sight(tiny_dir: Path) -> Sight:
    torch.set_num_threads(1)
    tasks = [
        {"source": "reasoning-gym/spell_backward", "binary": False, "options": {"min_word_len": 3, "max_word_len": 5}}
    ]
    config = make_config(
        tiny_dir,
        tasks=tasks,
        model={"dtype": "bfloat16"},
        sampling={"max_prompt_tokens": 64},
        train={"token_budget": 1024, "groups_per_step": 12, "lr": 1e-2},
        workers={"groups_per_submission": 2},
    )
    with Progress(Console(file=io.StringIO())) as progress:
        return look("tiny", config, SMALL, progress)


def test_every_way_is_judged_and_every_cheat_has_a_figure(sight: Sight) -> None:
    with Progress(Console(file=io.StringIO())) as progress:
        result = bench.result({"tiny": sight}, {"tiny": SMALL}, None, progress)
    values = json.loads(result.to_json())["values"]
    assert {*WAYS} <= sight.honest.keys()
    assert values["honest_files"] == len(sight.honest) * SMALL.texts // SMALL.answers
    assert values["honest_blamed"] == values["left_out_blamed"] == 0
    assert values["validity"] <= 1
    assert all(0 < values[f"tokens_{cheat}"] <= MAX_TOKENS for cheat in CHEATS)
    assert values["tokens_int4"] < values["tokens_int8"]
    assert 0 < values["edited_files"] <= 20
    # No test is better than the ideal one, which is told what to look for.
    assert values["ideal_tokens.older version.tiny"] < values["tokens_older_version"]
    assert not result.met("honest_files")  # a small run does not pass for the real one


def test_machines_are_computed_and_not_made_up(sight: Sight) -> None:
    def size(answers: list[Observed]) -> float:
        return float(np.sqrt(np.mean(np.concatenate([answer.gaps_T for answer in answers]) ** 2)))

    assert size(sight.honest["float32"]) < 1e-3
    assert size(sight.honest["flash"]) == pytest.approx(sight.noise.gap, rel=0.5)
    assert size(sight.cheats["int4", "flash"]) > 5 * size(sight.honest["flash"])
    assert sight.distances["older version"] > 1


def weighed(nats: dict[str, float]) -> Weighed:
    return Weighed(dict.fromkeys(BETS, -0.1) | nats, 100)


def test_a_shift_counts_on_the_files_that_are_compared_with_it() -> None:
    found = with_draw(weighed({}), COMPARED[:1])
    assert {shift_bet(name) in found.nats for name in COMPARED[1:]} == {False}
    assert shift_bet(COMPARED[0]) in found.nats


def test_a_life_ends_with_a_ban_and_goes_on_for_honest_nodes() -> None:
    bet = shift_bet(COMPARED[-1])  # which a newcomer is compared with last
    always = tokens_until_ban([weighed({"gaps 0.5": 5.0})], AuditConfig(), 5)
    sometimes = tokens_until_ban([weighed({bet: 5.0})], AuditConfig(), 5)
    assert always == 400
    assert always < sometimes < MAX_TOKENS
    assert tokens_until_ban([weighed({})], AuditConfig(), 1) == MAX_TOKENS
    honest = live([weighed({})] * 10, AuditConfig(), 0, 1000, to_the_end=True)
    assert (honest.files, honest.banned, honest.blamed) == (10, False, 0)


def test_validity_compares_with_what_fair_bets_allow() -> None:
    above = [Weighed(dict.fromkeys(BETS, 2.5), 1)]
    assert validity(above * 1 + [weighed({})] * 99) == pytest.approx(0.01 * np.exp(2))
    assert validity(above) > 1
