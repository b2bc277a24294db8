"""Calibration: honest rates of all ways of computing a model."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from shoal.config import RunConfig
from shoal.models.load import Policy
from shoal.protocol.rates.honest_rates import HonestRates
from shoal.validate.numerics.bets import Noise, Observed, histograms
from shoal.validate.numerics.honest_answers import Drawn, claims, compare
from shoal.validate.numerics.ways import WAYS, Way


def answers_of_ways(
    policy: Policy,
    config: RunConfig,
    texts: Sequence[Drawn],
    say: Callable[[float, str], None],
    ways: Mapping[str, Way] = WAYS,
) -> Iterator[tuple[str, list[Observed]]]:
    """What is seen of these texts in every way. `say` hears the share that is done, and what is next."""
    temperature = config.sampling.temperature
    for number, way in enumerate(ways.values()):
        say(number / len(ways), f"computing as {way.name}")
        made = claims(policy, way, texts, temperature)
        yield way.name, compare(policy, texts, made, temperature, {})


def rates_of_ways(
    policy: Policy,
    config: RunConfig,
    texts: Sequence[Drawn],
    noise: Noise,
    say: Callable[[float, str], None],
    ways: Mapping[str, Way] = WAYS,
) -> HonestRates:
    """Honest rates of every way on these texts, over this noise."""
    found = answers_of_ways(policy, config, texts, say, ways)
    return HonestRates.of({name: histograms(answers, noise) for name, answers in found})
