"""What a request tells vLLM's processes about its noise and proof, in `SamplingParams.extra_args`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from shoal.generate.decoding import Decoding

NAME = "shoal"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: `number` is unlike that of every other request of this engine."""

    number: int
    seed: int
    sample: int
    temperature: float
    proof: bool
    first: int = 0
    """Place in the answer of the first token that is drawn."""
    top_p: float = 1.0

    @property
    def decoding(self) -> Decoding:
        return Decoding(self.temperature, self.top_p)

    @property
    def extra_args(self) -> dict[str, Any]:
        return {NAME: asdict(self)}

    @classmethod
    def of(cls, extra_args: Mapping[str, Any] | None) -> Self | None:
        """What a request asks for; None if it is not one of ours."""
        return cls(**extra_args[NAME]) if extra_args and NAME in extra_args else None
