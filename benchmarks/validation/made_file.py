"""One honest file of SmolLM2-135M whose validation is timed: generated with one thread, written, and ready to be read.

CPU time is that of this process and of those that score and read for it.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from benchmarks.common.cpu_usage import cpu_below
from benchmarks.validation.attack_testbed import ROOT, Recorded, Testbed
from shoal.config import RunConfig
from shoal.errors import BenchError
from shoal.generate.engine import Completion
from shoal.generate.submission_builder import Maker
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy
from shoal.protocol.lease import Lease
from shoal.protocol.submission import Submission, read_rollouts
from shoal.rundir import limits_of
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer
from shoal.validate.calibrate.thresholds import threads
from shoal.validate.checks.all_checks import Checks

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A file, and the CPU seconds that it took its worker."""

    testbed: Testbed
    maker: Maker
    lease: Lease
    answers: list[Completion]
    generating: float
    path: Path

    def read(self) -> Submission:
        return read_rollouts(self.path, self.lease, limits_of(self.testbed.config, self.testbed.policy.vocab))

    def checks(self, config: RunConfig) -> Checks:
        return Checks(config, self.testbed.policy, self.testbed.tasks, self.testbed.judge, lambda _: ROOT)


@contextmanager
def made_file(config: RunConfig, policy: Policy, batch: int) -> Iterator[MadeFile]:
    """A file whose answers all reach the length limit, generated up to `batch` side by side."""
    policy = replace(policy, eos_ids=frozenset())
    tasks, temperature = build_source(config.tasks), config.sampling.temperature
    engine = TorchEngine(policy, max_batch=batch, max_len=config.max_len, temperature=temperature)
    with tempfile.TemporaryDirectory(prefix="shoal-cost-") as scratch, Scorer(config.tasks) as judge, threads(1):
        testbed = Testbed(config, policy, engine, tasks, judge, Path(scratch), {})
        (lease,) = testbed.leases(1)
        requests = testbed.requests([lease])
        maker = Maker(config, policy, engine, tasks, judge)
        # First calls are slow: they compile, and take memory.
        list(engine.generate([replace(request, max_new_tokens=2) for request in requests]))
        generating, answers = timed(lambda: sorted(engine.generate(requests, hidden=True), key=lambda c: c.key))
        (file,) = testbed.files(Maker, [lease], Recorded(requests, answers))  # starts the scorer, too
        path = Path(scratch) / "cost.parquet"
        path.write_bytes(file.data)
        made = MadeFile(testbed, maker, lease, answers, generating, path)
        made.read()  # starts the reader
        yield made


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of some work, and what it returns."""
    began = cpu_s()
    found = work()
    return cpu_s() - began, found


def cpu_s() -> float:
    """CPU time of this process and of its children so far, ended or not."""
    try:
        return time.process_time() + cpu_below()
    except BenchError:  # no Linux: children that still run are left out
        times = os.times()
        return time.process_time() + times.children_user + times.children_system
