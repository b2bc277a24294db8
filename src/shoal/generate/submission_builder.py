"""Builds the submission that a lease asks for: draws tasks, generates answers, proves and scores them.

Everything follows from the lease and the weights. Each part is a method of its own, which is where those who cheat
differ from those who do not (`shoal.attacks`).
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from shoal.config import RunConfig, TaskConfig
from shoal.errors import TaskError
from shoal.generate.engine import Completion, Engine, Request
from shoal.generate.environment_calls import WAIT_S, EnvironmentCalls
from shoal.generate.episodes import Episode, EpisodeCompletion, runs_of
from shoal.generate.flights import Answer, Flight
from shoal.models.chat import Turns
from shoal.models.load import Policy
from shoal.protocol.lease import Lease, asked, checked_table, no_table
from shoal.protocol.rollout import Rollout, logprobs_of, tokens_of, write_parts
from shoal.protocol.spans import SpanLease, no_spans, span_tokens
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission, groups_with_signal, write_rollouts
from shoal.rl.advantages import group_advantages
from shoal.tasks.difficulty import Table
from shoal.tasks.environments.source import environments_of
from shoal.tasks.length import target_of, with_lengths
from shoal.tasks.source import Judge, Score, Task, TaskSource


@dataclass(frozen=True, slots=True)
class Asked:
    """What a lease asks for: a task per group, a request per answer."""

    lease: Lease
    tasks: list[Task]
    requests: list[Request]


@dataclass(slots=True)
class Maker:
    """Builds an honest submission; attacks override one method."""

    asks_for_states: ClassVar[bool] = False
    """Whether completions carry their states: an honest worker has no use for them, their proofs are built already."""

    config: RunConfig
    policy: Policy
    engine: Engine
    tasks: TaskSource
    judge: Judge
    table_of: Callable[[Lease], Table | None] = no_table
    span_of: Callable[[Lease, int, int], SpanLease] = no_spans
    """What a lease's answers go on with from a token on, asked with a version; for runs with `workers.in_flight`."""
    _turns: Turns | None = field(default=None, init=False)

    def file(self, lease: Lease, version: Version) -> tuple[Submission, bytes]:
        """The submission and the bytes to hand in."""
        submission = self.make(lease, version)
        return submission, write_rollouts(submission, groups_with_signal(submission))

    def make(self, lease: Lease, version: Version) -> Submission:
        """All that the lease asks for, made in one go by the version that is loaded."""
        asked = self.asked(lease)
        if not self.config.workers.in_flight and not self.environments:
            return self.submission(asked, version, self.answer(asked.requests))
        flight, calls = self.flight(asked, version), EnvironmentCalls(self.judge)
        while flight.unfinished:
            if (first := flight.unleased()) is not None:
                flight.later.append(self.span_of(lease, first, version.number))
            numbers = flight.due(version)
            for piece in self.answer([flight.ask(number) for number in numbers]):
                calls.add(flight, numbers[piece.key], piece)
            while calls:
                calls.hear(WAIT_S)
        return self.submission(asked, version, flight.completions(), flight.later)

    @property
    def environments(self) -> dict[str, TaskConfig]:
        """The lines of the config whose tasks are played in turns, by name."""
        return environments_of(self.config.tasks)

    def flight(self, asked: Asked, version: Version) -> Flight:
        """A lease whose answers are about to be generated."""
        config, in_turns = self.config, self.environments
        longest, size = config.sampling.max_new_tokens, config.sampling.group_size
        every = span_tokens(longest) if config.workers.in_flight else longest
        answers = [
            self.episode(task, request) if task.source in in_turns else Answer(request)
            for number, request in enumerate(asked.requests)
            for task in [asked.tasks[number // size]]
        ]
        return Flight.of(asked.lease, version, answers, every)

    def episode(self, task: Task, request: Request) -> Episode:
        """An answer that is played in turns."""
        return Episode.of(request, task, self.config.turns, self.policy, self.turns)

    @property
    def turns(self) -> Turns:
        """What stands between turns; a ModelError where the chat template cannot be used for several."""
        if self._turns is None:
            self._turns = Turns.of(self.policy)
        return self._turns

    def asked(self, lease: Lease) -> Asked:
        """What follows from a lease alone."""
        tasks = self.draw(lease)
        return Asked(lease, tasks, self.requests(lease, [self.prompt(task) for task in tasks]))

    def submission(
        self, asked: Asked, version: Version, answers: Sequence[Completion], later: Sequence[SpanLease] = ()
    ) -> Submission:
        """What a lease's answers make, in the order of its requests; they began with a version, and went on under span
        leases where the run has such."""
        lease, tasks, size = asked.lease, asked.tasks, self.config.sampling.group_size
        scores = self.scored(tasks, answers)
        targets = [target_of(self.config.length, lease.seed, c.key // size) for c in answers]
        scores = with_lengths(scores, [len(c.logprobs) for c in answers], targets, self.config.length)
        arrays = [tokens_of(request.prompt) for request in asked.requests[::size]]
        rollouts = [
            Rollout(
                group=c.key // size,
                sample=c.key % size,
                source=tasks[c.key // size].source,
                task=tasks[c.key // size].index,
                prompt=arrays[c.key // size],
                completion=tokens_of(c.tokens),
                logprobs=logprobs_of(c.logprobs),
                finish=c.finish,
                reward=s.reward,
                advantage=advantage,
                error=s.error,
                proof=self.prove(c),
                parts=write_parts(s.parts),
                runs=runs_of(c),
            )
            for c, s, advantage in zip(answers, scores, self.advantages([s.reward for s in scores]), strict=True)
        ]
        return Submission(lease, version.number, version.root, rollouts, tuple(later))

    def draw(self, lease: Lease) -> list[Task]:
        """The task of each group, with its length budget."""
        table = checked_table(lease, self.table_of(lease), self.config.sampler)
        return [asked(self.tasks, lease, group, self.config.length, table) for group in range(lease.groups)]

    def prompt(self, task: Task) -> tuple[int, ...]:
        ids = tuple(self.policy.encode_task(task))
        most = self.config.sampling.max_prompt_tokens
        if len(ids) > most:
            raise TaskError(
                f"{task.source} task {task.index}: its prompt takes {len(ids)} tokens, allowed {most}; "
                f"raise sampling.max_prompt_tokens to at least {len(ids)}"
            )
        return ids

    def requests(self, lease: Lease, prompts: Sequence[tuple[int, ...]]) -> list[Request]:
        """One for each sample. With free sampling the noise is nobody's to redraw."""
        sampling = self.config.sampling
        seed = lease.seed if sampling.mode == "seeded" else int.from_bytes(os.urandom(8), "big")
        return [
            Request(prompt, seed, group * sampling.group_size + sample, sampling.max_new_tokens)
            for group, prompt in enumerate(prompts)
            for sample in range(sampling.group_size)
        ]

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers in the order of the requests."""
        return sorted(self.engine.generate(requests, hidden=self.asks_for_states), key=lambda c: c.key)

    def scored(self, tasks: Sequence[Task], answers: Sequence[Completion]) -> list[Score]:
        """The score of each answer; an episode has its own already."""
        size = self.config.sampling.group_size
        played = {c.key: c.score for c in answers if isinstance(c, EpisodeCompletion) and c.score is not None}
        texts = [(tasks[c.key // size], self.policy.decode(c.tokens)) for c in answers if c.key not in played]
        others = iter(self.score(texts) if texts else ())
        return [played[c.key] if c.key in played else next(others) for c in answers]

    def score(self, answers: Sequence[tuple[Task, str]]) -> list[Score]:
        """Group by group: who else wants something of the scorer, such as tasks, waits for one group at most."""
        size = self.config.sampling.group_size
        groups = [answers[first : first + size] for first in range(0, len(answers), size)]
        return [score for group in groups for score in self.judge.scores("train", group)]

    def advantages(self, rewards: Sequence[float | None]) -> list[float]:
        """A group with a failed score has none."""
        rewards_GS = torch.tensor([float("nan") if r is None else r for r in rewards])
        rewards_GS = rewards_GS.view(-1, self.config.sampling.group_size)
        return list(group_advantages(rewards_GS, normalise=self.config.train.advantage_std).flatten().tolist())

    def prove(self, answer: Completion) -> bytes:
        """The proof that goes into the file: the one that the engine has built."""
        return answer.proof
