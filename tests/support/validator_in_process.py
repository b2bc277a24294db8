"""A run directory with two published versions, workers that hand in files, and its validator in this process."""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from safetensors.torch import save_file

from shoal.devices import DTYPES
from shoal.models.load import load_as
from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission, groups_with_signal, write_rollouts
from shoal.protocol.verdict import Verdict
from shoal.roles.validator import Validator
from shoal.rundir import RunDir, limits_of
from shoal.tasks.source import InProcess, TaskSource
from shoal.validate.audit import Audits
from shoal.validate.checks.all_checks import Checks
from tests.support.memory_store import MemoryStore, memory_store
from tests.support.model_and_checks import SAMPLING, TASKS, World, gym, model_dir, weights
from tests.support.roles_in_process import base_version, make_config, make_run


@dataclass(slots=True)
class Court:
    """Everything that a judgement needs."""

    run: RunDir
    world: World
    store: MemoryStore
    validator: Validator

    def version(self, number: int = 1) -> Version:
        found = self.run.channel().version(number)
        assert found is not None
        return found

    def lease(self, node: str, version: int = 1) -> Lease:
        lease = self.store.lease(node, version)
        assert lease is not None
        return lease

    def hand_in(self, node: str, attack: str | None = None) -> Lease:
        lease = self.lease(node)
        self.store.put(lease, self.world.maker(attack).file(lease, self.version())[1])
        return lease

    def honest(self, node: str) -> Submission:
        """What an honest node would hand in under its lease."""
        return self.world.maker().make(self.lease(node), self.version())

    def hand_in_submission(self, submission: Submission) -> Lease:
        self.store.put(submission.lease, write_rollouts(submission, groups_with_signal(submission)))
        return submission.lease

    def judge(self) -> None:
        self.validator.judge(self.store.waiting(0, 9))

    def verdict(self, lease: Lease) -> Verdict:
        return self.store.records.verdicts[lease.step, lease.submission]

    def evidence(self, lease: Lease) -> Path:
        verdict = self.verdict(lease)
        assert not verdict.accept
        assert verdict.evidence
        return self.run.path / verdict.evidence


class InThisProcess(InProcess):
    """Stands in for the scorer's process, which takes seconds to start."""

    def __init__(self, _: object, turns: object = None) -> None:
        del turns
        super().__init__(gym())

    @property
    def tasks(self) -> TaskSource:
        return self.source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


def open_court(path: Path, world: World, **changes: Any) -> Court:
    many = {"groups_per_step": 64, "token_budget": 256, "lr": 1e-3, "warmup_steps": 0}
    config = make_config(model_dir("short"), sampling=SAMPLING["short"], tasks=[TASKS], train=many, **changes)
    run = make_run(path, config)
    channel = run.channel()
    if channel.version(1) is None:
        with channel.publish(1) as staging:
            own = {name: w.to(DTYPES[config.model.dtype]) for name, w in weights("short")[1].items()}
            save_file(own, staging / "model.safetensors")
    policy = load_as(run.base_model, config.model.dtype, "float32")
    store = memory_store(run, limits_of(config, policy.vocab))

    def root_of(number: int) -> str | None:
        version = channel.version(number)
        return version.root if version else None

    checks = Checks(config, policy, gym(), InProcess(gym()), root_of)
    role = "validator"
    metrics = run.metrics(role)
    validator = Validator(
        run, channel, store, checks, Audits(config.audit), run.status(role), metrics, base_version(run)
    )
    return Court(run, world, store, validator)
