"""The table of honest rates that comes with Shoal, measured on its tiny model."""

from functools import cache
from importlib import resources

from shoal.protocol.rates.honest_rates import HonestRates


@cache
def default_rates() -> HonestRates:
    text = resources.files("shoal.protocol.rates").joinpath("honest_rates.json").read_text()
    return HonestRates.model_validate_json(text)
