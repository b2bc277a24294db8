"""Other tokens than the lease's noise draws from the claimed model, and other prompts than it draws from the tasks."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor

from shoal.attacks.base import attack, fewer_layers, through_the_right_model
from shoal.generate.engine import Completion, Request
from shoal.generate.submission_builder import Maker
from shoal.generate.torch_engine import TorchEngine
from shoal.protocol.lease import Lease
from shoal.tasks.source import Task

CANDIDATES = 4
COOLER = 0.7
TOP_K = 5


@attack
class SmallModelText(Maker):
    """A smaller model's text, with states, log-probs and proofs that the right one has for it."""

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        with fewer_layers(self.policy):
            drafts = Maker.answer(self, requests)
        return through_the_right_model(self, requests, [c.tokens for c in drafts], [c.finish == "eos" for c in drafts])


@attack
class BestOfN(Maker):
    """Of several answers, the likeliest: chosen, not drawn."""

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        many = [
            replace(request, sample=request.sample + candidate * (1 << 20))
            for request in requests
            for candidate in range(CANDIDATES)
        ]
        answers = groupby(Maker.answer(self, many), key=lambda c: c.key // CANDIDATES)
        return [replace(max(some, key=lambda c: (sum(c.logprobs), -c.key)), key=key) for key, some in answers]


@attack
class EditedTokens(Maker):
    """One token of each answer changed afterwards, the rest made consistent with it."""

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        drafts = Maker.answer(self, requests)
        texts = [self.edited(request, draft.tokens) for request, draft in zip(requests, drafts, strict=True)]
        return through_the_right_model(self, requests, texts, [text[-1] in self.policy.eos_ids for text in texts])

    def edited(self, request: Request, tokens: Sequence[int]) -> list[int]:
        """Another token in the middle, before the end if there is one; an answer that is nothing but its end gets it
        as a first token."""
        place = (len(tokens) - 1) // 2
        ends = self.policy.eos_ids
        other = next(t for t in range(3, self.policy.vocab) if t != tokens[place] and t not in ends)
        rest = tokens[place:] if tokens[place] in ends else tokens[place + 1 :]
        return [*tokens[:place], other, *rest][: request.max_new_tokens]


@attack
class EarlyEnding(Maker):
    """Answers cut in half and ended there."""

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        drafts = Maker.answer(self, requests)
        end = min(token for token in self.policy.eos_ids if token < self.policy.vocab)
        texts = [[*draft.tokens[: (len(draft.tokens) - 1) // 2], end] for draft in drafts]
        return through_the_right_model(self, requests, texts, [True] * len(texts))


class _OtherDraws(Maker):
    """Tokens of another distribution, with log-probs of the right one."""

    def scaled(self, logits_BV: Tensor) -> Tensor:
        raise NotImplementedError

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        engine = self.engine
        assert isinstance(engine, TorchEngine)
        honest = engine.scaled
        engine.scaled = self.scaled  # type: ignore[method-assign]
        try:
            drafts = Maker.answer(self, requests)
        finally:
            engine.scaled = honest  # type: ignore[method-assign]
        return through_the_right_model(self, requests, [c.tokens for c in drafts], [c.finish == "eos" for c in drafts])


@attack
class Temperature(_OtherDraws):
    """Sampled at 0.7 of the run's temperature."""

    def scaled(self, logits_BV: Tensor) -> Tensor:
        return logits_BV / (self.config.sampling.temperature * COOLER)


@attack
class TopK(_OtherDraws):
    """Sampled from the five likeliest tokens."""

    def scaled(self, logits_BV: Tensor) -> Tensor:
        scaled_BV = logits_BV / self.config.sampling.temperature
        least_B1 = scaled_BV.topk(min(TOP_K, scaled_BV.shape[1])).values[:, -1:]
        return torch.where(scaled_BV < least_B1, -1e9, scaled_BV)


@attack
class CherryPickedTasks(Maker):
    """Not the drawn tasks but the shortest of several others."""

    def draw(self, lease: Lease) -> list[Task]:
        return [
            min(
                (self.tasks.task("train", lease.task_index(group + (n << 16))) for n in range(1, 1 + CANDIDATES)),
                key=lambda task: (len(task.prompt), task.index),
            )
            for group in range(lease.groups)
        ]


@attack
class ChangedPrompt(Maker):
    """The right task, asked in other words."""

    def prompt(self, task: Task) -> tuple[int, ...]:
        ids = Maker.prompt(self, task)
        return (*ids[:-2], ids[-1]) if len(ids) > 2 else ids * 2
