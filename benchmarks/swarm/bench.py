"""`python -m benchmarks swarm`: what a coordinator bears, and what a swarm costs beside directories.

`load.py` says how the load is made and what its figures mean, `wall.py` how the two runs are compared.
"""

from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Op
from benchmarks.swarm.load import load_figures
from benchmarks.swarm.wall import wall_ratio

BARS: dict[str, tuple[Op, float]] = {
    "wall_vs_directories": ("<=", 1.15),
    "errors": ("<=", 0),
    "errors_postgres": ("<=", 0),
    "heartbeat_p99_ms": ("<=", 250.0),
    "heartbeat_p99_ms_postgres": ("<=", 250.0),
}


def bench_swarm(quick: bool, progress: Progress) -> BenchResult:
    """Wall time of a run with a swarm to one with directories, and the load on both databases."""
    values = load_figures(quick, progress)
    ratio, seconds = wall_ratio(quick, progress)
    return BenchResult("swarm", {"wall_vs_directories": ratio}, {**values, **seconds}, BARS)
