"""Testbed of the attacks benchmark for one model: honest answers to start from, cheaters' files, and their judgement.

Files are judged as the validator judges them: read from disk by the reader of strangers' files, cheap checks, then
computed again with the version they claim. Nothing is left out for being slow; only generation is shared. A cheater who
edits honest work starts from answers that were generated once, and one who generates differently answers the requests
of all its files side by side, which gives the same answers. An answer that was computed again is not computed a third
time: many a cheater leaves the text as it is.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from shoal.attacks.weights import OlderVersion
from shoal.config import RunConfig
from shoal.errors import RolloutError, UnreadError
from shoal.generate.engine import Completion, Engine, Request
from shoal.generate.submission_builder import Maker
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy, trainable
from shoal.protocol.lease import Lease
from shoal.protocol.rollout import Rollout
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission, read_rollouts
from shoal.rundir import limits_of
from shoal.tasks.source import Judge, TaskSource, draw
from shoal.train.batch import sort_groups
from shoal.train.learner import alone
from shoal.train.optimizer import AdamW
from shoal.train.step import train_step
from shoal.validate.checks import all_checks as checks_module
from shoal.validate.checks.all_checks import Checks
from shoal.validate.recompute import Replayed, replay

Memory: TypeAlias = dict[tuple[object, ...], Replayed]
ROOT = "5a" * 32
CLAIMED = Version(1, ROOT)
SIDE_BY_SIDE = 16


@dataclass(frozen=True, slots=True)
class File:
    """What was handed in under a lease."""

    lease: Lease
    submission: Submission
    data: bytes


class Recorded(Engine):
    """An engine that gives the answers it has; to a request that it does not know, those of some other lease."""

    def __init__(self, requests: Sequence[Request], answers: Sequence[Completion]) -> None:
        self._known = {(r.seed, r.sample): a for r, a in zip(requests, answers, strict=True)}
        self._seeds = sorted({request.seed for request in requests})

        self._ended: list[Completion] = []

    @property
    def running(self) -> int:
        return len(self._ended)

    def load(self, folder: Path, origin: str) -> None:
        raise NotImplementedError(f"{origin} in {folder}: answers were generated before")

    def submit(self, key: int, request: Request, *, hidden: bool = False) -> None:
        del hidden
        seed = request.seed if (request.seed, request.sample) in self._known else self._any(request.seed)
        self._ended.append(replace(self._known[seed, request.sample], key=key))

    def step(self) -> list[Completion]:
        ended, self._ended = self._ended, []
        return ended

    def abort(self) -> None:
        self._ended.clear()

    def _any(self, seed: int) -> int:
        return self._seeds[seed % len(self._seeds)]


@dataclass(slots=True)
class Testbed:
    """One model: version 1 is what everybody claims, version 0 what it came from."""

    config: RunConfig
    policy: Policy
    engine: Engine
    tasks: TaskSource
    judge: Judge
    scratch: Path
    before: dict[str, Tensor]
    computed: Memory = field(default_factory=dict)

    def leases(self, count: int, first: int = 0, node: str = "worker-0") -> list[Lease]:
        groups = self.config.workers.groups_per_submission
        beacon = draw("beacon", node)
        return [Lease("bench", node, 1, first + n, 1, groups, beacon, 4e9) for n in range(count)]

    def requests(self, leases: Sequence[Lease]) -> list[Request]:
        """What all leases ask for, in a row."""
        maker = Maker(self.config, self.policy, self.engine, self.tasks, self.judge)
        return [
            request
            for lease in leases
            for request in maker.requests(lease, [maker.prompt(task) for task in maker.draw(lease)])
        ]

    def honest(self, leases: Sequence[Lease], engine: Engine, *, hidden: bool = True) -> tuple[Recorded, list[File]]:
        """Honest work under all leases by an engine: its answers, with their states unless told not to, and the
        files."""
        requests = self.requests(leases)
        answers = sorted(engine.generate(requests, hidden=hidden), key=lambda c: c.key)
        recorded = Recorded(requests, answers)
        return recorded, self.files(Maker, leases, recorded)

    def files(self, kind: type[Maker], leases: Sequence[Lease], engine: Engine) -> list[File]:
        maker = kind(self.config, self.policy, engine, self.tasks, self.judge)
        return [File(lease, *maker.file(lease, CLAIMED)) for lease in leases]

    def cheating(self, kind: type[Maker], leases: Sequence[Lease], honest: Recorded, generates: bool) -> list[File]:
        """The files of a cheater: made of honest answers, or `generates` its own."""
        if kind.answer is Maker.answer:
            return self.files(kind, leases, honest)
        maker = kind(self.config, self.policy, self.engine if generates else honest, self.tasks, self.judge)
        if isinstance(maker, OlderVersion):
            maker.before = self.before
        requests = self.requests(leases)
        answers = Recorded(requests, maker.answer(requests))
        prepared: Any = type(kind.__name__, (kind,), {"answer": Maker.answer})
        return self.files(prepared, leases, answers)

    def judged(self, files: Sequence[File], config: RunConfig | None = None) -> list[str]:
        """For each file the check that it did not pass, or an empty string."""
        checks = Checks(config or self.config, self.policy, self.tasks, self.judge, lambda n: ROOT if n == 1 else None)
        verdicts: dict[int, str] = {}
        drawn: list[tuple[int, Submission]] = []
        for number, file in enumerate(files):
            try:
                submission = self._read(number, file)
            except (RolloutError, UnreadError):
                verdicts[number] = "format"
                continue
            if finding := checks.cheap(submission):
                verdicts[number] = finding.check
            else:
                drawn.append((number, submission))
        for begin in range(0, len(drawn), SIDE_BY_SIDE):
            some = drawn[begin : begin + SIDE_BY_SIDE]
            findings = checks.costly([submission for _, submission in some])
            verdicts |= {n: f.check if f else "" for (n, _), f in zip(some, findings, strict=True)}
        return [verdicts[number] for number in range(len(files))]

    def _read(self, number: int, file: File) -> Submission:
        path = self.scratch / f"{number:04d}.parquet"
        path.write_bytes(file.data)
        try:
            return read_rollouts(path, file.lease, limits_of(self.config, self.policy.vocab))
        finally:
            path.unlink()


@contextmanager
def remembering(memory: Memory) -> Iterator[None]:
    """While the block runs, checks compute an answer again only if they have not done so before."""

    def remembered(
        policy: Policy, samples: Sequence[Rollout], keys: Sequence[tuple[int, int]] | None, *rest: Any, **more: Any
    ) -> list[Replayed]:
        noise = keys or [(0, 0)] * len(samples)
        names = [(s.prompt.tobytes(), s.completion.tobytes(), key) for s, key in zip(samples, noise, strict=True)]
        new = [number for number, name in enumerate(names) if name not in memory]
        if new:
            found = replay(policy, [samples[n] for n in new], keys and [keys[n] for n in new], *rest, **more)
            memory.update({names[n]: own for n, own in zip(new, found, strict=True)})
        return [memory[name] for name in names]

    setattr(checks_module, "replay", remembered)  # noqa: B010  it is imported there, not exported
    try:
        yield
    finally:
        setattr(checks_module, "replay", replay)  # noqa: B010


def build_testbed(
    config: RunConfig,
    policy: Policy,
    tasks: TaskSource,
    judge: Judge,
    scratch: Path,
    files: int,
    lr: float,
    *,
    steps: int = 1,
) -> Testbed:
    """A testbed whose version 1 is one optimizer step at `lr` on `files` honest files of version 0, which is itself as
    many steps less one from the base model."""
    engine = TorchEngine(policy, max_batch=64, max_len=config.max_len, temperature=config.sampling.temperature)
    testbed = Testbed(config, policy, engine, tasks, judge, scratch, {})
    optimizer = AdamW(
        [p for _, p in trainable(policy.model)], lr=lr, betas=config.train.betas, weight_decay=config.train.weight_decay
    )
    tree = config.model_dump(mode="json", exclude_none=True)
    tree["train"] |= {"lr": lr, "warmup_steps": 0, "optimizer_steps": 1}
    tree["train"]["loss"]["kl_coef"] = 0.0  # the base model is the policy itself: there is nothing to hold it to
    for step in range(steps):
        testbed.before = {name: tensor.clone() for name, tensor in policy.weights().items()}
        _, made = testbed.honest(testbed.leases(files, step * files, node="trained-on"), engine)
        groups = sort_groups([file.submission for file in made], normalise=config.train.advantage_std).signal
        train_step(alone(policy, None, optimizer), groups, RunConfig.model_validate(tree), step)
        policy.model.zero_grad(set_to_none=True)
    return testbed
