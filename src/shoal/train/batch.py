"""Batching: accepted submissions sorted into groups and packed into micro-batches.

Groups without signal are set apart here; what is trained on is dealt into optimizer batches and packed first-fit
decreasing into a token budget. A group's prompt is packed once with all its answers, so packing works on groups; one
that does not fit the budget is cut into pieces that do.

Tokens stay in arrays all the way: a micro-batch is a handful of tensors, concatenated from views of the files' tables.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate
from random import Random

import numpy as np
import torch
from torch import Tensor

from shoal.models.attention import Packed, SharedPrompt
from shoal.protocol.rollout import Rollout, Tokens, read_parts
from shoal.protocol.spans import SpanLease
from shoal.protocol.submission import Submission
from shoal.protocol.turns import drawn_places
from shoal.rl.advantages import group_advantages, has_signal
from shoal.rl.bin_packing import first_fit_decreasing


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The samples of one prompt, with advantages that the trainer computed itself."""

    prompt: Tokens
    samples: list[Rollout]
    advantages: list[float]
    version: int
    """The one that its answers began with."""
    submission: int = 0
    """Number of the file in its step."""
    later: tuple[SpanLease, ...] = ()
    """What its answers went on with."""

    def versions(self, sample: Rollout) -> Tokens:
        """The version that drew each token that one of its answers has of the policy."""
        drawn_T = np.full(len(sample.completion), self.version, np.int32)
        for span in self.later:
            drawn_T[span.first :] = span.version
        return drawn_T[drawn_places(sample.runs, len(drawn_T))]


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


@dataclass(frozen=True, slots=True)
class Staleness:
    """Steps between the version that drew a token and the one that is trained: over all tokens, and the most."""

    mean: float
    largest: int


def staleness(step: int, groups: Sequence[Group]) -> Staleness:
    """How old the tokens of a step's groups are."""
    lag_A = step - np.concatenate([g.versions(sample) for g in groups for sample in g.samples])
    return Staleness(float(lag_A.mean()), int(lag_A.max()))


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
            group = Group(samples[0].prompt, samples, advantages, submission.version, number, submission.later)
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


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Samples packed into one forward pass, and the tokens in it that the loss is about.

    Its fields are tensors and nothing else, so it is sent to another process field by field. What has one value per
    sample is stored once per sample; the properties that end in `_A` have it for every loss token.

    Loss token a is predicted from row `source_A[a]` of the packed row; the last token of an answer predicts nothing and
    is not even fed.
    """

    ids_1T: Tensor
    target_A: Tensor
    engine_logp_A: Tensor
    prompt_G: Tensor
    """Tokens of each group's prompt."""
    answers_G: Tensor
    """Samples of each group."""
    length_S: Tensor
    """Tokens of each answer, the last one included."""
    drawn_S: Tensor
    """Tokens of each answer that the policy drew, which are its loss tokens: all, but for those of environments."""
    place_A: Tensor
    """Place of each loss token in its answer."""
    advantage_S: Tensor
    version_A: Tensor
    """The policy version that sampled each token."""
    submission_S: Tensor
    number_S: Tensor
    """Place of each sample among all that were packed, group after group."""

    @cached_property
    def layout(self) -> Packed:
        fed = [tuple((part - 1).tolist()) for part in self.length_S.split(self.answers_G.tolist())]
        families = map(SharedPrompt, self.prompt_G.tolist(), fed)
        return Packed(list(families), self.ids_1T.device)

    @property
    def source_A(self) -> Tensor:
        # Before its first token stands the prompt's end, before each of the others the one before it.
        starts_S = torch.tensor(self.layout.answer_starts, device=self.length_S.device)
        begin_S = self.drawn_S.cumsum(0) - self.drawn_S
        source_A = self._spread(starts_S - 1) + self.place_A
        ends_G = torch.tensor(self.layout.starts, device=starts_S.device) + self.prompt_G - 1
        source_A[begin_S] = ends_G.repeat_interleave(self.answers_G, output_size=len(self.length_S))
        return source_A

    @property
    def sample_A(self) -> Tensor:
        return self._spread(torch.arange(len(self.length_S), device=self.length_S.device))

    @property
    def advantage_A(self) -> Tensor:
        return self._spread(self.advantage_S)

    @property
    def submission_A(self) -> Tensor:
        """The file that each token came in."""
        return self._spread(self.submission_S)

    def to(self, device: torch.device) -> "MicroBatch":
        """The same where it is computed. The layout, which is numbers on the host, is not made again."""
        if self.ids_1T.device == device:
            return self
        moved = MicroBatch(*(getattr(self, field.name).to(device) for field in fields(self)))
        moved.__dict__["layout"] = self.layout
        return moved

    def _spread(self, values_S: Tensor) -> Tensor:
        return values_S.repeat_interleave(self.drawn_S, output_size=len(self.target_A))


def deal(groups: Sequence[Group], parts: int, rng: Random) -> list[list[Group]]:
    """Shuffles groups into `parts` optimizer batches whose sizes differ by one at most."""
    shuffled = list(groups)
    rng.shuffle(shuffled)
    return [shuffled[part::parts] for part in range(parts)]


def pack(groups: Sequence[Group], budget: int) -> list[MicroBatch]:
    """Micro-batches of at most `budget` tokens that hold every sample exactly once."""
    firsts = accumulate((len(group.samples) for group in groups), initial=0)
    pieces = [piece for group, first in zip(groups, firsts, strict=False) for piece in _pieces(group, first, budget)]
    bins = first_fit_decreasing([piece.tokens for piece in pieces], budget)
    return [_micro_batch([pieces[i] for i in bin_]) for bin_ in bins]


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Samples of a group that are packed with one copy of its prompt: those that `numbers` has."""

    group: Group
    numbers: range
    first: int
    """Place of the group's first sample among all that are packed."""
    tokens: int

    @property
    def samples(self) -> list[Rollout]:
        return [self.group.samples[n] for n in self.numbers]

    def versions(self, n: int) -> Tokens:
        return self.group.versions(self.group.samples[n])


def _pieces(group: Group, first: int, budget: int) -> Iterator[_Piece]:
    """The group whole if it fits, or else cut into runs of samples that each fit with a copy of the prompt."""
    begin, used = 0, len(group.prompt)
    for number, sample in enumerate(group.samples):
        cost = len(sample.completion) - 1
        if used + cost > budget and number > begin:
            yield _Piece(group, range(begin, number), first, used)
            begin, used = number, len(group.prompt)
        used += cost
    yield _Piece(group, range(begin, len(group.samples)), first, used)


def _micro_batch(pieces: Sequence[_Piece]) -> MicroBatch:
    samples = [sample for piece in pieces for sample in piece.samples]
    fed = [ids for piece in pieces for ids in (piece.group.prompt, *(s.completion[:-1] for s in piece.samples))]
    numbered = [(piece, n) for piece in pieces for n in piece.numbers]
    places = [drawn_places(s.runs, len(s.completion)) for s in samples]
    return MicroBatch(
        ids_1T=torch.from_numpy(np.concatenate(fed, dtype=np.int64)).unsqueeze(0),
        target_A=torch.from_numpy(np.concatenate([s.drawn for s in samples], dtype=np.int64)),
        engine_logp_A=torch.from_numpy(np.concatenate([s.logprobs for s in samples])),
        prompt_G=torch.tensor([len(piece.group.prompt) for piece in pieces]),
        answers_G=torch.tensor([len(piece.numbers) for piece in pieces]),
        length_S=torch.tensor([len(s.completion) for s in samples]),
        drawn_S=torch.tensor([len(own) for own in places]),
        place_A=torch.from_numpy(np.concatenate(places)),
        advantage_S=torch.tensor([piece.group.advantages[n] for piece, n in numbered]),
        version_A=torch.from_numpy(np.concatenate([piece.versions(n) for piece, n in numbered], dtype=np.int64)),
        submission_S=torch.tensor([piece.group.submission for piece, _ in numbered]),
        number_S=torch.tensor([piece.first + n for piece, n in numbered]),
    )
