"""`python -m benchmarks swarm`: a coordinator under load, and the overhead of a swarm beside the work it organises.

`load.py` says how the load is made and what its figures mean, `services.py` how the overhead is measured.
"""

from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Op
from benchmarks.swarm.load import load_figures
from benchmarks.swarm.services import services_share

BARS: dict[str, tuple[Op, float]] = {
    "services_cpu_share": ("<=", 0.15),
    "errors": ("<=", 0),
    "errors_postgres": ("<=", 0),
    "heartbeat_p99_ms": ("<=", 250.0),
    "heartbeat_p99_ms_postgres": ("<=", 250.0),
}


def bench_swarm(quick: bool, progress: Progress) -> BenchResult:
    """The load on both databases, and CPU of coordinator, origin and relay per CPU of the other roles."""
    values = load_figures(quick, progress)
    share, seconds = services_share(quick, progress)
    return BenchResult("swarm", {"services_cpu_share": share}, {**values, **seconds}, BARS)
