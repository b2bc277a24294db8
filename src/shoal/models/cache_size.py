"""What keys and values of a model take, by its config.json alone; nothing of the model is loaded."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's sizes as a config.json has them."""

    layers: int
    kv_heads: int
    head: int
    hidden: int
    intermediate: int
    vocab: int

    @classmethod
    def read(cls, config: Path) -> Self | None:
        """None for a model that does not say its shape in the usual way: it is not guessed at."""
        try:
            shape = json.loads(config.read_text())
            heads = shape["num_attention_heads"]
            return cls(
                int(shape["num_hidden_layers"]),
                int(shape.get("num_key_value_heads") or heads),
                int(shape.get("head_dim") or shape["hidden_size"] // heads),
                int(shape["hidden_size"]),
                int(shape.get("intermediate_size") or 4 * shape["hidden_size"]),
                int(shape.get("vocab_size") or 0),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def cache(self, tokens: int, width: int, devices: int = 1) -> int:
        """Bytes of keys and values of so many tokens on each device; each has at least one head of them."""
        return 2 * self.layers * -(-self.kv_heads // devices) * self.head * tokens * width


def cache_bytes(config: Path, max_len: int, width: int) -> int:
    """Keys and values of one answer at its longest; 0 for a model that does not say its shape in the usual way."""
    shape = Shape.read(config)
    return 0 if shape is None else shape.cache(max_len, width)
