"""`python -m benchmarks page`: sizes and paint times of the pages, and the wall time of a run with 50 of them open.

One run goes on all the time, with its page's server beside it as `shoal run` starts it. Steps with 50 open pages and
steps with none take turns, so that whatever else the machine does meets both.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks import ROOT
from benchmarks.common.configs import base_model, changed, laptop_config
from benchmarks.common.cpu_usage import cpu_of
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure, Op
from benchmarks.common.roles import Roles
from benchmarks.page.paint import NODES, SAMPLES, STEPS, paints
from shoal.process import Child, free_ports, stop_all
from shoal.rundir import prepare_run
from tests.support.large_run import write_large_run
from tests.support.servers.running import await_port

PAGES = 50
START_S = 60.0
BARS: dict[str, tuple[Op, float]] = {
    "bytes_per_page": ("<=", 150_000),
    "run_paint_s": ("<=", 1.0),
    "swarm_paint_s": ("<=", 1.0),
    "rollouts_paint_s": ("<=", 1.5),
    "new_step_s": ("<=", 2.0),
    "wall_with_pages": ("<=", 1.03),
}


def bench_page(quick: bool, progress: Progress) -> BenchResult:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-page-") as scratch:
        progress.stage("pages of a large run in Chromium")
        values = _paints(Path(scratch), quick, progress)
        progress.stage(f"a run with {PAGES} open pages and with none")
        ratio, costs = _cost(Path(scratch), quick, progress)
    return BenchResult("page", {"wall_with_pages": ratio}, {**values, **costs}, BARS)


def _paints(scratch: Path, quick: bool, progress: Progress) -> dict[str, Figure]:
    steps, nodes, samples = (50, 200, 256) if quick else (STEPS, NODES, SAMPLES)
    run = write_large_run(scratch / "large", steps=steps, node_count=nodes, samples=samples)
    with _page_server(run) as (port, _):
        return paints(f"http://127.0.0.1:{port}", run, steps, 1 if quick else 5, progress)


def _cost(scratch: Path, quick: bool, progress: Progress) -> tuple[float, dict[str, Figure]]:
    """Median seconds per step with pages over those without, and CPU seconds of the page's server per step."""
    blocks, per_block = (2, 2) if quick else (10, 8)
    config = laptop_config()
    base = base_model(config, progress)
    steps = 3 + blocks * per_block + 1
    config = changed(config, {"name": "bench-page", "steps": steps, "model.source": str(base), "workers.count": 1})
    took: dict[bool, list[float]] = {True: [], False: []}
    used = 0.0
    run = prepare_run(config, scratch / "run", progress.console)
    with Roles(run) as roles, _page_server(run.path) as (port, server):
        last = roles.steps(3, progress.detail)[-1]["time"]
        for block in range(blocks):
            is_watched = block % 2 == 0
            with _viewers(port) if is_watched else _nobody():
                before = cpu_of([server.process.pid])[0]
                for entry in roles.steps(per_block, progress.detail):
                    took[is_watched].append(entry["time"] - last)
                    last = entry["time"]
                used += cpu_of([server.process.pid])[0] - before if is_watched else 0.0
    watched, alone = median(took[True]), median(took[False])
    return watched / alone, {
        "step_s_with_pages": watched,
        "step_s_without": alone,
        "page_cpu_s_per_step": used / len(took[True]),
        "open_pages": PAGES,
    }


@contextmanager
def _page_server(run: Path) -> Iterator[tuple[int, Child]]:
    (port,) = free_ports([0])
    server = Child("page", ["page", str(run), "--port", str(port)], 1, run / "logs" / "page.log", is_service=True)
    try:
        await_port(port, "shoal page", START_S)
        time.sleep(1.0)  # it reads the newest rollouts before anybody asks
        yield port, server
    finally:
        stop_all([server])


@contextmanager
def _viewers(port: int) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.page.viewers", str(port), str(PAGES)]
    viewers = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
    finally:
        viewers.terminate()
        viewers.wait()


@contextmanager
def _nobody() -> Iterator[None]:
    yield
