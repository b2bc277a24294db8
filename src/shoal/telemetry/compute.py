"""The compute ledger of a run: FLOPs of training, generation and validation, and bytes sent, from metrics alone.

Trainer and validators write counts (`Work` of `protocol/work.py`), the trainer writes once what a token costs its model
(`model`), and origin and relays write what they have sent. A file is counted when a validator has judged it, accepted
or not, so what remote workers computed is known without their metrics.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shoal.telemetry.metrics import Entry, number

PARTS = ("train", "generate", "validate")


@dataclass(frozen=True, slots=True)
class Costs:
    """FLOPs of one forward pass, per token and per pair of tokens."""

    token: float
    """Through all blocks, without attention's scores."""
    head: float
    """Logits of one token."""
    pair: float
    """Attention's scores and sums of one pair."""

    @classmethod
    def of(cls, entry: Entry) -> "Costs | None":
        """From a trainer's `model` entry."""
        found = [number(entry, key) for key in ("token_flops", "head_flops", "pair_flops")]
        return None if None in found else cls(*(value or 0.0 for value in found))

    def flops(self, work: object) -> float:
        """Of work as entries hold it; of anything else nothing."""
        if not isinstance(work, Mapping):
            return 0.0
        fed, drawn, pairs = (number(dict(work), key) or 0.0 for key in ("fed", "drawn", "pairs"))
        return self.token * fed + self.head * drawn + self.pair * pairs


@dataclass(frozen=True, slots=True)
class Compute:
    """What was computed and sent; seconds are those in which a role did it."""

    train: float = 0.0
    generate: float = 0.0
    validate: float = 0.0
    broadcast: float = 0.0
    """Bytes that origin and relays sent."""
    uploaded: float = 0.0
    """Bytes of rollout files that were judged."""
    train_s: float = 0.0
    generate_s: float = 0.0
    """Of workers whose metrics are here."""
    validate_s: float = 0.0

    @property
    def ratio(self) -> float | None:
        """FLOPs of generation per FLOP of training; INTELLECT-2: 4.5."""
        return self.generate / self.train if self.train else None

    def rate(self, part: str) -> float | None:
        """FLOP/s of a part while it worked."""
        spent: float = getattr(self, f"{part}_s")
        done: float = getattr(self, part)
        return done / spent if spent and done else None


@dataclass(slots=True)
class ComputeLedger:
    """Adds entries up as they come, in all and by step; a step that was made again counts again."""

    costs: Costs | None = None
    total: Compute = field(default_factory=Compute)
    steps: dict[int, Compute] = field(default_factory=dict)
    _newest: int = 0

    def take(self, entry: Entry) -> None:
        """Adds an entry of any role."""
        match entry:
            case {"event": "model"}:
                self.costs = Costs.of(entry)
            case {"event": "step", "step": int(step)}:
                self._newest = max(self._newest, step + 1)
                self._add(step, train=number(entry, "train_flops") or 0.0, train_s=number(entry, "train_s") or 0.0)
            case {"event": "verdict", "step": int(step)} if self.costs:
                self._add(
                    step,
                    generate=self.costs.flops(entry.get("generated")),
                    validate=self.costs.flops(entry.get("checked")),
                    uploaded=number(entry, "file_bytes") or 0.0,
                    validate_s=number(entry, "cpu_s") or 0.0,
                )
            case {"event": "submission", "step": int(step)}:
                tokens, speed = number(entry, "tokens"), number(entry, "tokens_per_s")
                self._add(step, generate_s=tokens / speed if tokens and speed else 0.0)
            case {"event": "sent"}:
                self._add(self._newest, broadcast=number(entry, "bytes") or 0.0)

    def _add(self, step: int, **amounts: float) -> None:
        own = self.steps.get(step, Compute())
        self.steps[step] = replace(own, **{key: getattr(own, key) + value for key, value in amounts.items()})
        total = self.total
        self.total = replace(total, **{key: getattr(total, key) + value for key, value in amounts.items()})
