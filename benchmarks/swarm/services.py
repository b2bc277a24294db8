"""The overhead of a swarm: CPU time of coordinator, origin and relay beside that of the roles that compute.

One training run with one honest worker, as `shoal run` starts it. CPU seconds are read after the first steps, when
everything is imported and compiled, and again after the last.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.configs import base_model, changed, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import Figure
from benchmarks.common.roles import Roles
from shoal.roles.supervisor import SERVICES
from shoal.rundir import prepare_run

TASK = {
    "source": "reasoning-gym/spell_backward",
    "options": {"min_word_len": 3, "max_word_len": 8},
    # With partial credit nearly every group has signal, so that a step takes one round of leases.
    "binary": False,
}
SETTINGS: dict[str, Any] = {"name": "bench-swarm", "tasks": [TASK], "workers.count": 1}


def services_share(quick: bool, progress: Progress) -> tuple[float, dict[str, Figure]]:
    """CPU seconds of the services per CPU second of the other roles, and what each role used per step."""
    first, rest = (1, 2) if quick else (5, 40)
    base = base_model(laptop_config(), progress)
    config = changed(laptop_config(), {**SETTINGS, "steps": first + rest + 1, "model.source": str(base)})
    with tempfile.TemporaryDirectory(prefix="shoal-bench-swarm-") as scratch:
        progress.stage("training through a swarm")
        with Roles(prepare_run(config, Path(scratch) / "run", progress.console)) as roles:
            roles.steps(first, progress.detail)
            before = roles.cpu()
            roles.steps(rest, progress.detail)
            used = {name: seconds - before[name] for name, seconds in roles.cpu().items()}
    return share_of_services(used), {f"cpu_s_per_step_{name}": seconds / rest for name, seconds in used.items()}


def share_of_services(used: Mapping[str, float]) -> float:
    services = sum(used[name] for name in SERVICES)
    return services / (sum(used.values()) - services)
