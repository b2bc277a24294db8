"""Numeric judge of bfloat16 runs: recomputes answers in float32, and weighs what they are off by in nats.

The judge is its own referee: it computes in float32 on the version's bfloat16 weights, so nothing of what it finds is
its own rounding. What honest rounding would look like on these weights it measures itself, once per version, on answers
of its own to the run's tasks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from shoal import toploc
from shoal.config import RunConfig
from shoal.models.load import Policy
from shoal.protocol.numeric_evidence import meaning, standing
from shoal.protocol.rollout import Rollout
from shoal.protocol.verdict import NUMBERS, ROUNDING, Finding
from shoal.validate.numerics.account import BAN_NATS, Account, mean_of
from shoal.validate.numerics.alternative_names import shift_bet
from shoal.validate.numerics.alternatives import COOLER, OLDER, ROUNDED, SHIFTS, WARMER, Weights, with_weights
from shoal.validate.numerics.bets import Bets, Floats, Noise, Observed, bet_names
from shoal.validate.numerics.free_draws import FREE_BETS, Draws
from shoal.validate.numerics.honest_answers import Drawn, draw_texts, honest_answers
from shoal.validate.numerics.observe import observe, own_noise
from shoal.validate.numerics.ways import WAYS
from shoal.validate.recompute import NoiseKey, Replayed, StatesOf, logprobs, replay, since

# A file with more evidence than this is dropped, and nobody is blamed: at most 1 of 1,000 honest ones.
VOID_NATS = -float(np.log(1e-3))
# What a bet may win on states of another engine than the judge's before the judge computes the file, too. A file that
# is dropped or blamed for what it shows has a bet that wins more, and bets on honest files hardly ever do.
CONFIRM_NATS = 1.0
BETS = [*bet_names(SHIFTS), *FREE_BETS]
# A bet that needs more than the file and its version: an arbiter may not have the version before.
NOT_SHOWN = shift_bet(OLDER)
HONEST = "honest rounding"
# The rule by which a file is dropped that may show nothing by itself.
OF_NODE = f"files of a node are dropped from {BAN_NATS:.1f} nats against it on"
# What the judge answers itself per version, to measure noise: 256 tokens, in more answers if these are shorter. Gaps
# are within 16 % of those of many tokens in 98 of 100 draws of 256 tokens, and odds allow half as much again.
NOISE_ANSWERS, NOISE_TOKENS = 8, 32
MAX_NOISE_ANSWERS = 256


@dataclass(frozen=True, slots=True)
class Weighed:
    """Evidence against one file: what each bet has won on it."""

    nats: dict[str, float]
    tokens: int

    def __add__(self, other: "Weighed") -> "Weighed":
        """Evidence against two parts of a file that were computed with two versions. What a bet pays on the second is 1
        on average whatever the first was, so the product of both is, too."""
        names = self.nats | other.nats
        nats = {name: self.nats.get(name, 0.0) + other.nats.get(name, 0.0) for name in names}
        return Weighed(nats, self.tokens + other.tokens)

    def at_most(self, other: "Weighed") -> "Weighed":
        """The same file's evidence as far as a second computation shows it too. Each bet has won the smaller of two
        amounts, so it pays at most 1 on average if either computation is right."""
        return Weighed({name: min(nats, other.nats.get(name, 0.0)) for name, nats in self.nats.items()}, self.tokens)

    @property
    def most(self) -> float:
        """What the most successful bet has won."""
        return max(self.nats.values(), default=0.0)

    @property
    def total(self) -> float:
        return mean_of([self.nats.get(bet, 0.0) for bet in BETS])

    @property
    def shown(self) -> float:
        """What the file and its version show by themselves, to any judge."""
        return mean_of([0.0 if bet == NOT_SHOWN else self.nats.get(bet, 0.0) for bet in BETS])

    @property
    def strongest(self) -> str:
        return max(self.nats, key=lambda bet: self.nats[bet])


def finding_of(weighed: Weighed, node: Account | None = None) -> Finding | None:
    """What a file's evidence comes to: nothing, a file that is dropped without blame, or blame.

    Blame takes what no honest node ever has against it in its life, but for one in a million, and what this file shows
    by itself to any judge, so an arbiter who has only the file comes to the same. That it was made with the version
    before counts against file and node, but nobody is blamed: nothing is slashed for it.
    """
    rule = "numbers differ from those of a float32 recomputation as honest bfloat16 rounding makes them differ"
    against = f"; against its node: {standing(node.held_against, node.files, BAN_NATS)}" if node is not None else ""
    found = f"{weighed.total:.1f} nats of evidence in {weighed.tokens:,} tokens: {meaning(weighed.strongest)}{against}"
    is_over = node is not None and node.is_over
    if weighed.shown >= BAN_NATS and (node is None or is_over):
        where = "in a file and against its node" if node is not None else "in a file"
        return Finding(NUMBERS, f"{rule}; {BAN_NATS:.1f} nats {where} are blame", HONEST, found)
    if weighed.total >= VOID_NATS:
        return Finding(ROUNDING, f"{rule}; a file is dropped from {VOID_NATS:.1f} nats on", HONEST, found)
    if is_over:
        return Finding(ROUNDING, f"{rule}; {OF_NODE}", HONEST, found)
    return None


@dataclass(slots=True)
class NumericJudge:
    """Use it with the weights of the file's version in `policy`, which is float32; `measure` noise on them first."""

    config: RunConfig
    policy: Policy
    bets: Bets
    states: StatesOf | None = None
    """What computes states of files; the policy if None."""
    noise: Noise | None = field(default=None, init=False)
    _measured: dict[str, Noise] = field(default_factory=dict, init=False)

    def measure(self, root: str, prompts: Callable[[], Sequence[Sequence[int]]]) -> None:
        """Measures what honest rounding does on the weights that are loaded, whose root hash is this; once for each,
        though files of a step are made with several versions, and are judged in any order."""
        if root not in self._measured:
            found = own_noise(own_answers(self.policy, prompts(), self.config))
            for oldest in list(self._measured)[: -self.config.async_level - 1]:
                del self._measured[oldest]
            self._measured[root] = found
        self.noise = self._measured[root]

    def weigh(
        self,
        samples: Sequence[Rollout],
        keys: Sequence[NoiseKey],
        alternatives: Sequence[str],
        older: Weights | None,
        own: Weights | None = None,
        first: int = 0,
    ) -> Weighed:
        """Evidence against a file's answers from token `first` on, compared with these alternatives as well.

        `own` are the policy's weights in their files; without them, a copy is set aside while others are in place.
        """
        assert self.noise is not None
        known = [name for name in alternatives if name in ROUNDED or older is not None]
        others = {name: self._logprobs(name, samples, older, own) for name in known}
        answers = seen(self.policy, self.config, samples, keys, others, first, self.states)
        return Weighed(self.bets.nats(answers, self.noise), sum(sample.drawn_count - first for sample in samples))

    def _logprobs(
        self, name: str, samples: Sequence[Rollout], older: Weights | None, own: Weights | None
    ) -> list[Floats]:
        def change(parameter: str, weights: Tensor) -> Tensor:
            if name != OLDER:
                return ROUNDED[name](weights)
            assert older is not None
            return older[parameter]

        with with_weights(self.policy, change, name, own):
            return logprobs(self.policy, samples, self.config.sampling.temperature, self.config.audit.token_budget)


def seen(
    policy: Policy,
    config: RunConfig,
    samples: Sequence[Rollout],
    keys: Sequence[NoiseKey],
    others: Mapping[str, Sequence[Floats]],
    first: int = 0,
    states: StatesOf | None = None,
) -> list[Observed]:
    """Answers from token `first` on beside what the policy computes; `others` are their log-probs in other
    computations, by name."""
    sampling = config.sampling
    seeded = keys if sampling.mode == "seeded" else None
    budget, noise = config.audit.token_budget, sampling.noise
    replayed = replay(policy, samples, seeded, sampling.temperature, budget, numeric=True, states=states, noise=noise)
    found = []
    proven = toploc.proof_size(first, policy.hidden_size) if first else 0
    for number, (sample, whole) in enumerate(zip(samples, replayed, strict=True)):
        own = since(whole, first)
        assert own.squares_T is not None
        assert own.warmer_TW is not None
        # With free sampling no token is the best one, and none is bet on.
        none_T = np.zeros(len(own.logprobs_T))
        found.append(
            observe(
                sample.logprobs[first:].astype(np.float64),
                own.logprobs_T,
                own.squares_T,
                none_T if own.shortfalls_T is None else own.shortfalls_T,
                own.states_TD,
                sample.proof[proven:] if config.audit.proofs else None,
                dict(zip((COOLER, WARMER), own.warmer_TW.T, strict=True))
                | {name: columns[number][first:] for name, columns in others.items()},
                _draws(sample, own, policy.vocab),
                sample.turns if len(sample.runs) else None,
            )
        )
    return found


def _draws(sample: Rollout, own: Replayed, vocab: int) -> Draws | None:
    """What bets on free draws need of an answer; nothing where the noise is redrawn."""
    if own.tilts_TL is None or own.tails_TU is None or own.ends_T is None or own.squares_T is None:
        return None
    return Draws(own.logprobs_T, own.tilts_TL, own.squares_T, own.tails_TU, own.ends_T, sample.ended_at, vocab)


def own_answers(policy: Policy, prompts: Sequence[Sequence[int]], config: RunConfig) -> list[Observed]:
    """Answers of the judge's own, computed as bfloat16 hardware would and seen in float32."""
    new = min(NOISE_TOKENS, config.sampling.max_new_tokens)
    texts: list[Drawn] = []
    tokens, mean_length = 0, float(new)
    while tokens < NOISE_ANSWERS * NOISE_TOKENS and len(texts) < MAX_NOISE_ANSWERS:
        missing = math.ceil((NOISE_ANSWERS * NOISE_TOKENS - tokens) / mean_length)
        count = min(missing, MAX_NOISE_ANSWERS - len(texts))
        texts += draw_texts(policy, config, prompts, count, new, seed=len(texts))
        tokens = sum(len(text.tokens) for text in texts)
        mean_length = tokens / len(texts)
    return honest_answers(policy, WAYS["flash"], texts, config.sampling.temperature)
