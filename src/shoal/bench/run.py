"""`shoal bench NAME`: finds the bench, runs it, prints what it found.

The result is all that goes to stdout; progress goes to stderr.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from shoal.bench.progress import Progress
from shoal.bench.result import BenchResult
from shoal.errors import BenchError

Bench = Callable[[bool, Progress], BenchResult]


def run_bench(name: str, json_: bool, quick: bool, console: Console) -> None:
    """Runs one bench; `quick` makes it short and its figures meaningless."""
    bench = find_bench(name)
    with _ends_tidily(), Progress(Console(stderr=True)) as progress:
        result = bench(quick, progress)
    if json_:
        console.out(result.to_json(), highlight=False)
    else:
        result.print(console)


@contextmanager
def _ends_tidily() -> Iterator[None]:
    """SIGTERM ends a bench as Ctrl-C does: its processes are stopped and its scratch directory is removed."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def find_bench(name: str) -> Bench:
    if name not in BENCHES:
        raise BenchError(f"bench {name}: there is none of that name; give one of {', '.join(BENCHES)}")
    return BENCHES[name]()


# Each is imported when it is asked for: they bring torch along.
def _engine() -> Bench:
    from shoal.bench.engine import bench_engine

    return bench_engine


def _loop() -> Bench:
    from shoal.bench.loop import bench_loop

    return bench_loop


def _async() -> Bench:
    from shoal.bench.asynchrony import bench_async

    return bench_async


def _toploc() -> Bench:
    from shoal.bench.toploc import bench_toploc

    return bench_toploc


def _attacks() -> Bench:
    from shoal.bench.attacks import bench_attacks

    return bench_attacks


def _delta() -> Bench:
    from shoal.bench.delta import bench_delta

    return bench_delta


def _broadcast() -> Bench:
    from shoal.bench.broadcast import bench_broadcast

    return bench_broadcast


def _swarm() -> Bench:
    from shoal.bench.swarm import bench_swarm

    return bench_swarm


def _ledger() -> Bench:
    from shoal.bench.ledger import bench_ledger

    return bench_ledger


def _eval() -> Bench:
    from shoal.bench.evaluation import bench_eval

    return bench_eval


def _filter() -> Bench:
    from shoal.bench.filtering import bench_filter

    return bench_filter


def _length() -> Bench:
    from shoal.bench.length import bench_length

    return bench_length


BENCHES: dict[str, Callable[[], Bench]] = {
    "engine": _engine,
    "loop": _loop,
    "async": _async,
    "toploc": _toploc,
    "attacks": _attacks,
    "delta": _delta,
    "broadcast": _broadcast,
    "swarm": _swarm,
    "ledger": _ledger,
    "eval": _eval,
    "filter": _filter,
    "length": _length,
}
