"""What validation of an average file costs beside its generation, measured on one file.

SmolLM2-135M, 2 groups of 16 answers of 256 tokens, one thread, CPU time of this process and of its children. The file
is generated once, read once, and computed again whole and by spot checks that the audits draw: by thresholds as in
float32 runs, and by the numeric judge as in bfloat16 runs, with what other weights and measuring noise add. Noise is
measured once per version, and its cost is shared by the files of a step.
"""

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.common.configs import changed
from benchmarks.common.progress import Progress
from benchmarks.validation.attack_testbed import ROOT, Recorded, Testbed
from benchmarks.validation.validation_cost import cpu_s
from shoal.config import AuditConfig, RunConfig
from shoal.errors import BenchError
from shoal.generate.engine import TorchEngine
from shoal.generate.submission_builder import Maker
from shoal.models.base import base_model_dir
from shoal.models.load import load_as
from shoal.protocol.submission import Submission, read_rollouts
from shoal.rundir import limits_of
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer
from shoal.validate.audit import Audits
from shoal.validate.calibrate.thresholds import threads
from shoal.validate.checks.all_checks import Checks
from shoal.validate.numerics.alternatives import ROUNDED
from shoal.validate.numerics.judge import VOID_NATS

# Spot checks that are averaged over.
SPOTS = 3
T = TypeVar("T")


def measure_file_cost(config: RunConfig, progress: Progress) -> tuple[dict[str, float], dict[str, float]]:
    """Ratios to the generation of the file, and seconds of CPU; `config` is a bfloat16 one."""
    policy = replace(load_as(base_model_dir(config), "bfloat16", "float32"), eos_ids=frozenset())
    tasks, audit, temperature = build_source(config.tasks), config.audit, config.sampling.temperature
    engine = TorchEngine(policy, max_batch=config.workers.max_batch, max_len=config.max_len, temperature=temperature)
    with tempfile.TemporaryDirectory(prefix="shoal-cost-") as scratch, Scorer(config.tasks) as judge, threads(1):
        testbed = Testbed(config, policy, engine, tasks, judge, Path(scratch), {})
        (lease,) = testbed.leases(1)
        requests = testbed.requests([lease])
        maker = Maker(config, policy, engine, tasks, judge)
        # First calls are slow: they compile, and take memory.
        list(engine.generate([replace(request, max_new_tokens=2) for request in requests], hidden=True))
        progress.stage(f"cost: generating {len(requests)} answers")
        generating, answers = timed(lambda: maker.answer(requests))
        (file,) = testbed.files(Maker, [lease], Recorded(requests, answers))  # starts the scorer, too
        path = Path(scratch) / "cost.parquet"
        path.write_bytes(file.data)
        limits = limits_of(config, policy.vocab)
        read_rollouts(path, lease, limits)  # starts the reader
        wide = Checks(changed(config, {"model.dtype": "float32"}), policy, tasks, judge, lambda _: ROOT)
        rounding = Checks(config, policy, tasks, judge, lambda _: ROOT)
        progress.stage("cost: judging")
        reading, submission = timed(lambda: read_rollouts(path, lease, limits))
        checking, finding = timed(lambda: wide.cheap(submission))
        numbers = rounding.numbers
        assert numbers is not None
        measuring, _ = timed(lambda: numbers.measure(submission.weights, rounding._prompts))

        lengths = [len(sample.completion) for sample in submission.rollouts]
        draws = [Audits(AuditConfig(), bytes([n]) * 32).spot("cost", lengths) for n in range(SPOTS)]
        spots = [replace(submission, rollouts=[submission.rollouts[n] for n in some]) for some in draws]

        def judged(of: Submission) -> None:
            (found,) = wide.costly([of])
            if found or finding:
                raise BenchError(f"cost: an honest file was rejected: {found or finding}")

        def weighed(of: Submission, *others: str) -> None:
            if (nats := rounding.weigh(of, others).total) >= VOID_NATS:
                raise BenchError(f"cost: there are {nats:.1f} nats of evidence against an honest file")

        other = next(iter(ROUNDED))
        costs = {
            "float32": [timed(partial(judged, of))[0] for of in (submission, *spots)],
            "bfloat16": [timed(partial(weighed, of))[0] for of in (submission, *spots)],
            "compared": [timed(partial(weighed, of, other))[0] for of in (submission, *spots)],
        }
    average = {
        name: audit.rate * whole + (1 - audit.rate) * statistics.mean(some) for name, (whole, *some) in costs.items()
    }
    files_per_version = config.train.groups_per_step / config.workers.groups_per_submission
    numeric = (1 - audit.shift_rate) * average["bfloat16"] + audit.shift_rate * average["compared"]
    ratios = {
        "validation_vs_generation_cpu": (reading + checking + numeric + measuring / files_per_version) / generating,
        "validation_vs_generation_cpu_float32": (reading + checking + average["float32"]) / generating,
        "whole_audit_vs_generation_cpu": costs["bfloat16"][0] / generating,
        "whole_audit_vs_generation_cpu_float32": costs["float32"][0] / generating,
        "noise_vs_generation_cpu": measuring / files_per_version / generating,
    }
    values = {"generation_cpu_s": generating, "noise_cpu_s": measuring, "read_cpu_s": reading + checking}
    values |= {f"whole_cpu_s.{name}": whole for name, (whole, *_) in costs.items()}
    values |= {f"spot_cpu_s.{name}": statistics.mean(some) for name, (_, *some) in costs.items()}
    return ratios, values


def timed(work: Callable[[], T]) -> tuple[float, T]:
    began = cpu_s()
    found = work()
    return cpu_s() - began, found
