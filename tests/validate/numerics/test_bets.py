"""Bets are fair to honest machines, whatever their noise looks like below the bounds, and win against others."""

import numpy as np
import pytest

from shoal.protocol.rates.honest_rates import EDGES, Histogram, HonestRates, bounds, upper_bound
from shoal.protocol.rates.shipped import default_rates
from shoal.validate.numerics.account import BAN_NATS, Account, mean_of
from shoal.validate.numerics.bets import TILTS, Bets, Noise, Observed, bet_names, histograms

TOKENS = 256
NOISE = Noise(0.02, 0.5)
SCALES = (0.7, 1.0, 1.2)


def answer(rng: np.random.Generator, scale: float = 1.0, shift: float = 0.0) -> Observed:
    """Gaussian noise of so many times the judge's own; `shift` of the way to another computation."""
    other_T = 0.5 * NOISE.gap * rng.standard_normal(TOKENS)
    gaps_T = scale * NOISE.gap * rng.standard_normal(TOKENS) + shift * other_T
    close_T = rng.uniform(0, 0.9, TOKENS)
    flips_T = rng.random(TOKENS) < 0.56 * close_T * scale * NOISE.gap
    shortfalls_T = np.where(flips_T, scale * NOISE.gap * np.abs(rng.standard_normal(TOKENS)), 0.0)
    chunks_C = NOISE.mantissa * scale * rng.uniform(0.8, 1.2, TOKENS // 32)
    return Observed(gaps_T, shortfalls_T, close_T, chunks_C, {"other": other_T})


def calibrated(
    rng: np.random.Generator, scales: tuple[float, ...] = (0.7, 1.0, 1.2), answers: int = 200
) -> HonestRates:
    ways = {f"x{scale}": histograms([answer(rng, scale) for _ in range(answers)], NOISE) for scale in scales}
    return HonestRates.of(ways)


@pytest.fixture(scope="module")
def bets() -> Bets:
    return Bets(calibrated(np.random.default_rng(0)))


@pytest.mark.parametrize("scale", [0.0, 0.7, 1.2, 1.5])
def test_an_honest_file_has_more_than_x_nats_less_often_than_e_to_the_minus_x(bets: Bets, scale: float) -> None:
    """Also one whose noise is 1.5 times that of all that calibration saw: the margin."""
    rng = np.random.default_rng(1)
    files = [bets.nats([answer(rng, scale) for _ in range(4)], NOISE) for _ in range(400)]
    names = bet_names(["other"])
    for bet in names:
        won = np.array([file[bet] for file in files])
        for x in (1, 2, 3):
            assert (won > x).mean() <= np.exp(-x), bet
    together = np.array([mean_of([file[bet] for bet in names]) for file in files])
    assert all((together > x).mean() <= np.exp(-x) for x in range(1, 7))


def test_odds_on_a_scale_pay_one_on_average_at_the_bounds_and_never_fall(bets: Bets) -> None:
    above = bounds(calibrated(np.random.default_rng(0)).gaps.values())
    mass = np.concatenate([[1.0], above[1:]]) - np.append(above[1:], 0.0)
    for tilt in TILTS:
        odds = bets._gaps[tilt]  # what is promised is promised of these numbers
        assert (np.exp(odds) * mass).sum() == pytest.approx(1.0, abs=1e-9)
        assert (np.diff(odds) >= 0).all()


def test_a_bet_on_a_shift_is_fair_to_noise_of_any_size_and_to_a_small_bias() -> None:
    rng = np.random.default_rng(2)
    fair = Bets(calibrated(rng))
    for scale, shift in ((0.1, 0.0), (10.0, 0.0), (1.0, 0.3), (1.0, -1.0)):
        won = np.exp([fair.nats([answer(rng, scale, shift)], NOISE)["shift other"] for _ in range(500)])
        assert won.mean() <= 1 + 3 * won.std() / np.sqrt(len(won)), (scale, shift)


def test_a_shift_below_the_noise_is_found_within_a_few_thousand_tokens(bets: Bets) -> None:
    """Half as large as the noise, so that the sum is 1.1 times the noise, which no bet on sizes could tell."""
    rng = np.random.default_rng(3)
    account = Account()
    while account.nats() < BAN_NATS and account.tokens < 20_000:
        account.add(bets.nats([answer(rng, 1.0, 1.0) for _ in range(4)], NOISE), 4 * TOKENS, bet_names(["other"]))
    assert account.tokens < 10_000
    assert max(account.won, key=lambda bet: account.won[bet]) == "shift other"


def test_one_impossible_token_per_file_is_found_within_twenty_files(bets: Bets) -> None:
    rng = np.random.default_rng(4)
    account = Account()
    while account.nats() < BAN_NATS and account.files < 50:
        answers = [answer(rng) for _ in range(16)]
        answers[0].shortfalls_T[7] = 3.0
        account.add(bets.nats(answers, NOISE), 16 * TOKENS, bet_names(["other"]))
    assert account.files <= 20


@pytest.mark.parametrize("lies", [1, 8, 38])
def test_a_few_answers_with_false_log_probs_are_found_among_many_honest_ones(lies: int) -> None:
    """By the odds that come with Shoal: the honest rest of a file of 128 answers outweighs nothing."""
    fair, rng = Bets(default_rates()), np.random.default_rng(11)
    account = Account()
    while not account.is_over and account.files < 30:
        answers = [answer(rng) for _ in range(128)]
        for false in answers[:lies]:
            false.gaps_T[:] = 5.0
        account.add(fair.nats(answers, NOISE), 128 * TOKENS, bet_names(["other"]))
    assert account.files <= 20


def test_numbers_that_are_none_count_as_far_off(bets: Bets) -> None:
    broken = answer(np.random.default_rng(5))
    for column in (broken.gaps_T, broken.shortfalls_T, broken.chunks_C):
        column[:] = np.nan
    won = bets.nats([broken], NOISE)
    assert all(np.isfinite(value) for value in won.values())
    assert won["gaps 1.5"] > 3
    assert won["chunks 1.5"] > 3
    assert won["shortfalls 0 x16"] > 100


def test_a_file_too_short_for_a_unit_says_nothing_about_gaps(bets: Bets) -> None:
    empty = Observed(np.zeros(3), np.zeros(3), np.zeros(3), np.zeros(0))
    won = bets.nats([empty], NOISE)
    assert {won[f"gaps {tilt:g}"] for tilt in TILTS} == {0.0}
    assert bets.nats([], NOISE).keys() == {*bet_names([])}


def test_an_honest_node_is_never_banned_though_its_files_are_many(bets: Bets) -> None:
    """A hundred nodes of two hundred files each, at the worst noise that is promised for: none comes near."""
    rng = np.random.default_rng(6)
    pool = [bets.nats([answer(rng, 1.5) for _ in range(2)], NOISE) for _ in range(300)]
    names, worst = bet_names(["other"]), -np.inf
    for _ in range(100):
        account = Account()
        for number in rng.integers(0, len(pool), 200):
            account.add(pool[number], 2 * TOKENS, names)
            worst = max(worst, account.nats())
    assert worst < BAN_NATS / 2


def test_evidence_reaches_a_level_no_more_often_than_ville_says() -> None:
    """Fair coins, doubled or lost: over a long life the account reaches 100 in less than 1 of 100 cases."""
    rng = np.random.default_rng(7)
    reached = 0
    for _ in range(1000):
        account = Account()
        for won in rng.choice([np.log(1.9), np.log(0.1)], 300):
            account.add({"coin": won}, 1, ["coin"])
            if account.nats() >= np.log(100):
                reached += 1
                break
    assert reached <= 10 + 3 * np.sqrt(10)


def test_a_cheat_that_begins_late_costs_two_logs_of_its_beginning_more() -> None:
    account = Account()
    for _ in range(999):
        account.add({"bet": -5.0}, 1, ["bet"])
    for _ in range(10):
        account.add({"bet": 3.0}, 1, ["bet"])
    assert account.nats() == pytest.approx(30 - np.log(1000 * 1001), abs=0.2)


def test_a_bet_that_was_not_laid_keeps_what_it_had() -> None:
    account = Account()
    account.add({"a": 1.0}, 1, ["a", "b"])
    before = account.won["b"]
    account.add({"a": 1.0}, 1, ["a", "b"])
    assert account.won["b"] == pytest.approx(np.logaddexp(before, -np.log(6)))


def test_a_bound_holds_in_all_but_a_share_of_cases() -> None:
    rng = np.random.default_rng(8)
    seen = rng.binomial(1000, 0.01, 20_000)
    table = {count: upper_bound(count, 1000, 0.01) for count in set(seen.tolist())}
    assert np.mean([table[count] < 0.01 for count in seen.tolist()]) <= 0.01
    assert upper_bound(0, 0) == np.inf
    assert pytest.approx(upper_bound(0, 1000), rel=0.01) == 9.2 / 1000


def test_histograms_of_two_machines_add_up() -> None:
    rng = np.random.default_rng(9)
    first, second = rng.exponential(1, 100), rng.exponential(1, 50)
    assert Histogram.of(first) + Histogram.of(second) == Histogram.of(np.concatenate([first, second]))
    both = calibrated(rng, (1.0,), 5) + calibrated(rng, (1.0, 1.2), 5)
    assert both.gaps.keys() == {"x1.0", "x1.2"}
    assert both.gaps["x1.0"].count == 2 * both.gaps["x1.2"].count


def test_bounds_fall_beyond_what_was_seen_and_are_wider_by_the_margin() -> None:
    seen = Histogram.of(np.random.default_rng(10).exponential(1, 10_000))
    plain, wide = bounds([seen], margin=1.0), bounds([seen], margin=2.0)
    assert (np.diff(plain) <= 1e-12).all()
    assert (wide >= plain).all()
    assert wide[20] == plain[16]  # four steps are a doubling
    assert plain[-1] < 1e-6 < plain[np.searchsorted(EDGES, 8)]
