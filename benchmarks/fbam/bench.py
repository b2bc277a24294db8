"""`python -m benchmarks fbam`: the exact streaming gradient, recordings, and what integrators of each depth learn.

Bars on accuracy come from figures of others for the same tasks; those on the gradient from its algebra (error), from
the operations it needs (time: 4/3) and from what it keeps (memory: one state per chunk).
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.common.parts import Parts
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure, Op
from benchmarks.fbam.depth import measure_depth
from benchmarks.fbam.history import record_history
from benchmarks.fbam.streaming import measure_error, measure_memory, measure_time
from shoal.fbam import PUBLISHED, PUBLISHED_PARAMETERS, count_parameters
from shoal.fbam.recording import RecordOptions, read_recording, replays

BARS: dict[str, tuple[Op, float]] = {
    "gradient_error_float64": ("<=", 1e-10),
    "gradient_error_float32": ("<=", 1e-5),
    "memory_4096_vs_256": ("<=", 1.25),
    "full_memory_1024_vs_256": (">=", 3.0),
    "time_streamed_vs_full": ("<=", 1.5),
    "time_4096_vs_256": ("<=", 1.15),
    "parameters_off": ("<=", 0),
    "replay_equal": (">=", 1.0),
    "replay_kept": (">=", 0.8),
    "frjt_lstm_16": (">=", 0.95),
    "frjt_lstm_64": (">=", 0.95),
    "frjt_lstm_128": (">=", 0.95),
    "frjt_transformer_64": ("<=", 0.75),
    "frjt_transformer_128": ("<=", 0.75),
    "live_lstm_32": (">=", 0.95),
    "live_lstm_256": (">=", 0.90),
    "live_transformer_256": ("<=", 0.60),
    "live_scan_256": ("<=", 0.60),
    "s5_lstm_32": (">=", 0.95),
    "s5_lstm_128": (">=", 0.90),
    "s5_transformer_32": ("<=", 0.30),
    "critical_rises": (">=", 1),
    "critical_ratio": (">=", 8.0),
}
QUICK_CHANGES = 60


def bench_fbam(quick: bool, progress: Progress, out: Path | None = None) -> BenchResult:
    """All parts, the fast ones first; what is measured is kept in `out`."""
    parts, parameters = Parts(out), count_parameters(PUBLISHED)
    values: dict[str, Figure] = {
        "parameters_published": parameters,
        "parameters_off": abs(parameters - PUBLISHED_PARAMETERS),
    }
    for name in MEASURES:
        values |= measure_part(name, quick, parts, progress)
    return BenchResult("fbam", {}, values | measure_depth(quick, parts, progress), BARS)


def measure_part(name: str, quick: bool, parts: Parts, progress: Progress) -> Mapping[str, Figure]:
    """A part without trainings, from disk if it was measured before."""
    return parts.measured(name, {"quick": quick}, lambda: MEASURES[name](quick, progress))


def measure_replay(quick: bool, progress: Progress) -> dict[str, Figure]:
    """Records a history, reads the file back and replays every change."""
    progress.stage("recording a git history")
    options = RecordOptions(max_changes=QUICK_CHANGES) if quick else RecordOptions()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-fbam-") as scratch:
        source, file, _, report = record_history(Path(scratch), options)
        recording = read_recording(file)
    equal = sum(replays(change, recording.table) for change in recording.changes)
    return {
        "replay_equal": equal / len(recording.changes),
        "replay_kept": report.kept / report.eligible,
        "replay_changes": report.eligible,
        "replay_frames": recording.frames,
        "replay_source": source,
    }


MEASURES: dict[str, Callable[[bool, Progress], Mapping[str, Figure]]] = {
    "error": measure_error,
    "memory": measure_memory,
    "time": measure_time,
    "replay": measure_replay,
}
