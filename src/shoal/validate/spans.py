"""A file's spans, computed again: what each version drew is computed with that version, and put together again.

The tokens of a span are computed on a context that is the span's version's own, from the first token of the prompt on,
as a worker computes it after it has changed versions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shoal import toploc
from shoal.config import NoiseName
from shoal.models.load import Policy
from shoal.protocol.rollout import Rollout
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission
from shoal.validate.recompute import NoiseKey, Replayed, StatesOf, joined, replay, since

Load = Callable[[Version], None]
"""Makes a version the one that answers are computed with."""
Keys = Sequence[NoiseKey]


@dataclass(frozen=True, slots=True)
class Part:
    """What one version drew of a file."""

    version: Version
    first: int
    """The version's first token in every answer."""
    numbers: list[int]
    """The answers that have tokens of it."""
    samples: list[Rollout]
    """These, up to the version's last token."""


def parts_of(submission: Submission, hidden: int) -> list[Part]:
    """A file's answers, version by version; a version of which they have no token is left out."""
    parts = []
    for span in submission.spans:
        numbers = [n for n, sample in enumerate(submission.rollouts) if len(sample.completion) > span.first]
        if numbers:
            samples = [_until(submission.rollouts[n], span.end, hidden) for n in numbers]
            parts.append(Part(Version(span.version, span.weights), span.first, numbers, samples))
    return parts


def _until(sample: Rollout, end: int | None, hidden: int) -> Rollout:
    if end is None or len(sample.completion) <= end:
        return sample
    return replace(
        sample,
        completion=sample.completion[:end],
        logprobs=sample.logprobs[:end],
        proof=sample.proof[: toploc.proof_size(end, hidden)],
        finish="length",  # it goes on with the next version
    )


def replay_file(
    policy: Policy,
    submission: Submission,
    keys: Keys | None,
    temperature: float,
    budget: int,
    load: Load,
    states: StatesOf | None = None,
    noise: NoiseName = "philox4x64",
) -> list[Replayed]:
    """A file's answers as the versions compute them that it names; `states` and `noise` as in `replay`."""
    found: list[list[Replayed]] = [[] for _ in submission.rollouts]
    for part in parts_of(submission, policy.hidden_size):
        load(part.version)
        own_keys = None if keys is None else [keys[number] for number in part.numbers]
        replayed = replay(policy, part.samples, own_keys, temperature, budget, states=states, noise=noise)
        for number, own in zip(part.numbers, replayed, strict=True):
            found[number].append(since(own, part.first))
    return [joined(pieces) for pieces in found]
