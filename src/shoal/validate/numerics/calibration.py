"""Calibration: honest rates of all ways of computing a model."""

from collections.abc import Callable, Mapping, Sequence

from shoal.config import RunConfig
from shoal.models.load import Policy
from shoal.protocol.rates.honest_rates import Histogram, HonestRates
from shoal.validate.numerics.bets import Noise, histograms
from shoal.validate.numerics.honest_answers import EXACT, Drawn, beside, blocks, computed, noise_of, picked
from shoal.validate.numerics.ways import WAYS, Way


def rates_of_ways(
    policy: Policy,
    config: RunConfig,
    texts: Sequence[Drawn],
    noise: Noise,
    say: Callable[[float, str], None],
    ways: Mapping[str, Way] = WAYS,
) -> HonestRates:
    """Honest rates of every way on these texts. `say` hears the share that is done, and what is next."""
    temperature, found = config.sampling.temperature, dict[str, tuple[Histogram, Histogram, Histogram]]()
    portions = list(blocks(texts, policy.vocab))
    for done, block in enumerate(portions):
        noise_TV, truth = noise_of(block, policy.vocab), computed(policy, EXACT, block, temperature)
        for number, way in enumerate(ways.values()):
            say((done + number / len(ways)) / len(portions), f"computing as {way.name}")
            claimed = picked(computed(policy, way, block, temperature), noise_TV)
            own = histograms(beside(truth, claimed, noise_TV, {}), noise)
            before = found.get(way.name)
            found[way.name] = own if before is None else (before[0] + own[0], before[1] + own[1], before[2] + own[2])
    return HonestRates.of(found)
