"""Bets on single edited tokens: fair to machines within the stated tail, and quick to find one token in 4,096."""

import numpy as np
import pytest

from shoal.protocol.rates.honest_rates import EDGES, FALL, Histogram, HonestRates, bounds
from shoal.protocol.rates.shipped import default_rates
from shoal.validate.numerics.account import BAN_NATS, Account, mean_of
from shoal.validate.numerics.bets import EDIT_EVERY, UNEXPLAINED, Bets, Floats, Noise, Observed, edit_bet
from shoal.validate.numerics.judge import BETS
from shoal.validate.numerics.ways import WAYS

FILE = 4096
# Of SmolLM2-135M in bfloat16.
NOISE = Noise(0.064, 0.5)


@pytest.fixture(scope="module")
def bets() -> Bets:
    return Bets(default_rates())


def file_of(short_T: Floats, close_T: Floats) -> list[Observed]:
    return [Observed(np.zeros(len(short_T)), short_T, close_T, np.zeros(0))]


def payoffs(bets: Bets, distances: Floats, close: float) -> dict[str, Floats]:
    """What one token pays that is so many times the noise below the best."""
    won = [bets.nats(file_of(np.array([d * NOISE.gap]), np.array([close])), NOISE) for d in distances]
    return {edit_bet(every): np.exp([file[edit_bet(every)] for file in won]) for every in EDIT_EVERY}


@pytest.mark.parametrize("close", [0.0, 1e-6, 0.01, 0.5, 1.0])
def test_a_token_at_the_bounds_pays_at_most_one_on_average_and_more_the_further_it_is_off(
    bets: Bets, close: float
) -> None:
    """The worst honest machine: all bounds are reached, and one token of a million is as far off as can be."""
    above = close * NOISE.gap * bounds(default_rates().shortfalls.values(), intensity=True, exponential=True)
    above = np.minimum(1.0, above + UNEXPLAINED)
    mass = np.concatenate([[1 - above[0]], above - np.append(above[1:], 0.0)])
    for bet, paid in payoffs(bets, np.concatenate([[0.0], EDGES * 1.001 + 1e-9]), close).items():
        assert (mass * paid).sum() <= 1 + 1e-12, bet
        assert (np.diff(paid) >= -1e-12).all(), bet


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_an_honest_node_with_exponential_tails_is_not_banned(bets: Bets, scale: float) -> None:
    """Shortfalls are up to 4.0 times the noise on average: as far beyond the noise as the tail may reach."""
    rng, totals = np.random.default_rng(0), list[float]()
    account = Account()
    for _ in range(200):
        close_T = rng.uniform(0, 0.9, FILE)
        flips_T = rng.random(FILE) < 0.6 * close_T * NOISE.gap
        nats = bets.nats(file_of(np.where(flips_T, rng.exponential(scale * NOISE.gap, FILE), 0.0), close_T), NOISE)
        won = {name: nats[name] for name in map(edit_bet, EDIT_EVERY)}
        account.add(won, FILE, BETS)
        totals.append(mean_of(list(won.values())))
    assert account.highest < 1
    assert all((np.array(totals) > x).mean() <= np.exp(-x) for x in range(1, 7))


def test_one_token_drawn_again_per_file_is_found_within_twenty_files(bets: Bets) -> None:
    """The median of nodes on SmolLM2: the edited token is drawn from the distribution, as a cheat would to look
    natural."""
    lives = []
    for node in range(9):
        rng, account = np.random.default_rng(node), Account()
        while account.nats() < BAN_NATS and account.files < 50:
            close_T = rng.uniform(0, 1, FILE)
            flips_T = rng.random(FILE) < 0.5 * close_T * NOISE.gap
            short_T = np.where(flips_T, rng.exponential(0.9 * NOISE.gap, FILE), 0.0)
            short_T[7], close_T[7] = redrawn(rng)
            account.add(bets.nats(file_of(short_T, close_T), NOISE), FILE, BETS)
        lives.append(account.files)
    assert np.median(lives) <= 20, lives


def redrawn(rng: np.random.Generator) -> tuple[float, float]:
    """Shortfall and density of close calls of a place whose token was drawn again among those that the noise did not
    pick: by quantiles of 768 such tokens of SmolLM2."""
    shares, nats = (0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1), (0, 0.47, 0.84, 2.18, 4.43, 7.43, 10.5, 14)
    return float(np.interp(rng.random(), shares, nats)), rng.random()


@pytest.mark.parametrize("way", [*WAYS, "vllm", "cpu", "cpu-short"])
def test_tails_of_a_way_are_below_bounds_that_never_saw_it(way: str) -> None:
    rates = default_rates()
    above = bounds(rates.without(way).shortfalls.values(), intensity=True, exponential=True)
    own = [rates.shortfalls[name] for name in (way, f"smollm2/{way}") if name in rates.shortfalls]
    assert own
    assert all((np.array(seen.above) / seen.count <= above).all() for seen in own)


def test_tails_of_either_model_are_below_bounds_of_the_other_alone() -> None:
    """SmolLM2's rest on a thirteenth of the tokens of the tiny model's, and bound what is only seen in so many more."""
    shortfalls = default_rates().shortfalls
    smollm2 = [seen for name, seen in shortfalls.items() if name.startswith("smollm2/")]
    tiny = [seen for name, seen in shortfalls.items() if "/" not in name]
    for known, others in ((smollm2, tiny), (tiny, smollm2)):
        above = bounds(known, intensity=True, exponential=True)
        assert all((np.array(seen.above) / seen.count <= above).all() for seen in others)


@pytest.mark.parametrize("kind", ["tiny", "smollm2"])
def test_tails_fall_faster_than_is_assumed(kind: str) -> None:
    """The mean excess of an exponential tail is its scale wherever it is measured; of a heavier one it grows."""
    own = [seen for name, seen in default_rates().shortfalls.items() if ("/" in name) == (kind == "smollm2")]
    above = np.sum([seen.above for seen in own], axis=0)
    for edge in (1.0, 2.0, 4.0):
        at = int(np.searchsorted(EDGES, edge))
        # As if each were at the end of its bin.
        excess = (above[at:-1] * np.diff(EDGES[at:])).sum() / above[at]
        assert excess < FALL, edge


def test_rates_that_rest_on_little_bound_all_the_same() -> None:
    """A few tokens of an exponential tail: their bounds lie above the truth far beyond what was seen."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        short = rng.exponential(1.5, 60)
        rates = HonestRates.of({"way": (Histogram.of(short), Histogram.of(short, 100.0), Histogram.of(short))})
        above = bounds(rates.shortfalls.values(), intensity=True, exponential=True)
        assert (above >= 0.6 * np.exp(-EDGES / 1.5)).all()
