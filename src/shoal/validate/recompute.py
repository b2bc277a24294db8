"""Recomputation by prefill: states, log-probs and, from the lease's noise, the tokens that should have been drawn, in
one forward pass. This costs a fraction of generating them, because all tokens of a file go through the model side by
side.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.generate.sampling import NoiseStream, Words, shortfalls
from shoal.models.load import Policy
from shoal.protocol.submission import Rollout
from shoal.train.batch import Group, pack

Floats = npt.NDArray[np.float64]
# Powers of a token's probability whose expectations tell fair draws from others: negative ones grow with unlikely
# tokens, positive ones with likely ones.
TILTS = (-0.5, -0.25, 0.25, 0.5)
# Below such probabilities a token is unlikely; text of another model holds more of those than draws do.
UNLIKELY = (1e-2, 1e-3, 1e-4, 1e-5)
# Temperatures that a cheat may have sampled at instead, in multiples of the run's.
WARMER = (0.9, 1.1)
# Logits that exist at a time: 16 MB of them.
MAX_LOGITS = 1 << 22


@dataclass(frozen=True, slots=True)
class Replayed:
    """One answer as the claimed version computes it, one entry per token."""

    states_TD: Tensor
    """State t is the one token t was drawn from."""
    logprobs_T: Floats
    shortfalls_T: Floats | None
    """How far each token is below the best one under the lease's noise; None without noise to redraw."""
    tilts_TL: Floats | None
    """log of the expected p^s of a token, for each s of TILTS; None where the noise is redrawn."""
    tails_TU: Floats | None
    """Probability that a token is less likely than each of UNLIKELY; None where the noise is redrawn."""
    ends_T: Floats | None
    """Probability of the end tokens; None where the noise is redrawn."""
    squares_T: Floats | None = None
    """Sum of p^2 over the vocabulary; None unless numeric evidence is asked for."""
    warmer_TW: Floats | None = None
    """Log-probs at each of WARMER times the temperature; None unless numeric evidence is asked for."""


@torch.inference_mode()
def replay(
    policy: Policy,
    samples: Sequence[Rollout],
    keys: Sequence[tuple[int, int]] | None,
    temperature: float,
    budget: int,
    *,
    numeric: bool = False,
    only_logprobs: bool = False,
) -> list[Replayed]:
    """Replays answers in rows of up to `budget` tokens, or of one answer that is longer.

    `keys` holds each one's lease seed and number under it, which fix its noise; None where sampling is free. Samples
    that share a prompt and stand side by side share its computation. `numeric` asks for what evidence in nats needs,
    `only_logprobs` for nothing but log-probs.
    """
    at = {id(sample): number for number, sample in enumerate(samples)}
    found: dict[int, Replayed] = {}
    budget = max([budget, *(len(sample.prompt) + len(sample.completion) - 1 for sample in samples)])
    for batch in pack(list(_groups(samples)), budget):
        hidden_TD = policy.hidden(batch.ids_1T, batch.layout.positions_1T, batch.layout)[0]
        states_AD = hidden_TD.index_select(0, batch.source_A)
        numbers = [at[id(sample)] for sample in batch.rollouts]
        bits = None
        if keys is not None and not only_logprobs:
            bits = _noise([(*keys[n], len(samples[n].completion)) for n in numbers], policy.vocab)
        columns = _columns(
            policy, states_AD, batch.target_A, bits, temperature, numeric, free=keys is None and not only_logprobs
        )
        ends = np.cumsum([0, *(len(sample.completion) for sample in batch.rollouts)])
        for number, (begin, end) in zip(numbers, pairwise(ends.tolist()), strict=True):
            logp, *others = (None if column is None else column[begin:end] for column in columns)
            assert logp is not None
            found[number] = Replayed(states_AD[begin:end], logp, *others)
    return [found[number] for number in range(len(samples))]


def _groups(samples: Sequence[Rollout]) -> Iterator[Group]:
    for prompt, same in groupby(samples, key=lambda sample: tuple(sample.prompt)):
        answers = list(same)
        yield Group(list(prompt), answers, [0.0] * len(answers), 0)


def _noise(keys: Sequence[tuple[int, int, int]], vocab: int) -> Iterator[Words]:
    """The noise of every token, answer after answer."""
    for seed, number, length in keys:
        stream = NoiseStream(seed, number, vocab)
        for _ in range(length):
            yield stream.next()


def logprobs(policy: Policy, samples: Sequence[Rollout], temperature: float, budget: int) -> list[Floats]:
    """Log-probs of answers under the policy's weights, and nothing else."""
    return [own.logprobs_T for own in replay(policy, samples, None, temperature, budget, only_logprobs=True)]


def numeric_columns(scaled_RV: Tensor, tokens_R: Tensor) -> tuple[Floats, Floats, Floats]:
    """Log-probs of tokens, the sums of p^2 and log-probs at each of WARMER times the temperature."""
    norm_R = torch.logsumexp(scaled_RV, dim=1)
    own_R = scaled_RV.gather(1, tokens_R.unsqueeze(1)).squeeze(1)
    squares_R = (torch.logsumexp(2 * scaled_RV, dim=1) - 2 * norm_R).exp()
    warmer_RW = torch.stack([own_R / times - torch.logsumexp(scaled_RV / times, dim=1) for times in WARMER], dim=1)
    return (own_R - norm_R).double().numpy(), squares_R.double().numpy(), warmer_RW.double().numpy()


def _columns(
    policy: Policy,
    states_AD: Tensor,
    tokens_A: Tensor,
    bits: Iterator[Words] | None,
    temperature: float,
    numeric: bool,
    *,
    free: bool,
) -> tuple[Floats | None, ...]:
    """Log-probs, shortfalls, tilts, tails, end probabilities, squares and log-probs at other temperatures of all
    tokens, a few rows of logits at a time."""
    rows = max(1, MAX_LOGITS // policy.vocab)
    ends = [token for token in policy.eos_ids if token < policy.vocab]
    lists: list[list[Floats]] = [[] for _ in range(7)]
    logp, below, tilts, tails, ending, squares, warmer = lists
    for states_RD, tokens_R in zip(torch.split(states_AD, rows), torch.split(tokens_A, rows), strict=True):
        scaled_RV = policy.head(states_RD).float().div_(temperature)
        norm_R1 = torch.logsumexp(scaled_RV, dim=1, keepdim=True)
        logp.append((scaled_RV.gather(1, tokens_R.unsqueeze(1)) - norm_R1).squeeze(1).double().numpy())
        if numeric:
            _, squares_R, warmer_RW = numeric_columns(scaled_RV, tokens_R)
            squares.append(squares_R)
            warmer.append(warmer_RW)
        if bits is not None:
            below.append(shortfalls(scaled_RV, [next(bits) for _ in range(len(tokens_R))], tokens_R))
        if not free:
            continue
        logp_RV = (scaled_RV - norm_R1).double()
        tilts.append(torch.stack([torch.logsumexp((1 + s) * logp_RV, dim=1) for s in TILTS], dim=1).numpy())
        p_RV = logp_RV.exp()
        tails.append(torch.stack([p_RV.where(logp_RV < math.log(u), 0.0).sum(1) for u in UNLIKELY], dim=1).numpy())
        ending.append(p_RV[:, ends].sum(1).numpy())
    return tuple(np.concatenate(column) if column else None for column in lists)
