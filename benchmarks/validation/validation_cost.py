"""What validation costs beside generation: CPU time of this process and of those that score and read for it.

One file of SmolLM2-135M, whose answers all reach the length limit. The worker's engine generates it with one thread, as
by default; the validator reads it, runs the cheap checks and computes some of it again, then all of it.
"""

import random
from dataclasses import dataclass, replace

from benchmarks.common.configs import changed
from benchmarks.validation.made_file import made_file, timed
from shoal.config import RunConfig
from shoal.errors import BenchError
from shoal.generate.engine import Completion
from shoal.generate.proof_builder import ProofBuilder
from shoal.models.base import base_model_dir
from shoal.models.load import load
from shoal.validate.audit import spot_draws

# Spot checks that are averaged over.
SPOTS = 4


@dataclass(frozen=True, slots=True)
class ValidationCost:
    """Seconds of CPU that one group costs its worker and its validator."""

    tokens: int
    generating: float
    proving: float
    reading: float
    """Reading it and its cheap checks, which are never left out."""
    spotting: float
    """Its part of its file's spot check: answers of one length are drawn from all groups alike."""
    computing: float
    """All of it again."""

    def validating(self, rate: float) -> float:
        """On average, where so many files are computed again whole and the others have a spot check."""
        return self.reading + rate * self.computing + (1 - rate) * self.spotting


def measure_cost(config: RunConfig, samples: int, batch: int) -> ValidationCost:
    """One group of `samples` answers, generated up to `batch` side by side, as one of the config's groups per file."""
    groups = config.workers.groups_per_submission
    spots_per_group = sum(spot_draws(config.audit, groups * samples)) / groups
    config = changed(config, {"sampling.group_size": samples, "workers.groups_per_submission": 1})
    with made_file(config, load(base_model_dir(config)), batch) as made:
        proving, _ = timed(lambda: [_proof_of(answer) for answer in made.answers])
        checks = made.checks(config)
        reading, (submission, finding) = timed(lambda: (submission := made.read(), checks.cheap(submission)))
        some = [replace(submission, rollouts=random.sample(submission.rollouts, 1)) for _ in range(SPOTS)]
        spotting, findings = timed(lambda: [found for spot in some for found in checks.costly([spot])])
        computing, found = timed(lambda: list(checks.costly([submission])))
        tokens, generating = sum(len(answer.tokens) for answer in made.answers), made.generating
    for rejected in (finding, *findings, *found):
        if rejected is not None:
            raise BenchError(f"validation cost: an honest file was rejected: {rejected}")
    return ValidationCost(tokens, generating, proving, reading, spotting / SPOTS * spots_per_group, computing)


def _proof_of(answer: Completion) -> bytes:
    """As the engine builds it, once more."""
    assert answer.hidden_TD is not None
    building = ProofBuilder()
    for state_D in answer.hidden_TD.bfloat16():
        building.add(state_D)
    return building.proof()
