"""`python -m benchmarks sinks`: the wall time of a run whose sinks work, hang and fail, over that of one without any.

One run goes on all the time. Steps with three sinks (TensorBoard as it is, one that hangs at its first row, one that
raises and is started again) and steps with none take turns, so that whatever else the machine does meets both.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.configs import base_model, changed, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure
from benchmarks.common.roles import Roles
from shoal.errors import BenchError
from shoal.roles.sink_feeders import SinkFeeders
from shoal.rundir import RunDir, prepare_run
from tests.support.sink_runs import bad_package

SINKS: dict[str, Any] = {"log": {"tensorboard": {}, "wandb": {}, "trackio": {}}}


def bench_sinks(quick: bool, progress: Progress) -> BenchResult:
    blocks, per_block = (2, 2) if quick else (10, 8)
    took: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="shoal-bench-sinks-") as scratch:
        run = _run(Path(scratch), 3 + blocks * per_block + 1, progress)
        bad = bad_package(bad_package(Path(scratch) / "bad", "hangs"), "raises", "trackio")
        progress.stage("a run with sinks that work, hang and fail, and with none")
        with Roles(run) as roles:
            last = roles.steps(3, progress.detail)[-1]["time"]
            for block in range(blocks):
                with_sinks = block % 2 == 0
                with _sinks(run, bad, progress) if with_sinks else _nobody(progress) as said:
                    for entry in roles.steps(per_block, said):
                        took[with_sinks].append(entry["time"] - last)
                        last = entry["time"]
        written = sum(file.stat().st_size for file in (run.path / "sinks" / "tensorboard").glob("*tfevents*"))
    if not written:
        raise BenchError(
            "TensorBoard got nothing: pip install 'shoal-rl[tensorboard]', and see whether a step takes long"
        )
    watched, alone = median(took[True]), median(took[False])
    values: dict[str, Figure] = {"step_s_with_sinks": watched, "step_s_without": alone, "tensorboard_bytes": written}
    return BenchResult("sinks", {"wall_with_sinks": watched / alone}, values, {"wall_with_sinks": ("<=", 1.03)})


def _run(scratch: Path, steps: int, progress: Progress) -> RunDir:
    config = laptop_config()
    base = base_model(config, progress)
    changes = {"name": "bench-sinks", "steps": steps, "model.source": str(base), "workers.count": 1, **SINKS}
    return prepare_run(changed(config, changes), scratch / "run", progress.console)


@contextmanager
def _sinks(run: RunDir, bad: Path, progress: Progress) -> Iterator[Callable[[str], None]]:
    """The sinks of a run, as `shoal run` starts them; the function looks after them as it does."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(bad), before)))
    feeders = SinkFeeders(run)

    def said(text: str) -> None:
        progress.detail(text)
        for process in feeders.processes:
            process.look()

    try:
        for feeder in feeders.processes:
            feeder.start()
        yield said
    finally:
        feeders.finish()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextmanager
def _nobody(progress: Progress) -> Iterator[Callable[[str], None]]:
    yield progress.detail
