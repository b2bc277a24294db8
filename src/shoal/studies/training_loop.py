"""The cheapest loop that is honest: worker and trainer take turns in one process, with the code that a run has.

Leases draw tasks and noise, `Maker` builds submissions, the engine generates, the task's own scorer scores,
`sort_groups` sorts and `train_step` trains: what a swarm does, without processes, network, proofs and validator. Every
rollout of step k is exactly `lag` versions old (fewer in the first steps), which is the worst that an async level of
`lag` permits; in a swarm many are younger. Two runs of one job give the same numbers.

Wall time is not measured here: seconds are those of the processor, which other work on the machine does not change.
`pipelined` says what the wall time would be with trainer and workers on machines of their own.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.config import RunConfig
from shoal.errors import ShoalError
from shoal.generate.submission_builder import Maker
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import load
from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission
from shoal.roles.evaluator import Evaluation, evaluate
from shoal.studies.study import Said
from shoal.tasks.build import build_source
from shoal.tasks.source import InProcess
from shoal.train.batch import StepGroups, sort_groups
from shoal.train.learner import build_learner
from shoal.train.step import StepResult, train_step
from shoal.train.watch import Watch

FOREVER = 1e15
SHOWN = ("entropy", "grad_norm", "clip_low", "clip_high", "kl", "ratio_max", "loss", "drift", "updates_skipped")


@dataclass(slots=True)
class Trained:
    """What a run in one process did, step by step and where it was measured."""

    curve: list[dict[str, float]] = field(default_factory=list)
    measured: list[dict[str, Any]] = field(default_factory=list)
    signs: dict[str, int] = field(default_factory=dict)
    """Warning signs, each with the step that showed it first."""
    bad_steps: int = 0
    """Steps whose loss, gradient or weights were not finite."""
    diverged: bool = False
    """Whether it was ended before its last step because too many of them came one after the other."""

    @property
    def final(self) -> float:
        """Held-out pass@1 of the last version."""
        return float(self.measured[-1]["pass_at_1"])

    def to_json(self) -> dict[str, Any]:
        return {
            "curve": self.curve,
            "measured": self.measured,
            "signs": self.signs,
            "bad_steps": self.bad_steps,
            "diverged": self.diverged,
            "final": self.final,
        }


@dataclass(slots=True)
class Loop:
    """One run in one process."""

    config: RunConfig
    base: Path
    lag: int
    said: Said
    heldout: int
    every: int
    measured_on: RunConfig | None = None
    """Config whose held-out tasks are measured; None: the run's own."""
    found: Trained = field(default_factory=Trained)
    _samples: int = 0
    _seconds: float = 0.0
    _bad_in_a_row: int = 0

    def run(self) -> Trained:
        """Trains to the last step, or until the policy is not finite any more."""
        config = self.config
        measured_on = self.measured_on or config
        learner, policy = build_learner(self.base, config), load(self.base, config.model.dtype)
        engine = TorchEngine(
            policy,
            max_batch=config.workers.max_batch,
            max_len=config.max_len,
            temperature=config.sampling.temperature,
            proofs=False,
        )
        versions = deque([_copied(learner.policy.weights())], self.lag + 1)
        watch = Watch(config.train.watch)
        tasks = build_source(config.tasks)
        heldout = tasks if measured_on is config else build_source(measured_on.tasks)
        # Tasks and scorers of a study are ours: they need no process of their own.
        maker = Maker(config, policy, engine, tasks, InProcess(tasks))

        def measure(version: int) -> None:
            found = evaluate(learner.policy, heldout, InProcess(heldout), measured_on, self.heldout)
            self._measure(version, found)

        for step in range(config.steps):
            if step % self.every == 0:
                measure(step)
            version = step - len(versions) + 1
            engine.set_weights(versions[0], f"version {version}")
            began = time.process_time()
            groups = self._collect(maker, step, version)
            generated = time.process_time()
            chosen = groups.trained(config.train.online_filter)
            result = train_step(learner, chosen, config, step) if chosen else StepResult()
            if result.off:
                raise ShoalError(f"study loop: step {step}: engine and trainer disagree by {result.off}")
            self._note(step, groups, result, generated - began, time.process_time() - generated, watch)
            if self._bad_in_a_row >= config.train.max_bad_steps:
                self.found.diverged = True
                break
            versions.append(_copied(learner.policy.weights()))
        measure(len(self.found.curve))
        return self.found

    def _collect(self, maker: Maker, step: int, version: int) -> StepGroups:
        """Asks for files until a step is full, or has seen as many groups as it may."""
        train, submissions = self.config.train, list[Submission]()
        filling = seen = 0
        while filling < train.groups_per_step and seen < train.max_groups:
            lease = Lease(
                run=self.config.name,
                node="study",
                step=step,
                submission=len(submissions),
                version=version,
                groups=self.config.workers.groups_per_submission,
                beacon=self.config.seed,
                deadline=FOREVER,
            )
            submissions.append(maker.make(lease, Version(version, "")))
            newest = sort_groups(submissions[-1:], normalise=train.advantage_std)
            filling += newest.filling(train.online_filter)
            seen += newest.seen
        self._samples += sum(len(one.rollouts) for one in submissions)
        return sort_groups(submissions, normalise=train.advantage_std)

    def _note(
        self, step: int, groups: StepGroups, result: StepResult, generate_s: float, train_s: float, watch: Watch
    ) -> None:
        self._seconds += generate_s + train_s
        metrics = result.metrics()
        is_bad = bool(result.skipped and not result.losses)
        self.found.bad_steps += is_bad
        self._bad_in_a_row = self._bad_in_a_row + 1 if is_bad else 0
        for sign in watch.look(metrics).began:
            self.found.signs.setdefault(sign, step)
        self.found.curve.append(
            {
                "step": step,
                "reward": groups.reward,
                "solve_rate": groups.solve_rate,
                "samples": self._samples,
                "generate_s": generate_s,
                "train_s": train_s,
                "grad_norm_max": max(result.grad_norms, default=0.0),
                **{key: metrics[key] if isfinite(metrics[key]) else 0.0 for key in SHOWN},
            }
        )
        self.said(f"step {step + 1} of {self.config.steps}, reward {groups.reward:.3f}")

    def _measure(self, version: int, found: Evaluation) -> None:
        self.found.measured.append(
            {
                "version": version,
                "pass_at_1": found.pass_at_1,
                "samples": self._samples,
                "seconds": self._seconds,
                "lengths": found.lengths,
                "length_rank": found.length_rank if found.length_rank and isfinite(found.length_rank) else 0.0,
            }
        )


def _copied(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def pipelined(generate_s: Sequence[float], train_s: Sequence[float], level: int) -> float:
    """Seconds until the last step is trained, if one machine generates and another one trains.

    Rollouts of step k are begun once version k - level is out and those of step k - 1 are done; step k is trained once
    its rollouts are there and step k - 1 is trained.
    """
    published = [0.0]
    generated = 0.0
    for k, (generate, train) in enumerate(zip(generate_s, train_s, strict=True)):
        generated = max(generated, published[max(0, k - level)]) + generate
        published.append(max(generated, published[k]) + train)
    return published[-1]
