"""The compute ledger of a run: FLOPs of training, generation and validation, and bytes sent, from metrics alone.

Trainer and validators write counts (`Work` of `protocol/work.py`), the trainer writes once what a token costs its model
(`model`), and origin and relays write what they have sent. So what remote workers computed is known without their
metrics: a file is counted once, when a validator of the run's owner has judged it, accepted or not, or when the trainer
has trained on it, no matter who judged it. What other validators alone judged and no step was trained on nobody here
has seen; `is_partial` says that there are such validators.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shoal.telemetry.metrics import Entry, number

PARTS = ("train", "generate", "validate")
# Steps whose files are remembered, so that each is counted once.
MEMORY = 128


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
    """Bytes of rollout files that were judged by validators whose metrics are here."""
    train_s: float = 0.0
    generate_s: float = 0.0
    """Of workers whose metrics are here."""
    validate_s: float = 0.0

    @property
    def ratio(self) -> float | None:
        """FLOPs of generation per FLOP of training, a lower bound where the ledger is partial; INTELLECT-2: 4.5."""
        return self.generate / self.train if self.train else None

    def rate(self, part: str) -> float | None:
        """FLOP/s of a part while it worked."""
        spent: float = getattr(self, f"{part}_s")
        done: float = getattr(self, part)
        return done / spent if spent and done else None


@dataclass(slots=True)
class _Files:
    """Files of one step, by their numbers."""

    counted: set[int] = field(default_factory=set)
    """What they took to generate is in the sum."""
    judged: set[int] = field(default_factory=set)
    """By a validator whose metrics are here."""
    trained: set[int] = field(default_factory=set)

    @property
    def elsewhere(self) -> set[int]:
        """Files that others than such validators have judged."""
        return self.trained - self.judged


@dataclass(slots=True)
class ComputeLedger:
    """Adds entries up as they come, in all and by step; a step that was made again counts again."""

    costs: Costs | None = None
    total: Compute = field(default_factory=Compute)
    steps: dict[int, Compute] = field(default_factory=dict)
    _newest: int = 0
    _files: dict[int, "_Files"] = field(default_factory=dict)
    _was_partial: bool = False
    """Whether steps that are forgotten say so."""

    @property
    def is_partial(self) -> bool:
        """Whether files are judged by validators whose metrics are not here: of those that no step was trained on,
        nothing is known."""
        return self._was_partial or any(files.elsewhere for files in self._files.values())

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
                    validate=self.costs.flops(entry.get("checked")),
                    validate_s=number(entry, "cpu_s") or 0.0,
                )
                told, files = entry.get("submission"), self._of(step)
                name = told if isinstance(told, int) else None
                if name not in files.judged:
                    self._add(step, uploaded=number(entry, "file_bytes") or 0.0)
                self._generated(step, name, entry.get("generated"))
                if name is not None:
                    files.judged.add(name)
            case {"event": "collected", "step": int(step), "generated": dict(trained)}:
                for name in (int(key) for key in trained if str(key).isdecimal()):
                    self._generated(step, name, trained[str(name)])
                    self._of(step).trained.add(name)
            case {"event": "submission", "step": int(step)}:
                tokens, speed = number(entry, "tokens"), number(entry, "tokens_per_s")
                self._add(step, generate_s=tokens / speed if tokens and speed else 0.0)
            case {"event": "sent"}:
                self._add(self._newest, broadcast=number(entry, "bytes") or 0.0)

    def _of(self, step: int) -> "_Files":
        """What is known of a step's files; the oldest step is forgotten where there are many."""
        if step not in self._files and len(self._files) >= MEMORY:
            self._was_partial |= bool(self._files.pop(min(self._files)).elsewhere)
        return self._files.setdefault(step, _Files())

    def _generated(self, step: int, name: int | None, work: object) -> None:
        """Counts what a file took to generate, unless it is counted already: verdict and trainer both tell of it."""
        files, flops = self._of(step), self.costs.flops(work) if self.costs else 0.0
        if not flops or name in files.counted:
            return
        self._add(step, generate=flops)
        if name is not None:
            files.counted.add(name)

    def _add(self, step: int, **amounts: float) -> None:
        own = self.steps.get(step, Compute())
        self.steps[step] = replace(own, **{key: getattr(own, key) + value for key, value in amounts.items()})
        total = self.total
        self.total = replace(total, **{key: getattr(total, key) + value for key, value in amounts.items()})
