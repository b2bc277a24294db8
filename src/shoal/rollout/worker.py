"""The worker: takes a lease, generates with the newest version, scores, submits; again until the run is done."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shoal.config import RunConfig
from shoal.errors import ModelError, RolloutError, TaskError, WaitError, WeightsError
from shoal.exchange.interfaces import RolloutStore, Version, WeightChannel
from shoal.files import locked
from shoal.models.load import Policy, load, read_weights
from shoal.rl.advantages import group_advantages, has_signal
from shoal.rollout.engine import Engine, Request, TorchEngine
from shoal.rollout.lease import Lease
from shoal.rollout.record import Rollout, Submission, write_rollouts
from shoal.rundir import TAKEOVER_S, RunDir, check_worker_name
from shoal.tasks.build import build_source
from shoal.tasks.scorer import Scorer
from shoal.tasks.source import Judge, Task, TaskSource
from shoal.watch.metrics import MetricsWriter
from shoal.watch.status import StatusFile

# A waiting worker looks for a new version this often, which is one directory listing, and for a lease that went back
# to the pool less often, which is several.
POLL_S = 0.02
LOOK_FOR_LEASES_S = 0.25


@dataclass(slots=True)
class Worker:
    """One generating node. It knows the run through its two interfaces and nothing else."""

    name: str
    config: RunConfig
    channel: WeightChannel
    store: RolloutStore
    policy: Policy
    engine: Engine
    tasks: TaskSource
    judge: Judge
    status: StatusFile
    metrics: MetricsWriter
    loaded: Version

    def run(self) -> None:
        """Works until the last version is out."""
        while True:
            version = self._newest()
            if version.number >= self.config.steps:
                self.status.done("the run is complete")
                return
            lease = self.store.lease(self.name, version.number)
            if lease is None:
                self._wait_for_work(version)
                continue
            self._work(lease, version)

    def _newest(self) -> Version:
        version = self.channel.latest()
        if version is None:
            raise WeightsError("no policy version is published; prepare the run with shoal run")
        return version

    def _wait_for_work(self, version: Version) -> None:
        """Waits until there may be work: a new version, or a lease that went back to the pool."""
        deadline = time.monotonic() + self.config.wait_s
        look_again = time.monotonic() + LOOK_FOR_LEASES_S
        while time.monotonic() < deadline:
            self.status.waiting(f"policy version {version.number + 1}", "trainer", deadline - time.monotonic())
            time.sleep(POLL_S)
            if self.channel.latest() != version:
                return
            if time.monotonic() >= look_again:
                if self.store.lease(self.name, version.number) is not None:
                    return  # it is this node's own now, and `run` finds it again
                look_again = time.monotonic() + LOOK_FOR_LEASES_S
        raise WaitError(
            f"{self.name}: policy version {version.number + 1} did not come within {self.config.wait_s:.0f} s; "
            "is the trainer running? (shoal status says; wait_s sets the limit)"
        )

    def _load(self, version: Version) -> bool:
        """Makes `version` the one in the engine; False if it vanished meanwhile, an error if it is damaged."""
        if version == self.loaded:
            return True
        self.status.working(f"loading version {version.number}")
        try:
            weights = read_weights(self.channel.fetch(version), self.config.model.dtype)
        except (WeightsError, ModelError) as error:
            if self.channel.latest() == version:
                raise
            self.metrics.write("note", text=str(error))
            return False
        self.engine.set_weights(weights, f"version {version.number}")
        self.loaded = version
        return True

    def _work(self, lease: Lease, version: Version) -> None:
        if not self._load(version):
            return
        began = time.monotonic()
        self.status.working(f"step {lease.step} submission {lease.submission} with version {version.number}")
        submission, signal = self.make(lease, version)
        seconds = time.monotonic() - began
        try:
            self.store.put(lease, write_rollouts(submission, signal))
        except RolloutError as error:
            self.metrics.write("note", text=str(error))
            return
        rewards = [r.reward for r in submission.rollouts if r.reward is not None]
        tokens = sum(len(r.completion) for r in submission.rollouts)
        self.metrics.write(
            "submission",
            step=lease.step,
            version=version.number,
            submission=lease.submission,
            samples=len(submission.rollouts),
            tokens=tokens,
            tokens_per_s=tokens / seconds,
            reward=sum(rewards) / len(rewards) if rewards else None,
            solve_rate=sum(r >= 1.0 for r in rewards) / len(rewards) if rewards else None,
            scorer_errors=len(submission.rollouts) - len(rewards),
            **self.status.shares(),
        )

    def make(self, lease: Lease, version: Version) -> tuple[Submission, int]:
        """All that the lease asks for, and how many of its groups have signal. A pure function of lease and weights."""
        size = self.config.sampling.group_size
        tasks = [self.tasks.task("train", lease.task_index(group)) for group in range(lease.groups)]
        prompts = [self._prompt(task) for task in tasks]
        requests = [
            Request(prompts[group], lease.seed, group * size + sample, self.config.sampling.max_new_tokens)
            for group in range(lease.groups)
            for sample in range(size)
        ]
        completions = sorted(self.engine.generate(requests), key=lambda c: c.index)
        answers = [(tasks[c.index // size], self.policy.decode(c.tokens)) for c in completions]
        scores = self.judge.scores("train", answers)
        advantages, signal = self._advantages([s.reward for s in scores], size)
        rollouts = [
            Rollout(
                group=c.index // size,
                sample=c.index % size,
                source=tasks[c.index // size].source,
                task=tasks[c.index // size].index,
                prompt=list(prompts[c.index // size]),
                completion=c.tokens,
                logprobs=c.logprobs,
                finish=c.finish,
                reward=s.reward,
                advantage=advantage,
                error=s.error,
            )
            for c, s, advantage in zip(completions, scores, advantages, strict=True)
        ]
        return Submission(lease, version.number, version.root, rollouts), signal

    def _prompt(self, task: Task) -> tuple[int, ...]:
        ids = tuple(self.policy.encode(task.prompt))
        most = self.config.sampling.max_prompt_tokens
        if len(ids) > most:
            raise TaskError(
                f"{task.source} task {task.index}: its prompt takes {len(ids)} tokens, allowed {most}; "
                "raise sampling.max_prompt_tokens"
            )
        return ids

    def _advantages(self, rewards: Sequence[float | None], size: int) -> tuple[list[float], int]:
        """Advantages of every sample, and the number of groups with signal. A group with a failed score has none."""
        rewards_GS = torch.tensor([float("nan") if r is None else r for r in rewards]).view(-1, size)
        advantages_GS = group_advantages(rewards_GS, normalise=self.config.train.advantage_std)
        return advantages_GS.flatten().tolist(), int(has_signal(rewards_GS).sum())


def start_worker(run: RunDir, name: str) -> None:
    """Runs one worker of a run in this process until the run is done."""
    check_worker_name(name)
    config = run.config
    torch.set_num_threads(config.workers.threads)
    taken = f"worker {name}: another process of that name is at work in {run.path}; give this one another --name"
    with locked(run.path / "locks" / name, taken, wait_s=TAKEOVER_S), run.role(name) as (status, metrics):
        status.working("loading the base model")
        channel = run.channel()
        base = channel.version(0)
        if base is None:
            raise WeightsError(f"run {run.path}: its base model, version 0, is gone; start the run anew")
        policy = load(run.base_model, config.model.dtype)
        engine = TorchEngine(
            policy,
            max_batch=config.workers.max_batch,
            max_len=config.max_len,
            temperature=config.sampling.temperature,
        )
        tasks = build_source(config.tasks)
        with Scorer(config.tasks) as judge:
            Worker(name, config, channel, run.store(), policy, engine, tasks, judge, status, metrics, base).run()
