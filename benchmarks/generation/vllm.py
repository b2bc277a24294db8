"""`python -m benchmarks vllm`: vLLM as a worker's engine, on SmolLM2-135M: same answers, accepted files, cheats, cost.

Runs with the interpreter that has vLLM (`make test-vllm` makes one: .venv-vllm/bin/python -m benchmarks vllm). The
cache is too small for all that is asked, prompts are read 64 tokens at a time, and prefixes are cached: preemption,
chunked prefill and cache hits are in every figure but that of cost.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.configs import base_model, changed, checkout_config, hardly_trained, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure
from benchmarks.generation import tail
from benchmarks.generation.vllm_attacks import caught_on
from benchmarks.generation.vllm_cost import PROMPT, measure_cost, prompt_of
from benchmarks.generation.vllm_engines import started, written
from benchmarks.validation.attack_testbed import Testbed, build_testbed
from benchmarks.validation.several_validators import measure_validators
from shoal.config import RunConfig
from shoal.errors import BenchError
from shoal.extras import require
from shoal.generate.engine import Engine, Request
from shoal.generate.torch_engine import TorchEngine
from shoal.generate.vllm.engine import VllmEngine
from shoal.models.load import load, load_as, outline
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    files: int
    agreement_files: int
    """At each temperature."""
    attack_files: int
    bf16_files: int
    cost_answers: int
    cost_tokens: int


FULL = Size(files=200, agreement_files=56, attack_files=10, bf16_files=10, cost_answers=32, cost_tokens=96)
QUICK = Size(files=3, agreement_files=2, attack_files=1, bf16_files=2, cost_answers=4, cost_tokens=8)


def bench_vllm(quick: bool, progress: Progress) -> BenchResult:
    """All figures of the engine."""
    require("vllm", "benchmark vllm", BenchError)
    size, threads = QUICK if quick else FULL, min(2, os.cpu_count() or 1)
    torch.set_num_threads(threads)
    config = changed(
        checkout_config("smollm2.toml"),
        {
            "sampling.group_size": 4,
            "sampling.max_new_tokens": 48,
            "sampling.temperature": 1.0,
            "workers.groups_per_submission": 1,
            "workers.threads": threads,
        },
    )
    folder = base_model(config, progress)
    ratios: dict[str, float] = {}
    values: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-vllm-") as scratch, Scorer(config.tasks) as judge:
        progress.stage("one training step, so that there are two versions")
        policy, tasks = load(folder), build_source(config.tasks)
        testbed = build_testbed(config, policy, tasks, judge, Path(scratch), 2 if quick else 16, 1e-6)
        version = written(Path(scratch) / "v1", policy, policy.weights())
        with started(version, config) as engine:
            _agreement(testbed, engine, size, values, progress)
            _files(testbed, engine, size, values, progress)
        _tell(values, progress)
        # Of two groups each: what an older version leaves of itself is little per answer.
        larger = replace(testbed, config=changed(config, {"workers.groups_per_submission": 2}))
        values |= caught_on(larger, config, size.attack_files, Path(scratch), version, progress)
        values |= _blamed(config, folder, size.bf16_files, Path(scratch), progress)
        _tell(values, progress)
    ratios["cost"] = measure_cost(folder, config, size.cost_answers, size.cost_tokens, values, progress)
    ratios["tail"] = _tail(folder, config, tail.QUICK if quick else tail.SIZE, values, progress)
    _tell({**values, **ratios}, progress)
    several, judged = measure_validators(quick, progress)
    ratios["validators_2_vs_1"], ratios["validators_on_own_cores"] = (
        several["validators_2_vs_1"],
        several["on_own_cores"],
    )
    values |= {f"validators_{name}": figure for name, figure in judged.items()}
    bars: dict[str, Any] = {
        "tokens": (">=", 10_000),
        "tokens_differ": ("<=", 0),
        "files": (">=", 200),
        "files_rejected": ("<=", 0),
        "preempted_and_resumed": (">=", 1),
        "bf16_blamed": ("<=", 0),
        "cost": ("<=", 1.10),
        "tail": (">=", 0.85),
        "validators_2_vs_1": (">=", 1.7),
        "validators_judged_twice": ("<=", 0),
    }
    bars |= {figure: (">=", 1.0) for figure in values if figure.startswith("caught.")}
    return BenchResult("vllm", ratios, values, bars)


def _tell(values: Mapping[str, Figure], progress: Progress) -> None:
    """Says what there is so far: the whole takes long."""
    progress.stage("so far: " + ", ".join(f"{name} {value}" for name, value in values.items()))


def tokens_that_differ(engine: Engine, own: Engine, requests: Sequence[Request]) -> tuple[int, int]:
    """Tokens of our engine, and at how many places the other one's are not the same."""
    found, expected = (sorted(e.generate(requests), key=lambda c: c.key) for e in (engine, own))
    total = differ = 0
    for one, other in zip(found, expected, strict=True):
        total += len(other.tokens)
        differ += sum(a != b for a, b in zip(one.tokens, other.tokens, strict=False))
        differ += abs(len(one.tokens) - len(other.tokens))
    return total, differ


def _agreement(testbed: Testbed, engine: VllmEngine, size: Size, values: dict[str, Figure], progress: Progress) -> None:
    config, tokens, differ = testbed.config, 0, 0
    for temperature in (0.6, 1.0):
        progress.stage(f"tokens at temperature {temperature}, against our engine")
        own = TorchEngine(
            testbed.policy, max_batch=config.workers.max_batch, max_len=config.max_len, temperature=temperature
        )
        engine.temperature = temperature
        requests = testbed.requests(testbed.leases(size.agreement_files, first=10_000, node=f"t{temperature}"))
        more, apart = tokens_that_differ(engine, own, requests)
        tokens, differ = tokens + more, differ + apart
    values["tokens"], values["tokens_differ"] = tokens, differ


def _files(testbed: Testbed, engine: VllmEngine, size: Size, values: dict[str, Figure], progress: Progress) -> None:
    progress.stage(f"{size.files} files through the float32 validator")
    engine.temperature = testbed.config.sampling.temperature
    leases = testbed.leases(size.files)
    _, files = testbed.honest(leases, engine, hidden=False)
    verdicts = testbed.judged(files)
    values["files"] = len(files)
    values["files_rejected"] = sum(bool(verdict) for verdict in verdicts)
    values["most_states_held_per_answer"], values["preempted_and_resumed"] = engine.counts()


def _tail(folder: Path, config: RunConfig, size: tail.TailSize, values: dict[str, Figure], progress: Progress) -> float:
    """Tokens per second with one long answer per lease over those without, on vLLM."""
    progress.stage("one long answer per lease")
    endless = replace(outline(folder), eos_ids=frozenset())
    room = {"max_batch": size.max_batch, "max_len": PROMPT + tail.TIMES * size.tokens, "kv_cache_gb": 1.0, "more": {}}
    with started(folder, config, policy=endless, **room) as engine:
        found = tail.measure_tail(engine, [prompt_of(number) for number in range(size.leases)], size)
    values |= {"tail_tokens_per_s": found.tailed, "tail_in_turns_tokens_per_s": found.in_turns}
    return found.ratio


def _blamed(config: RunConfig, folder: Path, files: int, scratch: Path, progress: Progress) -> dict[str, Figure]:
    """The tiny model on two devices, and SmolLM2, whose 9 heads do not split in two, on three."""
    small = changed(
        hardly_trained(laptop_config()),
        {"sampling.group_size": 8, "workers.groups_per_submission": 2, "workers.threads": 1, "workers.max_batch": 32},
    )
    two = _bf16(small, base_model(small, progress), 2, files, scratch, progress)
    three = _bf16(changed(config, {"workers.threads": 1}), folder, 3, files, scratch, progress)
    return {"bf16_files": two[0] + three[0], "bf16_blamed": two[1] + three[1]}


def _bf16(
    config: RunConfig, folder: Path, devices: int, files: int, scratch: Path, progress: Progress
) -> tuple[int, int]:
    """Files of bfloat16 weights, computed so on several devices, and how many the judge of such runs blames."""
    progress.stage(f"bfloat16 on {devices} devices, under the evidence rules")
    half = changed(config, {"model.dtype": "bfloat16", "workers.tensor_parallel": devices})
    policy = load(folder)
    rounded = {name: tensor.bfloat16() for name, tensor in policy.weights().items()}
    version = written(scratch / f"bf16-{devices}", policy, rounded)
    judged_by = load_as(version, "bfloat16", "float32")
    with (
        Scorer(half.tasks) as judge,
        started(version, half, held="bfloat16", dtype="bfloat16", tensor_parallel=devices) as engine,
    ):
        testbed = Testbed(half, judged_by, engine, build_source(half.tasks), judge, scratch, {})
        _, made = testbed.honest(testbed.leases(files), engine, hidden=False)
        return len(made), sum(map(bool, testbed.judged(made)))
