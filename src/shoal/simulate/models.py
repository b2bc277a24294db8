"""Models by size: what of their shape decides how large a version is, and how fast it is trained and decoded."""

from dataclasses import dataclass

from shoal.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Model:
    """A dense transformer."""

    name: str
    parameters: float
    layers: int
    hidden: int
    cached: int
    """Keys and values of one token, of all layers."""
    width: int = 2
    """Bytes of a number: 2 for bfloat16."""

    @property
    def version_bytes(self) -> float:
        return self.width * self.parameters

    @property
    def cache_bytes(self) -> float:
        """Per token of a sequence."""
        return float(self.width * self.cached)

    def adapter_bytes(self, rank: int) -> float:
        """Of a float32 adapter of this rank on all matrices, which together have about 25 rows or columns of `hidden`
        per layer (attention 8, the three matrices of the block behind it 17)."""
        return 4.0 * rank * 25 * self.hidden * self.layers


MODELS = {
    model.name: model
    for model in (
        # Qwen2.5-7B, QwQ-32B, Llama-3.1-70B and Llama-3.1-405B, by their published configs.
        Model("7b", 7.6e9, 28, 3584, 2 * 28 * 4 * 128),
        Model("32b", 32.8e9, 64, 5120, 2 * 64 * 8 * 128),
        Model("70b", 70.6e9, 80, 8192, 2 * 80 * 8 * 128),
        Model("405b", 405.9e9, 126, 16384, 2 * 126 * 8 * 128),
    )
}


def model_named(name: str) -> Model:
    if name.lower() not in MODELS:
        raise ConfigError(f"--model {name}: unknown; give one of {', '.join(MODELS)}")
    return MODELS[name.lower()]
