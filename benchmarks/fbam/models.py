"""Models to compare: the same frame head and, within a tenth, the same number of parameters."""

from functools import cache

from shoal.errors import BenchError
from shoal.fbam import ModelConfig, count_parameters
from shoal.fbam.model_config import IntegratorKind
from shoal.fbam.tasks import Source

HEAD_WIDTH = 64
HEADS = 4
TOLERANCE = 0.1
MAX_WIDTH = 1024


def lstm_config(source: Source, width: int) -> ModelConfig:
    return ModelConfig(shape=source.shape, actions=source.actions, head_width=HEAD_WIDTH, width=width)


@cache
def matched_config(reference: ModelConfig, kind: IntegratorKind, layers: int) -> ModelConfig:
    """An integrator of another kind whose width gives the number of parameters nearest to the reference's."""
    target = count_parameters(reference)
    low, high = 1, MAX_WIDTH // HEADS
    while low < high:  # parameters grow with the width: the first that reaches the target
        middle = (low + high) // 2
        reached = count_parameters(_widened(reference, kind, layers, middle)) >= target
        low, high = (low, middle) if reached else (middle + 1, high)
    around = [_widened(reference, kind, layers, units) for units in (max(1, low - 1), low)]
    best = min(around, key=lambda config: abs(count_parameters(config) - target))
    if abs(count_parameters(best) - target) > TOLERANCE * target:
        raise BenchError(f"{kind} of {layers} layers: no width has {target:,} parameters within {TOLERANCE:.0%}")
    return best


def _widened(reference: ModelConfig, kind: IntegratorKind, layers: int, units: int) -> ModelConfig:
    changes = {"integrator": kind, "layers": layers, "width": units * HEADS, "heads": HEADS}
    return ModelConfig.model_validate({**reference.model_dump(), **changes})
