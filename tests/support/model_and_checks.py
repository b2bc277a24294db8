"""A small world to cheat in: a model in two versions a training step apart, its tasks, and judges of its files.

`short` is a model that was shown how to answer and ends after a few tokens, `long` one that was not and talks on for
several chunks of a proof.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.attacks import ATTACKS
from shoal.config import RunConfig, TinyConfig
from shoal.devices import DTYPES
from shoal.errors import RolloutError
from shoal.generate.submission_builder import Maker
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy, load, load_as
from shoal.models.tiny import build_tiny
from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission, groups_with_signal, read_rollouts, write_rollouts
from shoal.protocol.verdict import Finding
from shoal.rundir import limits_of
from shoal.tasks.source import InProcess
from shoal.tasks.sources.gym.source import ReasoningGym
from shoal.validate.checks.all_checks import Checks
from tests.support.roles_in_process import make_config
from tests.support.submissions import WORDS, changed, make_lease

Kind = Literal["short", "long"]
TASKS = {"source": "reasoning-gym/spell_backward", "options": WORDS, "binary": False}
VERSIONS = (Version(0, "a0" * 32), Version(1, "a1" * 32))
# What an optimizer step of the laptop's config moves a weight by.
STEP = 3e-4
WARM = {
    "short": TinyConfig(hidden=64, layers=3, warm_steps=100, warm_batch=32, warm_lr=4e-3),
    "long": TinyConfig(hidden=64, layers=3, warm_steps=0),
}
SAMPLING: dict[Kind, dict[str, Any]] = {
    "short": {"group_size": 8, "max_new_tokens": 12, "max_prompt_tokens": 24},
    "long": {"group_size": 3, "max_new_tokens": 70, "max_prompt_tokens": 24},
}


@cache
def gym() -> ReasoningGym:
    """With partial credit: a model this small solves nothing."""
    return ReasoningGym("spell_backward", dict(WORDS), binary=False)


@cache
def model_dir(kind: Kind) -> Path:
    torch.set_num_threads(1)
    directory = Path(mkdtemp(prefix="shoal-test-"))
    build_tiny(directory, WARM[kind], gym(), 0, lambda *_: None)
    return directory


@cache
def weights(kind: Kind) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of both versions: each weight of the second is off by a step of Adam."""
    generator = torch.Generator().manual_seed(1)
    before = {name: tensor.clone() for name, tensor in load(model_dir(kind)).weights().items()}
    after = {name: w + STEP * torch.randn(w.shape, generator=generator).sign() for name, w in before.items()}
    return before, after


@dataclass(slots=True)
class World:
    """Judges with version 1 loaded; `maker` gives workers that have a model of their own."""

    kind: Kind
    config: RunConfig
    checks: Checks
    workers: Policy

    def maker(self, attack: str | None = None, max_batch: int = 16) -> Maker:
        engine = TorchEngine(
            self.workers,
            max_batch=max_batch,
            max_len=self.config.max_len,
            temperature=self.config.sampling.temperature,
            noise=self.config.sampling.noise,
        )
        kind = Maker if attack is None else ATTACKS[attack]
        maker = kind(self.config, self.workers, engine, gym(), InProcess(gym()))
        engine.set_weights(weights(self.kind)[1], "version 1")
        return maker

    def file(self, maker: Maker, lease: Lease) -> bytes:
        return maker.file(lease, VERSIONS[1])[1]

    def read(self, data: bytes, lease: Lease) -> Submission:
        with TemporaryDirectory() as scratch:
            path = Path(scratch) / "0000.parquet"
            path.write_bytes(data)
            return read_rollouts(path, lease, limits_of(self.config, self.workers.vocab))

    def verdict(self, data: bytes, lease: Lease) -> Finding | None:
        """The finding of all checks on a file's bytes."""
        try:
            submission = self.read(data, lease)
        except RolloutError as error:
            return Finding("format", "", "", str(error))
        found = self.checks.cheap(submission) or next(self.checks.costly([submission], self.load))
        if submission.later:
            self.load(VERSIONS[1])
        return found

    def load(self, version: Version) -> None:
        """Puts a version into the judge's model."""
        self.checks.policy.set_weights(
            {name: w.to(DTYPES[self.config.model.dtype]) for name, w in weights(self.kind)[version.number].items()},
            f"version {version.number}",
        )

    def verdict_on(self, submission: Submission) -> Finding | None:
        """The same of a submission, written as it is."""
        return self.verdict(write_rollouts(submission, groups_with_signal(submission)), submission.lease)

    def honest(self, **changes: Any) -> Submission:
        """A submission as it is read."""
        lease = lease_of(self, **changes)
        return self.read(self.file(self.maker(), lease), lease)


def lease_of(world: World, submission: int = 0, **changes: Any) -> Lease:
    return make_lease(submission=submission, version=1, step=2, deadline=2e9, **changes)


def build_world(kind: Kind, dtype: str = "float32", *, in_flight: bool = False, **sampling: Any) -> World:
    model, workers = {"source": str(model_dir(kind)), "dtype": dtype}, {"in_flight": in_flight}
    sampled = SAMPLING[kind] | sampling
    config = make_config(model_dir(kind), model=model, sampling=sampled, tasks=[TASKS], workers=workers)
    policy = load_as(model_dir(kind), dtype, "float32")
    policy.set_weights({name: w.to(DTYPES[dtype]) for name, w in weights(kind)[1].items()}, "version 1")
    roots = {version.number: version.root for version in VERSIONS}
    checks = Checks(config, policy, gym(), InProcess(gym()), roots.get)
    return World(kind, config, checks, load(model_dir(kind), dtype))


def with_sample(submission: Submission, number: int, **changes: Any) -> Submission:
    """One sample changed."""
    rollouts = [changed(r, **changes) if n == number else r for n, r in enumerate(submission.rollouts)]
    return replace(submission, rollouts=rollouts)
