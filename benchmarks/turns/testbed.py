"""A tiny model per environment that was shown how to play it, workers that play, and a validator that judges them."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shoal.attacks import attack_named
from shoal.config import RunConfig, TaskConfig, TinyConfig
from shoal.config_io import check_config
from shoal.errors import RolloutError
from shoal.generate.submission_builder import Maker
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy, load
from shoal.models.tiny import build_tiny
from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission, read_rollouts
from shoal.protocol.verdict import Finding
from shoal.rundir import limits_of
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import TaskSource
from shoal.validate.checks.all_checks import Checks

VERSION = Version(1, "a1" * 32)
ENVIRONMENTS = ("calculator", "game")
MAX_TURNS = 8
BATCH = 64


@dataclass(frozen=True, slots=True)
class Testbed:
    """One environment, with a model for workers and one for the judge."""

    config: RunConfig
    tasks: TaskSource
    judge: Scorer
    workers: Policy
    checks: Checks
    scratch: Path

    def maker(self, attack: str | None = None) -> Maker:
        engine = TorchEngine(
            self.workers, max_batch=BATCH, max_len=self.config.max_len, temperature=self.config.sampling.temperature
        )
        kind = Maker if attack is None else attack_named(attack)
        return kind(self.config, self.workers, engine, self.tasks, self.judge)

    def lease(self, number: int, groups: int) -> Lease:
        return Lease("bench", "worker", 2, number, VERSION.number, groups, 7 * number + 1, 2e9)

    def read(self, data: bytes, lease: Lease) -> Submission:
        path = self.scratch / "0000.parquet"
        path.write_bytes(data)
        return read_rollouts(path, lease, limits_of(self.config, self.workers.vocab))

    def verdict(self, data: bytes, lease: Lease) -> Finding | None:
        """All checks on a file that is audited whole."""
        try:
            submission = self.read(data, lease)
        except RolloutError as error:
            return Finding("format", "", "", str(error))
        return self.checks.cheap(submission) or self.drawn(submission)

    def drawn(self, submission: Submission) -> Finding | None:
        """What a prefill shows."""
        return next(self.checks.costly([submission]))


def config_of(environment: str, model: Path, group_size: int) -> RunConfig:
    tree = {
        "name": "turns",
        "steps": 1,
        "tasks": [{"source": f"environment/{environment}"}],
        "model": {"source": str(model)},
        "sampling": {"group_size": group_size, "max_new_tokens": 160, "max_prompt_tokens": 80},
        "turns": {"max": MAX_TURNS, "tokens": 14},
    }
    return check_config(tree, "benchmark turns")


@contextmanager
def open_testbed(environment: str, model: Path, group_size: int) -> Iterator[Testbed]:
    config = config_of(environment, model, group_size)
    tasks = build_source(config.tasks)
    with (
        tempfile.TemporaryDirectory(prefix="shoal-turns-") as scratch,
        Scorer(config.tasks, turns=config.turns) as judge,
    ):
        checks = Checks(config, load(model), tasks, judge, {VERSION.number: VERSION.root}.get)
        yield Testbed(config, tasks, judge, load(model), checks, Path(scratch))


def build_model(environment: str, folder: Path, warm_steps: int) -> Path:
    """A model that plays well enough to come to an end, and badly enough to take detours."""
    folder.mkdir()
    source = build_source([TaskConfig(source=f"environment/{environment}")])
    shape = TinyConfig(hidden=64, layers=3, warm_steps=warm_steps, warm_batch=32, warm_lr=4e-3)
    build_tiny(folder, shape, source, 0, lambda *_: None)
    return folder
