"""Calibration: what a judge sees of all honest ways of computing a model."""

from collections.abc import Callable, Mapping, Sequence

from shoal.config import RunConfig
from shoal.models.load import Policy
from shoal.validate.numerics.bets import Observed
from shoal.validate.numerics.honest_answers import EXACT, Drawn, beside, blocks, computed, noise_of, picked
from shoal.validate.numerics.ways import WAYS, Way

Say = Callable[[float, str], None]
"""Hears the share that is done, and what is next."""


def answers_of_ways(
    policy: Policy,
    config: RunConfig,
    texts: Sequence[Drawn],
    say: Say,
    ways: Mapping[str, Way] = WAYS,
) -> dict[str, list[Observed]]:
    """What is seen of these texts in every way."""
    temperature = config.sampling.temperature
    found: dict[str, list[Observed]] = {name: [] for name in ways}
    portions = list(blocks(texts, policy.vocab))
    for done, block in enumerate(portions):
        noise, truth = noise_of(block, policy.vocab), computed(policy, EXACT, block, temperature)
        for number, (name, way) in enumerate(ways.items()):
            say((done + number / len(ways)) / len(portions), f"computing as {name}")
            found[name] += beside(truth, picked(computed(policy, way, block, temperature), noise), noise, {})
    return found
