"""Calibration: honest rates of all ways of computing a model."""

from collections.abc import Callable, Mapping, Sequence

from shoal.config import RunConfig
from shoal.models.load import Policy
from shoal.protocol.rates.honest_rates import HonestRates
from shoal.validate.numerics.bets import Noise, histograms
from shoal.validate.numerics.honest_answers import Drawn, claims, compare
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
    temperature, found = config.sampling.temperature, {}
    for number, way in enumerate(ways.values()):
        say(number / len(ways), f"computing as {way.name}")
        made = claims(policy, way, texts, temperature)
        found[way.name] = histograms(compare(policy, texts, made, temperature, {}), noise)
    return HonestRates.of(found)
