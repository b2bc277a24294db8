"""The table of honest rates that comes with Shoal: 15 ways on its tiny model and on SmolLM2-135M (`smollm2/...`).

Beside these emulated ways stand engines that were measured on an x86-64 CPU: `vllm`, `cpu` (our own), and `cpu-short`,
the same with answers of at most 12 tokens. Each stands there once per model, and bounds take the worst: counts that are
added up could lower a bound.
"""

from functools import cache
from importlib import resources

from shoal.protocol.rates.honest_rates import HonestRates


@cache
def default_rates() -> HonestRates:
    text = resources.files("shoal.protocol.rates").joinpath("honest_rates.json").read_text()
    return HonestRates.model_validate_json(text)
