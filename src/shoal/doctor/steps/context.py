"""What a step of a report is given, what it may say, and how it ends other than well."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from shoal.config import RunConfig
from shoal.config_io import check_config
from shoal.devices import training_dtype
from shoal.generate.engine import Request
from shoal.models.load import Policy

Value = float | int | str | bool
Values = dict[str, Value]
"""Figures of a step: they are sent away, so nothing private may stand in them."""


class StepFailed(Exception):
    """The step ran, and what it found is wrong; the message says what was expected and what was found."""


class StepSkipped(Exception):
    """The step cannot run on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Context:
    """One step's surroundings."""

    config: RunConfig
    model: Path
    device: torch.device
    scratch: Path
    """A directory that is removed after the step."""

    @property
    def speed_dtype(self) -> str:
        """The number format in which tokens per second are counted: what runs on this device compute in."""
        return "bfloat16" if training_dtype(self.device) == torch.bfloat16 else "float32"

    def changed(self, **tables: Mapping[str, Any]) -> RunConfig:
        """The config with some fields of some tables changed."""
        tree = self.config.model_dump(mode="json")
        for table, changes in tables.items():
            tree[table] = {**tree[table], **changes}
        return check_config(tree, "report")

    def requests(self, policy: Policy, count: int) -> list[Request]:
        """Requests with prompts of random tokens, of several lengths; two samples per prompt."""
        rng, longest = Random(self.config.seed), self.config.sampling.max_prompt_tokens
        ends = policy.eos_ids
        usable = [token for token in range(min(policy.vocab, 4096)) if token not in ends]
        found: list[Request] = []
        while len(found) < count:
            prompt = tuple(rng.choice(usable) for _ in range(rng.randint(4, longest)))
            new = self.config.sampling.max_new_tokens
            found += [Request(prompt, self.config.seed + 1, len(found) + n, new) for n in range(2)]
        return found[:count]
