"""What a swarm costs: the same training with roles that share directories, and with roles that meet over the network.

With directories trainer, validator and worker read and write the run's own folders, and nothing else runs. With the
swarm the same three talk to a coordinator, and versions go through an origin and a relay: six processes instead of
three on the same cores. Both have one honest worker, the same base model, seed and number of steps and groups. Sides
take turns, the one that begins a round ends the next, and the best run of each counts. The clock runs as in `shoal
bench async`, from when worker and trainer are both up to the end of the last step.
"""

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common.configs import base_model, changed, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import Figure
from benchmarks.common.roles import Roles, SwarmRoles
from benchmarks.training.asynchrony import outcome
from shoal.config import RunConfig
from shoal.rundir import prepare_run
from shoal.telemetry.metrics import read_metrics

SIDES: dict[str, type[Roles]] = {"directories": Roles, "swarm": SwarmRoles}
TASK = {
    "source": "reasoning-gym/spell_backward",
    "options": {"min_word_len": 3, "max_word_len": 8},
    # With partial credit next to every group has signal: both sides sample the same number of groups.
    "binary": False,
}
SETTINGS: dict[str, Any] = {"name": "bench-swarm", "tasks": [TASK], "workers.count": 1}


def wall_ratio(quick: bool, progress: Progress) -> tuple[float, dict[str, Figure]]:
    """Wall time with the swarm to that with directories, and the seconds of both."""
    steps, rounds = (3, 1) if quick else (40, 3)
    base = base_model(laptop_config(), progress)
    config = changed(laptop_config(), {**SETTINGS, "steps": steps, "model.source": str(base)})
    walls: dict[str, list[float]] = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory(prefix="shoal-bench-swarm-") as scratch:
        for i in range(rounds):
            for name in list(SIDES) if i % 2 == 0 else list(SIDES)[::-1]:
                progress.stage(f"training with {name}, round {i + 1} of {rounds}")
                walls[name].append(_wall(SIDES[name], config, Path(scratch) / f"{name}-{i}", progress))
    best = {name: min(found) for name, found in walls.items()}
    return best["swarm"] / best["directories"], {f"wall_{name}_s": seconds for name, seconds in best.items()}


def _wall(kind: type[Roles], config: RunConfig, path: Path, progress: Progress) -> float:
    run = prepare_run(config, path, progress.console)
    with kind(run) as roles:
        steps = roles.steps(config.steps, progress.detail)
    worker = read_metrics(run.path / "metrics" / "worker-0.jsonl")
    return outcome(steps, [entry for entry in worker if entry["event"] == "submission"]).wall_s
