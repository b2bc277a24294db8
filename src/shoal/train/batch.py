"""Batching: accepted submissions sorted into groups and packed into micro-batches.

Groups without signal are set apart here; what is trained on is dealt into optimizer batches and packed first-fit
decreasing into a token budget. A group's prompt is packed once with all its answers, so packing works on groups; one
that does not fit the budget is cut into pieces that do.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from shoal.models.attention import Packed, SharedPrompt
from shoal.protocol.submission import Rollout, Submission, read_parts
from shoal.rl.advantages import group_advantages, has_signal
from shoal.rl.bin_packing import first_fit_decreasing


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one prompt, with advantages that the trainer computed itself."""

    prompt: list[int]
    samples: list[Rollout]
    advantages: list[float]
    version: int
    submission: int = 0
    """Number of the file in its step."""


@dataclass(frozen=True, slots=True)
class StepGroups:
    """All groups of a step: those with signal, and those that had none and why."""

    signal: list[Group]
    flat: list[Group]
    """Scored, and without signal: every advantage is 0."""
    seen: int
    all_right: int
    all_wrong: int
    failed: int
    """Groups in which a scorer failed."""
    error: str
    """The first scorer error, if any."""
    reward: float
    """Mean over all scored samples, with and without signal: what the policy earns, not what it is trained on."""
    solve_rate: float
    parts: dict[str, float]
    """Means of the rewards' parts, where they have several."""

    def trained(self, online_filter: bool) -> list[Group]:
        """The groups to train on: without the filter those without signal as well, which dilute the others."""
        return self.signal if online_filter else self.signal + self.flat

    def filling(self, online_filter: bool) -> int:
        """Groups that count towards what a step needs, as `StepCount.filling` counts them."""
        return len(self.signal) if online_filter else self.seen


def sort_groups(submissions: Iterable[Submission], *, normalise: bool) -> StepGroups:
    """Sorts a step's groups by whether they teach anything."""
    signal: list[Group] = []
    flat: list[Group] = []
    seen = all_right = all_wrong = failed = 0
    error = ""
    rewards: list[float] = []
    solved: list[bool] = []
    parts: dict[str, list[float]] = {}
    for submission in submissions:
        for samples in submission.groups():
            seen += 1
            scored = [s.reward for s in samples if s.reward is not None]
            rewards += scored
            for sample in samples:
                if sample.task_reward is not None:
                    solved.append(sample.task_reward >= 1.0)
                for name, value in read_parts(sample.parts).items():
                    parts.setdefault(name, []).append(value)
            if len(scored) < len(samples):
                failed += 1
                error = error or next(s.error for s in samples if s.error)
                continue
            rewards_1S = torch.tensor([scored])
            advantages = group_advantages(rewards_1S, normalise=normalise)[0].tolist()
            number = submission.lease.submission
            group = Group(samples[0].prompt, samples, advantages, submission.version, number)
            if bool(has_signal(rewards_1S)):
                signal.append(group)
                continue
            flat.append(group)
            if (samples[0].task_reward or 0.0) >= 1.0:
                all_right += 1
            else:
                all_wrong += 1
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    solve_rate = sum(solved) / len(solved) if solved else 0.0
    means = {name: sum(values) / len(values) for name, values in parts.items()}
    return StepGroups(signal, flat, seen, all_right, all_wrong, failed, error, mean, solve_rate, means)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples packed into one forward pass, and the tokens in it that the loss is about.

    Loss token a is predicted from row `source_A[a]` of the packed row; the last token of an answer predicts nothing and
    is not even fed.
    """

    ids_1T: Tensor
    layout: Packed
    source_A: Tensor
    target_A: Tensor
    sample_A: Tensor
    advantage_A: Tensor
    engine_logp_A: Tensor
    version_A: Tensor
    """The policy version that sampled each token."""
    submission_A: Tensor
    """The file that each token came in."""
    rollouts: list[Rollout]
    """The samples themselves, in the order of their tokens."""


def deal(groups: Sequence[Group], parts: int, rng: Random) -> list[list[Group]]:
    """Shuffles groups into `parts` optimizer batches whose sizes differ by one at most."""
    shuffled = list(groups)
    rng.shuffle(shuffled)
    return [shuffled[part::parts] for part in range(parts)]


def pack(groups: Sequence[Group], budget: int) -> list[MicroBatch]:
    """Micro-batches of at most `budget` tokens that hold every sample exactly once."""
    pieces = [piece for group in groups for piece in _pieces(group, budget)]
    sizes = [_size(piece) for piece in pieces]
    return [_micro_batch([pieces[i] for i in bin_]) for bin_ in first_fit_decreasing(sizes, budget)]


def _size(group: Group) -> int:
    return len(group.prompt) + sum(len(sample.completion) - 1 for sample in group.samples)


def _pieces(group: Group, budget: int) -> Iterator[Group]:
    """The group whole if it fits, or else cut into runs of samples that each fit with a copy of the prompt."""
    first, used = 0, len(group.prompt)
    for number, sample in enumerate(group.samples):
        cost = len(sample.completion) - 1
        if used + cost > budget and number > first:
            yield replace(group, samples=group.samples[first:number], advantages=group.advantages[first:number])
            first, used = number, len(group.prompt)
        used += cost
    yield replace(group, samples=group.samples[first:], advantages=group.advantages[first:])


def _micro_batch(groups: Sequence[Group]) -> MicroBatch:
    layout = Packed([SharedPrompt(len(g.prompt), tuple(len(s.completion) - 1 for s in g.samples)) for g in groups])
    ids: list[int] = []
    source: list[Tensor] = []
    samples = [(g, s, a) for g in groups for s, a in zip(g.samples, g.advantages, strict=True)]
    answer_starts = iter(layout.answer_starts)
    for group, prompt_start in zip(groups, layout.starts, strict=True):
        ids += group.prompt
        prompt_end = torch.tensor([prompt_start + len(group.prompt) - 1])
        for sample in group.samples:
            ids += sample.completion[:-1]
            start = next(answer_starts)
            source.append(torch.cat([prompt_end, torch.arange(start, start + len(sample.completion) - 1)]))
    lengths = torch.tensor([len(s.completion) for _, s, _ in samples])
    return MicroBatch(
        ids_1T=torch.tensor([ids]),
        layout=layout,
        source_A=torch.cat(source),
        target_A=torch.tensor([token for _, s, _ in samples for token in s.completion]),
        sample_A=torch.arange(len(samples)).repeat_interleave(lengths),
        advantage_A=torch.tensor([a for _, _, a in samples]).repeat_interleave(lengths),
        engine_logp_A=torch.tensor([p for _, s, _ in samples for p in s.logprobs]),
        version_A=torch.tensor([g.version for g, _, _ in samples]).repeat_interleave(lengths),
        submission_A=torch.tensor([g.submission for g, _, _ in samples]).repeat_interleave(lengths),
        rollouts=[s for _, s, _ in samples],
    )
