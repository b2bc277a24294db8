"""A small world of episodes: a model that was shown how to play an environment, workers that play, and their judge."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Literal

import torch

from shoal.attacks import attack_named
from shoal.config import RunConfig, TaskConfig, TinyConfig
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
from shoal.tasks.build import build_source
from shoal.tasks.source import InProcess, TaskSource
from shoal.validate.checks.all_checks import Checks
from tests.support.roles_in_process import make_config
from tests.support.submissions import make_lease

CALCULATOR = "environment/calculator"
VERSION = Version(1, "a1" * 32)
SAMPLING = {"group_size": 4, "max_new_tokens": 80, "max_prompt_tokens": 60}
TURNS = {"max": 6, "tokens": 14}
WARM = TinyConfig(hidden=64, layers=2, warm_steps=60, warm_batch=16, warm_lr=4e-3)


Unverified = Literal["refuse", "accept"]


@cache
def source_of(environment: str, unverified: Unverified = "refuse") -> TaskSource:
    return build_source([TaskConfig(source=environment, unverified=unverified)])


@cache
def episode_model(environment: str) -> Path:
    """A model that was shown worked episodes for a while: it plays on for several turns, seldom well."""
    torch.set_num_threads(1)
    directory = Path(mkdtemp(prefix="shoal-episodes-"))
    build_tiny(directory, WARM, source_of(environment), 0, lambda *_: None)
    return directory


@dataclass(slots=True)
class EpisodeWorld:
    """A judge, and workers with a model of their own."""

    config: RunConfig
    tasks: TaskSource
    checks: Checks
    workers: Policy

    def maker(self, attack: str | None = None) -> Maker:
        engine = TorchEngine(
            self.workers, max_batch=16, max_len=self.config.max_len, temperature=self.config.sampling.temperature
        )
        kind = Maker if attack is None else attack_named(attack)
        return kind(self.config, self.workers, engine, self.tasks, InProcess(self.tasks))

    def read(self, submission: Submission) -> Submission:
        """What a validator reads of a submission that was handed in."""
        with TemporaryDirectory() as scratch:
            path = Path(scratch) / "0000.parquet"
            path.write_bytes(write_rollouts(submission, groups_with_signal(submission)))
            return read_rollouts(path, submission.lease, limits_of(self.config, self.workers.vocab))

    def verdict(self, submission: Submission) -> Finding | None:
        """The finding of all checks on a submission, after it was written and read."""
        try:
            read = self.read(submission)
        except RolloutError as error:
            return Finding("format", "", "", str(error))
        return self.checks.cheap(read) or next(self.checks.costly([read]))

    def honest(self, number: int = 0, groups: int = 2) -> Submission:
        return self.maker().make(lease_of(number, groups), VERSION)


def lease_of(number: int = 0, groups: int = 2) -> Lease:
    return make_lease(submission=number, version=1, step=2, deadline=2e9, groups=groups)


def episode_world(
    environment: str = CALCULATOR,
    shown: str | None = None,
    *,
    unverified: Unverified = "refuse",
    dtype: str = "float32",
    **tables: Any,
) -> EpisodeWorld:
    """`shown` is the environment whose episodes the model was shown, if not this one. Workers compute in `dtype`, and
    the judge in float32 with what weights of it hold."""
    model = episode_model(shown or environment)
    line = {"source": environment, "unverified": unverified}
    tree = {"sampling": SAMPLING, "turns": TURNS, "tasks": [line], **tables}
    config = make_config(model, model={"source": str(model), "dtype": dtype}, **tree)
    tasks = source_of(environment, unverified)
    checks = Checks(config, load_as(model, dtype, "float32"), tasks, InProcess(tasks), {1: VERSION.root}.get)
    return EpisodeWorld(config, tasks, checks, load(model, dtype))
