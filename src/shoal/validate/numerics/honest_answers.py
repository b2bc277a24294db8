"""Answers as a machine of any kind would claim them, without generating them again for each kind.

A text is drawn once, in float32. At each of its places the machine in question picks the token that *its* logits and
the lease's noise yield, and claims that token's log-prob and state. What comes before the place is the drawn text for
all machines, so one forward pass yields all claims; as a draw it is as good as the machine's own would be.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from shoal import toploc
from shoal.config import RunConfig
from shoal.devices import to_numpy
from shoal.generate.engine import Request
from shoal.generate.sampling import NoiseStream, Words, choose
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy
from shoal.validate.numerics.alternatives import COOLER, WARMER
from shoal.validate.numerics.bets import Floats, Observed
from shoal.validate.numerics.observe import observe
from shoal.validate.numerics.ways import WAYS, Way, logits_of, states_of
from shoal.validate.recompute import NUMERIC, numeric_columns
from shoal.validate.vocabulary_sums import VocabularySums

EXACT = WAYS["float32"]
# Logits of a portion of texts: 256 MB.
MAX_LOGITS = 1 << 26


@dataclass(frozen=True, slots=True)
class Drawn:
    """A text: its prompt, its tokens, and the key of the noise that they were drawn with."""

    prompt: list[int]
    tokens: list[int]
    key: tuple[int, int]
    states_TD: Tensor | None = None
    """The states that its tokens were drawn from; None if nobody kept them."""

    @property
    def read(self) -> list[int]:
        """What a model reads of it: the last token predicts nothing."""
        return [*self.prompt, *self.tokens[:-1]]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a machine says of one text: the tokens that it picks, their log-probs, and its proof."""

    tokens_T: Tensor
    logprobs_T: Tensor
    proof: bytes


def draw_texts(
    policy: Policy, config: RunConfig, prompts: Sequence[Sequence[int]], count: int, tokens: int, seed: int = 0
) -> list[Drawn]:
    """Answers of the policy to the prompts, in turn, each of up to so many tokens."""
    requests = [Request(tuple(prompts[n % len(prompts)]), seed, n, tokens) for n in range(count)]
    longest = max(len(prompt) for prompt in prompts) + tokens
    temperature = config.sampling.temperature
    engine = TorchEngine(policy, max_batch=min(count, 64), max_len=longest, temperature=temperature, proofs=False)
    answers = sorted(engine.generate(requests, hidden=True), key=lambda answer: answer.key)
    return [
        Drawn(list(request.prompt), answer.tokens, (request.seed, request.sample), answer.hidden_TD)
        for request, answer in zip(requests, answers, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Computed:
    """What a machine computes on some texts: the states that tokens are drawn from, and logits over temperature."""

    states: list[Tensor]
    scaled: list[Tensor]


Machine = Callable[[Sequence[Drawn], float], Computed]
"""Computes texts at a temperature."""


def blocks(texts: Sequence[Drawn], vocab: int) -> Iterator[list[Drawn]]:
    """Texts in portions whose logits fit into memory several times."""
    found: list[Drawn] = []
    for text in texts:
        if found and sum(len(each.tokens) for each in [*found, text]) * vocab > MAX_LOGITS:
            yield found
            found = []
        found.append(text)
    if found:
        yield found


def computed(policy: Policy, way: Way, texts: Sequence[Drawn], temperature: float) -> Computed:
    """What a machine computes in this way, with the weights that are loaded, at this temperature."""
    states = states_of(policy, way, [text.read for text in texts])
    states = [states_TD[len(text.prompt) - 1 :] for text, states_TD in zip(texts, states, strict=True)]
    return _with_logits(policy, way, states, temperature)


def as_drawn(policy: Policy, texts: Sequence[Drawn], temperature: float) -> Computed:
    """What is true of texts that the loaded weights drew in float32: their states are known if somebody kept them."""
    known = [text.states_TD for text in texts if text.states_TD is not None]
    if len(known) < len(texts):
        return computed(policy, EXACT, texts, temperature)
    return _with_logits(policy, EXACT, known, temperature)


def _with_logits(policy: Policy, way: Way, states: list[Tensor], temperature: float) -> Computed:
    scaled = [logits_of(policy, way, states_TD).float().div(temperature).contiguous() for states_TD in states]
    return Computed(states, scaled)


def noise_of(texts: Sequence[Drawn], vocab: int) -> list[list[Words]]:
    """The noise that each text's tokens were drawn with."""
    streams = [NoiseStream(*text.key, vocab) for text in texts]
    return [[stream.next() for _ in text.tokens] for stream, text in zip(streams, texts, strict=True)]


def picked(own: Computed, noise: Sequence[Sequence[Words]]) -> list[Claim]:
    """What a machine claims that computed this."""
    found = []
    for states_TD, scaled_TV, bits in zip(own.states, own.scaled, noise, strict=True):
        tokens_T, logprobs_T = choose(scaled_TV, bits)
        found.append(Claim(tokens_T, logprobs_T, toploc.build(states_TD.bfloat16())))
    return found


def beside(
    truth: Computed, claimed: Sequence[Claim], noise: Sequence[Sequence[Words]], others: Mapping[str, Computed]
) -> list[Observed]:
    """Claims beside the truth and beside other computations, by name, as a judge sees them."""
    found = []
    for number, claim in enumerate(claimed):
        sums = VocabularySums(claim.tokens_T, NUMERIC, noise[number])
        sums.add(truth.scaled[number])
        squares_T, warmer_TW = numeric_columns(sums)
        shortfalls_T = sums.shortfalls()
        assert shortfalls_T is not None
        shifts = {name: _logprobs(other.scaled[number], claim.tokens_T) for name, other in others.items()}
        found.append(
            observe(
                to_numpy(claim.logprobs_T).astype(np.float64),
                sums.logprobs(),
                squares_T,
                shortfalls_T,
                truth.states[number],
                claim.proof,
                dict(zip((COOLER, WARMER), warmer_TW.T, strict=True)) | shifts,
            )
        )
    return found


def honest_answers(policy: Policy, way: Way, texts: Sequence[Drawn], temperature: float) -> list[Observed]:
    """What a judge sees of a machine that computes the loaded weights in this way."""
    return machine_answers(policy, partial(computed, policy, way), texts, temperature)


def machine_answers(policy: Policy, machine: Machine, texts: Sequence[Drawn], temperature: float) -> list[Observed]:
    """What a judge with this policy sees of a machine."""
    found = []
    for block in blocks(texts, policy.vocab):
        noise = noise_of(block, policy.vocab)
        claimed = picked(machine(block, temperature), noise)
        found += beside(as_drawn(policy, block, temperature), claimed, noise, {})
    return found


def _logprobs(scaled_TV: Tensor, tokens_T: Tensor) -> Floats:
    sums = VocabularySums(tokens_T)
    sums.add(scaled_TV)
    return sums.logprobs()
