"""What validation of an average file costs beside its generation, measured on one file.

SmolLM2-135M, 2 groups of 16 answers of 256 tokens, one thread, CPU time of this process and of its children. The file
is generated once, read once, and computed again whole and by spot checks that the audits draw: by thresholds as in
float32 runs, and by the numeric judge as in bfloat16 runs, with what other weights and measuring noise add. Noise is
measured once per version, and its cost is shared by the files of a step.
"""

import statistics
from dataclasses import replace
from functools import partial

from benchmarks.common.configs import changed
from benchmarks.common.progress import Progress
from benchmarks.validation.made_file import made_file, timed
from shoal.config import AuditConfig, RunConfig
from shoal.errors import BenchError
from shoal.models.base import base_model_dir
from shoal.models.load import load_as
from shoal.protocol.submission import Submission
from shoal.validate.audit import Audits
from shoal.validate.numerics.alternatives import ROUNDED
from shoal.validate.numerics.judge import VOID_NATS

# Spot checks that are averaged over.
SPOTS = 3


def measure_file_cost(config: RunConfig, progress: Progress) -> tuple[dict[str, float], dict[str, float]]:
    """Ratios to the generation of the file, and seconds of CPU; `config` is a bfloat16 one."""
    policy, audit = load_as(base_model_dir(config), "bfloat16", "float32"), config.audit
    progress.stage("cost: generating one file")
    with made_file(config, policy, config.workers.max_batch) as made:
        wide, rounding = made.checks(changed(config, {"model.dtype": "float32"})), made.checks(config)
        progress.stage("cost: judging")
        reading, (submission, finding) = timed(lambda: (submission := made.read(), wide.cheap(submission)))
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
    generating = made.generating
    average = {
        name: audit.rate * whole + (1 - audit.rate) * statistics.mean(some) for name, (whole, *some) in costs.items()
    }
    files_per_version = config.train.groups_per_step / config.workers.groups_per_submission
    numeric = (1 - audit.shift_rate) * average["bfloat16"] + audit.shift_rate * average["compared"]
    ratios = {
        "validation_vs_generation_cpu": (reading + numeric + measuring / files_per_version) / generating,
        "validation_vs_generation_cpu_float32": (reading + average["float32"]) / generating,
        "whole_audit_vs_generation_cpu": costs["bfloat16"][0] / generating,
        "whole_audit_vs_generation_cpu_float32": costs["float32"][0] / generating,
        "noise_vs_generation_cpu": measuring / files_per_version / generating,
    }
    values = {"generation_cpu_s": generating, "noise_cpu_s": measuring, "read_cpu_s": reading}
    values |= {f"whole_cpu_s.{name}": whole for name, (whole, *_) in costs.items()}
    values |= {f"spot_cpu_s.{name}": statistics.mean(some) for name, (_, *some) in costs.items()}
    return ratios, values
