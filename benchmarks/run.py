"""Registry of the benchmarks: finds one by its name, runs it and prints its result."""

import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult
from shoal.errors import BenchError

Run = Callable[[bool, Progress], BenchResult]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What it measures, and the function that does. Its module is imported only when it runs: most import torch."""

    summary: str
    module: str
    function: str
    has_parts: bool = False
    """It takes `out`, a directory in which finished parts are kept, and goes on from there."""

    def load(self) -> Run:
        run: Run = getattr(importlib.import_module(f"benchmarks.{self.module}"), self.function)
        return run


BENCHMARKS = {
    "engine": Benchmark(
        "tokens per second of our generation engine, against transformers `generate` and vLLM",
        "generation.engine",
        "bench_engine",
    ),
    "vllm": Benchmark(
        "vLLM as a worker's engine: agreement with our own, accepted files, attacks, cost of noise and proofs",
        "generation.vllm",
        "bench_vllm",
    ),
    "vllm-learns": Benchmark(
        "a run of SmolLM2 with one worker on our own engine and one on vLLM: what it learns, and whose files count",
        "generation.vllm_learns",
        "bench_vllm_learns",
    ),
    "loop": Benchmark(
        "samples per second of the whole training loop, against TRL's GRPOTrainer", "training.loop", "bench_loop"
    ),
    "async": Benchmark(
        "wall time and reward at async level 2, against the same run at level 0", "training.asynchrony", "bench_async"
    ),
    "toploc": Benchmark(
        "building and verifying proofs, against the published package toploc", "validation.toploc", "bench_toploc"
    ),
    "attacks": Benchmark(
        "cheaters and honest workers before the validator's checks, and what the checks cost",
        "validation.attacks",
        "bench_attacks",
    ),
    "validators": Benchmark(
        "files judged per second by two validators of a run, against one",
        "validation.several_validators",
        "bench_validators",
    ),
    "verification": Benchmark(
        "honest machines and cheats before the judge of bfloat16 runs: blame, and tokens until a ban",
        "validation.verification",
        "bench_verification",
    ),
    "economics": Benchmark(
        "what a rational cheater gains with the default config, and how much of a step its keys can fill",
        "validation.economics",
        "bench_economics",
    ),
    "delta": Benchmark(
        "size and speed of deltas between versions of a model, against full files and XOR + zstd",
        "weights.delta",
        "bench_delta",
    ),
    "sharding": Benchmark(
        "two ranks of a trainer against one process, versions in several files, packing, and a plan's memory",
        "training.sharding",
        "bench_sharding",
    ),
    "broadcast": Benchmark(
        "a file from an origin through a relay to clients, against shardcast and nginx",
        "weights.broadcast",
        "bench_broadcast",
    ),
    "swarm": Benchmark("a coordinator under the load of 1,000 simulated nodes", "swarm.bench", "bench_swarm"),
    "simulate": Benchmark(
        "the simulation: against the paper's times, against real runs on this machine, and 100,000 nodes",
        "simulate.bench",
        "bench_simulate",
    ),
    "sinks": Benchmark(
        "wall time of a run whose sinks work, hang and fail, against none",
        "page.sinks",
        "bench_sinks",
    ),
    "wheel": Benchmark(
        "from nothing but Python and the wheel to the first accepted file of a machine that joins",
        "client.wheel",
        "bench_wheel",
    ),
    "page": Benchmark(
        "web pages in Chromium: size, paint times, and what 50 open pages cost a run",
        "page.bench",
        "bench_page",
    ),
    "ledger": Benchmark("entering, verifying, settling on a chain, and the share of a run", "ledger", "bench_ledger"),
    "eval": Benchmark(
        "`shoal eval --suite`, against a plain loop around `generate`", "generation.evaluation", "bench_eval"
    ),
    "evals": Benchmark(
        "verdicts of the exams AIME, GPQA, IFEval and LiveCodeBench, against those of their reference scorers",
        "evals.bench",
        "bench_evals",
    ),
    "filter": Benchmark(
        "held-out reward with offline and online task filters, against none", "training.filtering", "bench_filter"
    ),
    "length": Benchmark(
        "answer lengths and task reward with length budgets, against none", "training.length", "bench_length"
    ),
    "turns": Benchmark(
        "episodes of several turns: honest and lying workers, slow tools, and a run that learns to use one",
        "turns.bench",
        "bench_turns",
        has_parts=True,
    ),
    "fbam": Benchmark(
        "action models: exact streaming gradient, recordings, and what integrators of each depth learn",
        "fbam.bench",
        "bench_fbam",
        has_parts=True,
    ),
    "fbam-length": Benchmark(
        "action models: loss against trained length on a git history, against truncated backpropagation",
        "fbam.length_law",
        "bench_length_law",
        has_parts=True,
    ),
}


def run_benchmark(name: str, json_: bool, quick: bool, console: Console, out: Path | None = None) -> None:
    """Runs one benchmark; `quick` makes it short and its figures meaningless."""
    run = find_benchmark(name)
    if out is not None:
        run = _keeping_parts(name, run, out)
    with _ends_tidily(), Progress(Console(stderr=True)) as progress:
        result = run(quick, progress)
    if json_:
        console.out(result.to_json(), highlight=False)
    else:
        result.print(console)


def find_benchmark(name: str) -> Run:
    if name not in BENCHMARKS:
        raise BenchError(f"benchmark {name}: unknown; give one of {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name].load()


def _keeping_parts(name: str, run: Callable[..., BenchResult], out: Path) -> Run:
    if not BENCHMARKS[name].has_parts:
        able = ", ".join(one for one, benchmark in BENCHMARKS.items() if benchmark.has_parts)
        raise BenchError(f"benchmark {name}: --out {out}: it has no parts to keep; only these have: {able}")
    return partial(run, out=out)


@contextmanager
def _ends_tidily() -> Iterator[None]:
    """SIGTERM ends a benchmark as Ctrl-C does: its processes are stopped and its scratch directory is removed."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
