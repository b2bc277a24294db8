"""INTELLECT-2's own figures (arXiv:2505.07291) as inputs, and the five times that they should lead to.

Given by the paper: versions of 62 GB over links of 590 Mb/s, 256 prompts x 16 answers per step, async level 2, and 4.5
times as much compute for inference as for training. What it does not give is set once, here, and marked: `FITTED` was
chosen so that the five times come out, `ASSUMED` is what `shoal plan` assumes of any run of that size.
"""

from shoal.config import AuditConfig
from shoal.coordinator.policy import Terms
from shoal.simulate.inputs import Inputs, Machines, Services, Spread, Training
from shoal.simulate.report import Report

# Minutes.
BROADCAST, FIRST_FILE, FULL_BATCH, LONG_FULL_BATCH, TRAINING = 14.0, 10.0, 22.0, 29.0, 22.0
VERSION_BYTES = 62e9
LINK = 590e6 / 8
COMPUTE_RATIO = 4.5

# ASSUMED: two nodes of eight H100 train (configs/intellect2.toml), at 40 % of 989 TFLOP/s; six passes over each token
# (forward, backward as two, recomputed blocks, log-probs ahead and those of the reference).
TRAINER_GPUS, FLOPS, PARAMETERS, PASSES = 16, 989e12 * 0.4, 32.8e9, 6
# ASSUMED: a worker is two H100, for one does not hold the weights and a cache; both read weights and cache at 60 % of
# 3.35 TB/s, and the cache takes 256 kB per token.
WORKER_GPUS, BANDWIDTH, CACHE = 2, 3.35e12 * 0.6, 262_144
# ASSUMED: half of the groups have signal, as `shoal plan` has it; a file is 8 groups, the default.
SIGNAL, FILE_GROUPS = 0.5, 8
# ASSUMED: 48 answers side by side, which is what the cache of such a worker holds.
PLACES = 48
# FITTED: mean tokens of an answer, and of one with the long targets; seconds in which a version of 62 GB is hashed once
# more, read from the disk and loaded into the engine.
ANSWER, LONG_ANSWER, LOAD_S = 5000.0, 6300.0, 270.0


def paper_inputs(*, long: bool = False, steps: int = 14, seed: int = 0) -> Inputs:
    """The paper's run; `long` with its long length targets."""
    answer = LONG_ANSWER if long else ANSWER
    workers = round(COMPUTE_RATIO * TRAINER_GPUS / WORKER_GPUS)
    read = 2 * PARAMETERS + PLACES * answer / 2 * CACHE
    token_s = PASSES * 2 * PARAMETERS / (TRAINER_GPUS * FLOPS)
    return Inputs(
        name="intellect2, long targets" if long else "intellect2",
        terms=_terms(steps),
        group_size=16,
        answer=Spread(answer, 0.35, 31_744),
        target_sigma=0.35,
        file_token_bytes=16.0,
        machines=Machines(
            workers,
            PLACES,
            read / (WORKER_GPUS * BANDWIDTH),
            speed=Spread(1.0, 0.1),
            download=Spread(LINK),
            upload=Spread(LINK),
            load_s=LOAD_S,
            score_s=10.0,
        ),
        services=Services(
            relays=4, relay_rate=10e9 / 8, origin_rate=10e9 / 8, validators=16, judge_token_s=1.3e-4, verdict_s=2.0
        ),
        training=Training(0.0, token_s, VERSION_BYTES, VERSION_BYTES, publish_s=1.0),
        signal=SIGNAL,
        audit=AuditConfig(),
        seed=seed,
    )


def _terms(steps: int) -> Terms:
    needed = 256
    return Terms(
        run="paper",
        steps=steps,
        async_level=2,
        groups_per_step=needed,
        max_groups=16 * needed,
        online_filter=True,
        groups_per_submission=FILE_GROUPS,
        lease_s=240.0,
        group_tokens=16 * 31_744,
        trainer="trainer",
        validators=frozenset({"validator"}),
        quorum=1,
        seats=1,
        allow=None,
        probation=20,
        probation_files=4,
        leases=4,
        max_nodes=2000,
        max_upload=1 << 30,
        heartbeat_s=10.0,
        requests_per_s=20.0,
    )


def errors(usual: Report, long: Report) -> dict[str, float]:
    """How far each time is from the paper's, as a share of it."""
    found = {
        "broadcast": (usual.broadcast_s, BROADCAST),
        "first_file": (usual.first_file_s, FIRST_FILE),
        "full_batch": (usual.full_batch_s, FULL_BATCH),
        "long_full_batch": (long.full_batch_s, LONG_FULL_BATCH),
        "training": (usual.training_s, TRAINING),
    }
    return {f"{name}_error": abs(seconds / 60 / paper - 1) for name, (seconds, paper) in found.items()}
