"""Answers as a machine of any kind would claim them, without generating them again for each kind.

A text is drawn once, in float32. At each of its places the machine in question picks the token that *its* logits and
the lease's noise yield, and claims that token's log-prob and state. What comes before the place is the drawn text for
all machines, so one forward pass yields all claims; as a draw it is as good as the machine's own would be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from shoal import toploc
from shoal.config import RunConfig
from shoal.generate.engine import Request, TorchEngine
from shoal.generate.sampling import NoiseStream, Words, choose, shortfalls
from shoal.models.load import Policy
from shoal.validate.numerics.alternatives import COOLER, WARMER
from shoal.validate.numerics.bets import Floats, Observed
from shoal.validate.numerics.observe import observe
from shoal.validate.numerics.ways import WAYS, Way, logits_of, states_of
from shoal.validate.recompute import numeric_columns

EXACT = WAYS["float32"]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A text: its prompt, its tokens, and the key of the noise that they were drawn with."""

    prompt: list[int]
    tokens: list[int]
    key: tuple[int, int]

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
    engine = TorchEngine(policy, max_batch=min(count, 64), max_len=longest, temperature=temperature)
    answers = sorted(engine.generate(requests), key=lambda answer: answer.index)
    return [Drawn(list(r.prompt), a.tokens, (r.seed, r.sample)) for r, a in zip(requests, answers, strict=True)]


def claims(policy: Policy, way: Way, texts: Sequence[Drawn], temperature: float) -> list[Claim]:
    """What a machine claims that computes in this way, with the weights that are loaded, at this temperature."""
    found = []
    for text, states_TD in zip(texts, _states(policy, way, texts), strict=True):
        scaled_TV = logits_of(policy, way, states_TD).float().div(temperature).contiguous()
        tokens_T, logprobs_T = choose(scaled_TV, _noise(text, policy.vocab))
        found.append(Claim(tokens_T, logprobs_T, toploc.build(states_TD.bfloat16())))
    return found


def compare(
    policy: Policy,
    texts: Sequence[Drawn],
    claimed: Sequence[Claim],
    temperature: float,
    others: Mapping[str, Sequence[Floats]],
) -> list[Observed]:
    """Claims beside the truth, which the weights that are loaded yield in float32; `others` are the claimed tokens'
    log-probs in other computations."""
    found = []
    for number, (text, states_TD) in enumerate(zip(texts, _states(policy, EXACT, texts), strict=True)):
        tokens_T = claimed[number].tokens_T
        scaled_TV = logits_of(policy, EXACT, states_TD).float().div(temperature).contiguous()
        logprobs_T, squares_T, warmer_TW = numeric_columns(scaled_TV, tokens_T)
        found.append(
            observe(
                claimed[number].logprobs_T.double().numpy(),
                logprobs_T,
                squares_T,
                shortfalls(scaled_TV, _noise(text, policy.vocab), tokens_T),
                states_TD,
                claimed[number].proof,
                dict(zip((COOLER, WARMER), warmer_TW.T, strict=True))
                | {name: columns[number] for name, columns in others.items()},
            )
        )
    return found


def _states(policy: Policy, way: Way, texts: Sequence[Drawn]) -> list[Tensor]:
    """States that the texts' tokens are drawn from."""
    states = states_of(policy, way, [text.read for text in texts])
    return [states_TD[len(text.prompt) - 1 :] for text, states_TD in zip(texts, states, strict=True)]


def _noise(text: Drawn, vocab: int) -> list[Words]:
    stream = NoiseStream(*text.key, vocab)
    return [stream.next() for _ in text.tokens]
