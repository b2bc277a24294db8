"""What validation costs beside generation: CPU time of this process and of those that score and read for it.

One file of SmolLM2-135M, whose answers all reach the length limit. The worker's engine generates it with one thread, as
by default; the validator reads it, runs the cheap checks and computes some of it again, then all of it.
"""

import os
import random
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.common.configs import changed
from benchmarks.common.cpu_usage import cpu_below
from benchmarks.validation.attack_testbed import ROOT, Recorded, Testbed
from shoal.config import RunConfig
from shoal.errors import BenchError
from shoal.generate.engine import TorchEngine
from shoal.generate.submission_builder import Maker
from shoal.models.base import base_model_dir
from shoal.models.load import load
from shoal.protocol.submission import read_rollouts
from shoal.rundir import limits_of
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer
from shoal.validate.audit import spot_draws
from shoal.validate.calibrate.thresholds import threads
from shoal.validate.checks.all_checks import Checks

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
    policy = replace(load(base_model_dir(config)), eos_ids=frozenset())
    tasks = build_source(config.tasks)
    temperature = config.sampling.temperature
    engine = TorchEngine(policy, max_batch=batch, max_len=config.max_len, temperature=temperature)
    with tempfile.TemporaryDirectory(prefix="shoal-cost-") as scratch, Scorer(config.tasks) as judge, threads(1):
        testbed = Testbed(config, policy, engine, tasks, judge, Path(scratch), {})
        (lease,) = testbed.leases(1)
        requests = testbed.requests([lease])
        maker = Maker(config, policy, engine, tasks, judge)
        # First calls are slow: they compile, and take memory.
        for answer in engine.generate([replace(request, max_new_tokens=2) for request in requests], hidden=True):
            maker.prove(answer.hidden_TD)

        began = cpu_s()
        answers = maker.answer(requests)
        generating = cpu_s() - began
        began = cpu_s()
        for answer in answers:
            maker.prove(answer.hidden_TD)
        proving = cpu_s() - began

        (file,) = testbed.files(Maker, [lease], Recorded(requests, answers))  # starts the scorer, too
        path = Path(scratch) / "cost.parquet"
        path.write_bytes(file.data)
        checks = Checks(config, policy, tasks, judge, lambda _: ROOT)
        limits = limits_of(config, policy.vocab)
        read_rollouts(path, lease, limits)  # starts the reader
        began = cpu_s()
        submission = read_rollouts(path, lease, limits)
        findings = [checks.cheap(submission)]
        reading = cpu_s() - began
        began = cpu_s()
        for _ in range(SPOTS):
            findings += checks.costly([replace(submission, rollouts=random.sample(submission.rollouts, 1))])
        spotting = (cpu_s() - began) / SPOTS * spots_per_group
        began = cpu_s()
        findings += checks.costly([submission])
        computing = cpu_s() - began
    for finding in findings:
        if finding is not None:
            raise BenchError(f"validation cost: an honest file was rejected: {finding}")
    return ValidationCost(
        sum(len(answer.tokens) for answer in answers), generating, proving, reading, spotting, computing
    )


def cpu_s() -> float:
    """CPU time of this process and of its children so far, ended or not."""
    try:
        return time.process_time() + cpu_below()
    except BenchError:  # no Linux: children that still run are left out
        times = os.times()
        return time.process_time() + times.children_user + times.children_system
