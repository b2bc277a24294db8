"""Recomputation by prefill: states, log-probs and, from the lease's noise, the tokens that should have been drawn, in
one forward pass. This costs a fraction of generating them, because all tokens of a file go through the model side by
side.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal import toploc
from shoal.config import NoiseName
from shoal.devices import sums_dtype, to_numpy
from shoal.generate.noise_kinds import open_noise
from shoal.generate.sampling import Words
from shoal.models.load import Policy
from shoal.protocol.rollout import Rollout
from shoal.protocol.turns import drawn_places
from shoal.train.batch import Group, pack
from shoal.validate.vocabulary_sums import BLOCK, VocabularySums

Floats = npt.NDArray[np.float64]
NoiseKey = tuple[int, int] | tuple[int, int, tuple[tuple[int, int], ...]]
"""A lease's seed and an answer's number under it; where answers are drawn in spans, also where the noise of each later
one begins, and its seed."""
StatesOf = Callable[[Sequence[Rollout]], list[Tensor] | None]
"""The states of answers, or None: then the policy computes them."""
# Powers of a token's probability whose expectations tell fair draws from others: negative ones grow with unlikely
# tokens, positive ones with likely ones.
TILTS = (-0.5, -0.25, 0.25, 0.5)
# Below such probabilities a token is unlikely; text of another model holds more of those than draws do.
UNLIKELY = (1e-2, 1e-3, 1e-4, 1e-5)
# Temperatures that a cheat may have sampled at instead, in multiples of the run's.
WARMER = (0.9, 1.1)
# Powers whose sums over the vocabulary numeric evidence needs.
NUMERIC = (1.0, 2.0, *(1 / times for times in WARMER))
# Logits that exist at a time where whole rows are needed: 16 MB of them; and noise that does: 64 MB.
MAX_LOGITS, MAX_NOISE = 1 << 22, 1 << 24


@dataclass(frozen=True, slots=True)
class Replayed:
    """One answer as the claimed version computes it, one entry per drawn token."""

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


def since(own: Replayed, first: int) -> Replayed:
    """The same without the tokens before one of them."""
    return own if first == 0 else Replayed(*(None if c is None else c[first:] for c in _fields(own)))  # type: ignore[arg-type]


def joined(pieces: Sequence[Replayed]) -> Replayed:
    """Pieces of one answer, end to end."""
    if len(pieces) == 1:
        return pieces[0]
    states, *columns = zip(*map(_fields, pieces), strict=True)
    return Replayed(torch.cat(states), *(None if c[0] is None else np.concatenate(c) for c in columns))  # type: ignore[arg-type]


def _fields(own: Replayed) -> list[Any]:
    return [getattr(own, field.name) for field in fields(own)]


@torch.inference_mode()
def replay(
    policy: Policy,
    samples: Sequence[Rollout],
    keys: Sequence[NoiseKey] | None,
    temperature: float,
    budget: int,
    *,
    numeric: bool = False,
    only_logprobs: bool = False,
    states: StatesOf | None = None,
    noise: NoiseName = "philox4x64",
) -> list[Replayed]:
    """Replays answers in rows of up to `budget` tokens, or of one answer that is longer.

    `keys` holds what fixes each one's noise, of kind `noise`; None where sampling is free. Samples that share a prompt
    and stand side by side share its computation. `numeric` asks for what evidence in nats needs, `only_logprobs` for
    nothing but log-probs. `states` computes final states in the policy's place, whose head is used; unless it gives
    None.
    """
    found: dict[int, Replayed] = {}
    budget = max([budget, *(len(sample.prompt) + len(sample.completion) - 1 for sample in samples)])
    for batch in pack(list(_groups(samples)), budget):
        numbers = to_numpy(batch.number_S).tolist()
        given = None if states is None else states([samples[n] for n in numbers])
        if given is None:
            hidden_TD = policy.hidden(batch.ids_1T, batch.layout.positions_1T, batch.layout)[0]
            states_AD = hidden_TD.index_select(0, batch.source_A.to(policy.device))
        else:
            states_AD = _drawn_states([samples[n] for n in numbers], given).to(policy.device)
        bits = None
        if keys is not None and not only_logprobs:
            bits = _noise([(samples[n], keys[n]) for n in numbers], policy.vocab, noise)
        columns = _columns(
            policy, states_AD, batch.target_A, bits, temperature, numeric, free=keys is None and not only_logprobs
        )
        ends = np.cumsum([0, *to_numpy(batch.drawn_S).tolist()])
        for number, (begin, end) in zip(numbers, pairwise(ends.tolist()), strict=True):
            logp, *others = (None if column is None else column[begin:end] for column in columns)
            assert logp is not None
            found[number] = Replayed(states_AD[begin:end], logp, *others)
    return [found[number] for number in range(len(samples))]


def proven_chunks(states_TD: Tensor, proof: bytes, turns: Sequence[tuple[int, int]]) -> Iterator[toploc.ChunkResult]:
    """Every chunk of an answer's proof beside its states, which are those of drawn tokens; the chunks of a turn begin
    with it."""
    begin = proven = 0
    for first, last in turns:
        turn_TD = states_TD[begin : begin + last - first].bfloat16()
        # A proof of one turn is looked at as it is: how long it must be is another check's concern.
        size = toploc.proof_size(last - first, turn_TD.shape[1]) if len(turns) > 1 else len(proof)
        yield from toploc.verify(turn_TD, proof[proven : proven + size])
        begin, proven = begin + last - first, proven + size


def _drawn_states(samples: Sequence[Rollout], states: Sequence[Tensor]) -> Tensor:
    """The states that drawn tokens were drawn from, out of those of all tokens."""
    places = [drawn_places(sample.runs, len(sample.completion)) for sample in samples]
    found = zip(states, places, strict=True)
    return torch.cat([states_TD[torch.from_numpy(own).to(states_TD.device)] for states_TD, own in found])


def _groups(samples: Sequence[Rollout]) -> Iterator[Group]:
    for _, same in groupby(samples, key=lambda sample: sample.prompt.tobytes()):
        answers = list(same)
        yield Group(answers[0].prompt, answers, [0.0] * len(answers), 0)


def _noise(keys: Sequence[tuple[Rollout, NoiseKey]], vocab: int, kind: NoiseName) -> Iterator[Words]:
    """The noise of every drawn token, answer after answer. Its position is its place in the answer, so that what an
    environment inserts takes positions too."""
    for sample, (seed, number, *later) in keys:
        begun = [(0, seed), *(later[0] if later else ())]
        ends = [*(first for first, _ in begun[1:]), len(sample.completion)]
        for (first, own), end in zip(begun, ends, strict=True):
            for begin, stop in ((max(first, a), min(end, b)) for a, b in sample.turns):
                if begin < stop:
                    stream = open_noise(kind, own, number, vocab, len(sample.prompt) + begin, begin)
                    for _ in range(begin, stop):
                        yield stream.next()


def logprobs(policy: Policy, samples: Sequence[Rollout], temperature: float, budget: int) -> list[Floats]:
    """Log-probs of answers under the policy's weights, and nothing else."""
    return [own.logprobs_T for own in replay(policy, samples, None, temperature, budget, only_logprobs=True)]


def numeric_columns(sums: VocabularySums) -> tuple[Floats, Floats]:
    """The sums of p^2 over the vocabulary, and log-probs at each of WARMER times the temperature."""
    own_R = sums.logits()
    norm_R, twice_R, *others = sums.log_sums().T
    warmer_RW = np.stack([own_R * power - log_R for power, log_R in zip(NUMERIC[2:], others, strict=True)], axis=1)
    return np.exp(twice_R - 2 * norm_R), warmer_RW


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
    tokens, a few hundred rows at a time."""
    # Free draws need all logits of a row at once.
    most, width = (MAX_LOGITS, policy.vocab) if free else (MAX_NOISE, BLOCK)
    rows = max(1, most // policy.vocab)
    lists: list[list[Floats]] = [[] for _ in range(7)]
    logp, below, tilts, tails, ending, squares, warmer = lists
    for states_RD, tokens_R in zip(torch.split(states_AD, rows), torch.split(tokens_A, rows), strict=True):
        noise = [next(bits) for _ in range(len(tokens_R))] if bits is not None else None
        sums = VocabularySums(tokens_R, NUMERIC if numeric else (1.0,), noise)
        for first in range(0, policy.vocab, width):
            scaled_RB = policy.head(states_RD, slice(first, first + width)).float().div_(temperature)
            sums.add(scaled_RB, first)
        logp.append(sums.logprobs())
        if numeric:
            squares_R, warmer_RW = numeric_columns(sums)
            squares.append(squares_R)
            warmer.append(warmer_RW)
        if (shortfalls_R := sums.shortfalls()) is not None:
            below.append(shortfalls_R)
        if free:
            logp_RV = scaled_RB.to(sums_dtype(scaled_RB.device))
            logp_RV -= torch.from_numpy(sums.log_sums()[:, :1]).to(logp_RV.device, logp_RV.dtype)
            for column, found in zip((tilts, tails, ending), _free_columns(policy, logp_RV), strict=True):
                column.append(found)
    return tuple(np.concatenate(column) if column else None for column in lists)


def _free_columns(policy: Policy, logp_RV: Tensor) -> tuple[Floats, Floats, Floats]:
    """Tilts, tails and end probabilities of some rows of log-probs."""
    p_RV, ends = logp_RV.exp(), [token for token in policy.eos_ids if token < policy.vocab]
    tilts_RL = torch.stack([torch.logsumexp((1 + s) * logp_RV, dim=1) for s in TILTS], dim=1)
    tails_RU = torch.stack([p_RV.where(logp_RV < math.log(u), 0.0).sum(1) for u in UNLIKELY], dim=1)
    return to_numpy(tilts_RL), to_numpy(tails_RU), to_numpy(p_RV[:, ends].sum(1))
