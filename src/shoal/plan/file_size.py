"""Size of a rollout file: one is written with the run's own writer, of random answers, and its bytes are counted."""

import numpy as np

from shoal import toploc
from shoal.config import RunConfig
from shoal.plan.model_shape import ModelShape
from shoal.protocol.lease import Lease
from shoal.protocol.rollout import Rollout, Tokens
from shoal.protocol.submission import Submission, write_rollouts

# Answers are cut off after so many tokens of a file, and counted up: compression is the same from there on.
MAX_TOKENS = 1 << 16


def file_bytes(config: RunConfig, shape: ModelShape, prompt_tokens: float, answer_tokens: float) -> int:
    """Bytes of one submission whose prompts and answers have these lengths."""
    size, groups = config.sampling.group_size, config.workers.groups_per_submission
    prompt, answer = max(1, round(prompt_tokens)), max(1, round(answer_tokens))
    written = min(groups, max(1, MAX_TOKENS // (size * answer)))
    shown = min(size, max(1, MAX_TOKENS // answer))
    lease = Lease("plan", "worker-0", 0, 0, 0, written, 0, 0.0)
    rng = np.random.default_rng(0)
    one, two = (_bytes(lease, rng, count, shown, prompt, answer, shape) for count in (0, written))
    return one + round((two - one) * groups * size / (written * shown))


def _bytes(
    lease: Lease, rng: np.random.Generator, groups: int, size: int, prompt: int, answer: int, shape: ModelShape
) -> int:
    rollouts = []
    for group in range(groups):
        asked = _tokens(rng, prompt, shape.vocab)
        rollouts += [_rollout(rng, group, sample, asked, answer, shape) for sample in range(size)]
    return len(write_rollouts(Submission(lease, 0, "0" * 64, rollouts), groups))


def _rollout(
    rng: np.random.Generator, group: int, sample: int, prompt: Tokens, answer: int, shape: ModelShape
) -> Rollout:
    return Rollout(
        group=group,
        sample=sample,
        source="plan",
        task=int(rng.integers(1 << 20)),
        prompt=prompt,
        completion=_tokens(rng, answer, shape.vocab),
        logprobs=-rng.exponential(1.0, answer).astype(np.float32),
        finish="eos",
        reward=float(sample % 2),
        advantage=float(rng.normal()),
        error="",
        proof=rng.bytes(toploc.proof_size(answer, shape.hidden)),
    )


def _tokens(rng: np.random.Generator, count: int, vocab: int) -> Tokens:
    """Tokens as uneven as words are (Zipf's law): the r-th is drawn in proportion to 1 / r."""
    return (vocab ** rng.random(count)).astype(np.int32) - 1
