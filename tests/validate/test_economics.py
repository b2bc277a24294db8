"""What cheating gains with the default config: nothing, at any share of answers, any length of fakes, with any keys."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.validation.economics import BEFORE, SHAPES, default_config
from benchmarks.validation.economics_simulation import (
    LENGTH,
    File,
    is_found_out,
    recomputed_share,
    simulated_gains,
    simulated_strike,
)
from shoal.config import AuditConfig
from shoal.validate.audit import Audits
from shoal.validate.economics import (
    LENGTHS,
    Sampling,
    answers_per_file,
    answers_per_step,
    gain,
    gain_of_file,
    gain_of_rounding,
    poisoned_share,
    worst,
    worst_strike,
)
from tests.support.model_and_checks import World
from tests.support.validator_in_process import open_court

CONFIG = default_config()
ANSWERS = answers_per_file(CONFIG)
NOW = Sampling.of(CONFIG.audit, ANSWERS)
SHARES = [k / ANSWERS for k in range(1, ANSWERS + 1)]


@pytest.mark.parametrize("keys", SHAPES.values(), ids=SHAPES)
def test_every_share_of_fakes_of_every_length_is_a_loss(keys: int) -> None:
    gains = [gain(CONFIG, share, keys, 1.0, length=length) for share in SHARES for length in LENGTHS]
    assert max(gains) == worst(CONFIG, keys, 1.0)[0] < 0


def test_a_file_with_fakes_is_a_loss_even_if_nothing_is_locked_or_staked() -> None:
    """So the loss does not depend on how slow a key is, on a pause before it cheats, or on a stake that has left."""
    assert max(gain_of_file(NOW, share, length) for share in SHARES for length in LENGTHS) < 0


def test_stake_and_locked_pay_only_add_to_the_loss() -> None:
    share, length = 8 / ANSWERS, 8.0
    slow, fast = (gain(CONFIG, share, 1, files, length=length) for files in (0.01, 1.0))
    staked = gain(CONFIG, share, 1, 1.0, length=length, stake=3.0)
    assert fast < slow < 0
    assert staked == pytest.approx(fast - 3.0)
    assert gain(CONFIG, share, 1, 4.0, length=length) < fast, "files of one step are lost together"


def test_one_answer_of_each_file_drawn_by_answers_made_slow_keys_a_profit() -> None:
    """The table of the page: ten keys that fake 30 of 128 answers, 8 times as long, gain 3.3 files' pay each."""
    assert gain(CONFIG, 30 / 128, 10, 1.0, length=8.0, sampling=BEFORE) == pytest.approx(33.1, abs=0.1)
    assert worst(CONFIG, 1, 1.0, BEFORE, 8.0)[0] < 0 < worst(CONFIG, 10, 1.0, BEFORE, 8.0)[0]


@pytest.mark.parametrize("answers", [1, 2, 3, 16, 32, 128, 1024])
@pytest.mark.parametrize("rate", [0.001, 0.05, 0.5])
def test_files_of_any_size_are_a_loss_to_fake(answers: int, rate: float) -> None:
    sampling = Sampling.of(CONFIG.audit.model_copy(update={"rate": rate}), answers)
    assert max(gain_of_file(sampling, k / answers, n) for k in range(1, answers + 1) for n in LENGTHS) < 0


def test_audits_that_tell_half_of_the_fakes_they_see_still_make_every_share_a_loss() -> None:
    """As number formats may that hide some: up to fakes of 8 times the usual length, without any stake."""
    weak = replace(NOW, power=0.5)
    assert max(gain_of_file(weak, share, length) for share in SHARES for length in LENGTHS if length <= 8) < 0


answer = st.tuples(st.integers(1, 2000), st.booleans())


@given(st.lists(answer, min_size=1, max_size=64), st.integers(1, 4), st.integers(0, 4))
def test_fakes_are_paid_nothing_on_average_however_they_are_arranged(
    made: list[tuple[int, bool]], by_tokens: int, by_answers: int
) -> None:
    """One draw by tokens does it: the file's expected pay is at most that of its honest tokens. So a cheater's profit
    is at most an honest one's for the same computing, also if faking lets it hand in more files."""
    lengths, fakes = [length for length, _ in made], {n for n, (_, fake) in enumerate(made) if fake}
    sampling = Sampling(0.0, by_tokens, by_answers)
    honest = sum(length for n, length in enumerate(lengths) if n not in fakes)
    passes = sampling.misses_exactly(lengths, fakes)
    assert passes * sum(lengths) <= honest * (1 + 1e-9)
    spread = (honest / sum(lengths)) ** by_tokens * (1 - len(fakes) / len(made)) ** by_answers
    assert passes <= spread * (1 + 1e-9), "no arrangement passes more often than one that is spread evenly"


@settings(max_examples=15, deadline=None)
@given(st.lists(answer, min_size=9, max_size=40), st.integers(0, 2**31))
def test_the_validators_draws_miss_as_often_as_the_closed_form_says(made: list[tuple[int, bool]], seed: int) -> None:
    lengths, fakes = [length for length, _ in made], frozenset(n for n, (_, fake) in enumerate(made) if fake)
    config = AuditConfig(rate=0.05, spot_share=0.2, probation=0)
    expected = Sampling.of(config, len(lengths)).misses_exactly(lengths, fakes)
    audits, rounds = Audits(config, seed.to_bytes(32)), 1500
    files = (File(f"{n:064x}", lengths, fakes) for n in range(rounds))
    missed = sum(not is_found_out(audits, "a", file, 0) for file in files) / rounds
    assert abs(missed - expected) < 5 * (expected * (1 - expected) / rounds) ** 0.5 + 1e-9


@pytest.mark.parametrize(("fakes", "length", "every"), [(2, 8.0, 1), (8, 8.0, 1), (8, 8.0, 10), (16, 1.0, 3)])
def test_the_ledger_and_the_audits_give_what_the_closed_form_says(fakes: int, length: float, every: int) -> None:
    """Probation, pause, cheating until found out; what each key has in the end is what the ledger's rules leave it."""
    found = simulated_gains(CONFIG, fakes, every, length, keys=150, seed=fakes)
    expected = gain(CONFIG, fakes / ANSWERS, 1, 1 / every, length=length)
    assert abs(statistics.mean(found) - expected) < 4.5 * statistics.stdev(found) / len(found) ** 0.5
    assert statistics.mean(found) < 0


@pytest.mark.parametrize("keys", [10, 100])
@pytest.mark.parametrize("length", [1 / LENGTH, 1.0, 8.0])
def test_keys_that_strike_in_one_step_cannot_fill_it(keys: int, length: float) -> None:
    """However many they are: what passes is what came before the first that was found out."""
    expected, fakes = worst_strike(NOW, ANSWERS, length)
    rounds = 200
    passed = [simulated_strike(CONFIG, fakes, length, keys, seed) for seed in range(rounds)]
    error = statistics.stdev(passed) / rounds**0.5
    assert statistics.mean(passed) < expected + 4 * error
    assert expected * max(1.0, length) / answers_per_step(CONFIG) <= poisoned_share(CONFIG) < 0.05
    assert max(passed) < answers_per_step(CONFIG) / 2


def test_half_a_step_is_out_of_reach() -> None:
    """The chance that fakes of half of a step's answers all pass, in as many files as the cheater likes."""
    half = answers_per_step(CONFIG) // 2
    chances = [
        NOW.misses(half / files / ANSWERS, length) ** files
        for files in range(-(-half // ANSWERS), half + 1)
        for length in LENGTHS
    ]
    assert max(chances) < 1e-3


# Judged tokens from the turn to the ban of a node that computes with int8 after its probation, on the tiny model, by
# `audit.shift_rate`: `late_tokens` of the verification benchmark, as in docs/validation.md.
LATE_INT8 = {0.1: 11_776, 1.0: 3_584}
# Of 8 tokens per answer, as everywhere on the page.
USUAL_FILE = ANSWERS * 8


def test_in_bfloat16_a_key_gains_by_int8_what_the_page_says_until_it_is_banned() -> None:
    """Not a loss with the defaults: a ban by evidence takes nothing. It is one where the first file shows enough."""
    by_default = gain_of_rounding(LATE_INT8[CONFIG.audit.shift_rate], 0.109, USUAL_FILE)
    assert by_default == pytest.approx(46.7, abs=0.1)
    assert gain_of_rounding(LATE_INT8[1.0], 0.109, USUAL_FILE) == pytest.approx(13.9, abs=0.1)
    assert gain_of_rounding(LATE_INT8[1.0], 1.0, USUAL_FILE) == pytest.approx(0.8, abs=0.1)
    assert gain_of_rounding(LATE_INT8[1.0], 1.0, 4 * USUAL_FILE) == pytest.approx(-0.55)
    assert gain_of_rounding(LATE_INT8[0.1], 0.109, ANSWERS * 1000) == pytest.approx(-0.55), "answers of 1,000 tokens"


def test_what_is_recomputed_of_honest_work_stays_within_the_price() -> None:
    """0.145 of the tokens, at 0.55 of their generation each, is 0.08 of the generation's CPU time."""
    assert recomputed_share(CONFIG, 2000) < 0.145


def test_a_file_of_a_step_in_which_a_proven_node_was_found_out_is_computed_whole(tmp_path: Path, world: World) -> None:
    seldom = {"rate": 1e-12, "probation": 1, "strikes": 9}
    court = open_court(tmp_path / "run", world, audit=seldom)
    for node in ("cheat", "other"):
        court.hand_in(node)
    court.judge()
    before = court.hand_in("other")
    court.judge()
    caught = court.hand_in("cheat", "int4")
    court.judge()
    after = court.hand_in("other")
    court.judge()
    assert not court.verdict(caught).accept
    assert caught.step == before.step == after.step
    assert [court.verdict(lease).audited for lease in (before, after)] == [False, True]
    assert court.verdict(after).accept


def test_a_newcomer_that_is_found_out_raises_no_alarm(tmp_path: Path, world: World) -> None:
    """Free keys would otherwise have every file computed whole."""
    court = open_court(tmp_path / "run", world, audit={"rate": 1e-12, "probation": 1, "strikes": 9})
    court.hand_in("other")
    court.judge()
    court.hand_in("fresh", "int4")
    court.judge()
    after = court.hand_in("other")
    court.judge()
    assert (court.verdict(after).accept, court.verdict(after).audited) == (True, False)
