"""Thresholds of float32 runs: how far honest workers differ from a validator, and what follows.

The same requests are answered in every way an honest worker may choose (our engine with few and many sequences side by
side, one thread and two, plain transformers) and computed again in every way a validator may (packed, one by one, one
thread and two). Every answer is compared with every recomputation; a threshold is the worst that was seen, times a
factor, and never below a floor.
"""

import math
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from shoal import toploc
from shoal.config import RunConfig, ThresholdsConfig
from shoal.config_io import check_config
from shoal.devices import set_threads
from shoal.generate.engine import Completion, Engine, Request
from shoal.generate.reference_engine import PlainEngine
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy
from shoal.protocol.rollout import bare_rollout
from shoal.validate.checks.sampling import surprise
from shoal.validate.numerics.calibration import Say
from shoal.validate.recompute import Replayed, replay

# Thresholds are the worst that was seen, times this: a calibration sees some thousand tokens on one machine, a run sees
# millions on many.
SAFETY = 3.0
# Evidence against fair draws has a known distribution: more than x nats come with a probability below e^-x.
SAFETY_SURPRISE = 2.0
# What a threshold never goes below: a calibration that sees no difference at all still leaves room for other machines.
FLOORS = ThresholdsConfig()
FILE_SAMPLES = 16
QUANTILES = (0.5, 0.99, 0.999, 1.0)
UNITS = {
    "shortfall": "nats, a token",
    "inexact_share": "tokens, a file",
    "logprob": "nats, a token",
    "exponents": "of 128, a chunk",
    "mantissa_mean": "last place, a chunk",
    "mantissa_median": "last place, a chunk",
    "surprise_sample": "nats, an answer",
    "surprise_file": "nats, a file",
}


@dataclass(slots=True)
class Measured:
    """Honest differences: a list for each threshold, an entry for each token, chunk, answer or file."""

    seen: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in UNITS})

    def quantiles(self, name: str) -> list[float]:
        return [float(q) for q in np.quantile(self.seen[name], QUANTILES)]

    def thresholds(self) -> ThresholdsConfig:
        worst = {name: self.quantiles(name)[-1] for name in UNITS}
        chosen: dict[str, float] = {}
        for name, value in worst.items():
            safety = SAFETY_SURPRISE if name.startswith("surprise") else SAFETY
            chosen[name] = max(_two_digits(safety * value), float(getattr(FLOORS, name)))
        exponents = min(128, math.ceil(chosen.pop("exponents")))
        share = min(1.0, chosen.pop("inexact_share"))
        return ThresholdsConfig(
            exponents=exponents, inexact_share=share, inexact_tokens=FLOORS.inexact_tokens, **chosen
        )


def _two_digits(value: float) -> float:
    """Rounded up to two significant digits."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit) * unit:.3g}")


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which an honest party may compute."""

    name: str
    threads: int


@dataclass(frozen=True, slots=True)
class Generation(Way):
    engine: Callable[[], Engine]


@dataclass(frozen=True, slots=True)
class Validation(Way):
    policy: Policy
    alone: bool
    """Every answer in a row of its own, instead of packed with others."""


def generations(policy: Policy, directory: Path, config: RunConfig) -> list[Generation]:
    """All ways to generate."""
    temperature, length = config.sampling.temperature, config.max_len

    def ours(batch: int) -> Callable[[], Engine]:
        return lambda: TorchEngine(policy, max_batch=batch, max_len=length, temperature=temperature)

    return [
        Generation("engine, batch 64", 1, ours(64)),
        Generation("engine, batch 1", 1, ours(1)),
        Generation("engine, batch 5", 2, ours(5)),
        Generation("transformers", 2, lambda: PlainEngine(directory, policy, "float32", temperature)),
    ]


def validations(policy: Policy) -> list[Validation]:
    return [Validation("packed", 2, policy, False), Validation("alone", 1, policy, True)]


def measure(
    policy: Policy,
    directory: Path,
    config: RunConfig,
    requests: Sequence[Request],
    say: Say,
) -> Measured:
    """Compares every generation with every validation."""
    found = Measured()
    ways, checks = generations(policy, directory, config), validations(policy)
    for number, way in enumerate(ways):
        say(number / len(ways), f"generating: {way.name}, {way.threads} threads")
        with threads(way.threads):
            answers = sorted(way.engine().generate(requests), key=lambda c: c.key)
        for share, check in enumerate(checks):
            say((number + (1 + share) / (1 + len(checks))) / len(ways), f"{way.name}; validating: {check.name}")
            with threads(check.threads):
                seeded = recompute(check, requests, answers, config, seeded=True)
                # Free sampling needs entropies; they hardly depend on how the answer was made.
                free = recompute(check, requests, answers, config, seeded=False) if number == 0 else None
            _compare(found, answers, seeded, free)
    return found


def recompute(
    way: Validation, requests: Sequence[Request], answers: Sequence[Completion], config: RunConfig, *, seeded: bool
) -> list[Replayed]:
    samples = [
        bare_rollout(request.prompt, answer.tokens, answer.logprobs, answer.finish)
        for request, answer in zip(requests, answers, strict=True)
    ]
    keys = [(request.seed, request.sample) for request in requests]
    temperature, budget = config.sampling.temperature, config.audit.token_budget
    if not way.alone:
        return replay(way.policy, samples, keys if seeded else None, temperature, budget)
    return [
        replay(way.policy, [sample], [key] if seeded else None, temperature, budget)[0]
        for sample, key in zip(samples, keys, strict=True)
    ]


def _compare(
    found: Measured, answers: Sequence[Completion], seeded: Sequence[Replayed], free: Sequence[Replayed] | None
) -> None:
    seen = found.seen
    for answer, own in zip(answers, seeded, strict=True):
        assert own.shortfalls_T is not None
        seen["shortfall"] += own.shortfalls_T.tolist()
        seen["logprob"] += np.abs(np.asarray(answer.logprobs) - own.logprobs_T).tolist()
        for chunk in toploc.verify(own.states_TD.bfloat16(), answer.proof):
            seen["exponents"].append(chunk.exponent_mismatches * 128 / chunk.points)
            seen["mantissa_mean"].append(chunk.mantissa_mean)
            seen["mantissa_median"].append(chunk.mantissa_median)
    whole = np.concatenate([own.shortfalls_T for own in seeded if own.shortfalls_T is not None])
    seen["inexact_share"].append(float((whole > 0).mean()))  # of a file so large that the few tokens are nothing
    for begin in range(0, len(answers), FILE_SAMPLES):
        below = [own.shortfalls_T for own in seeded[begin : begin + FILE_SAMPLES] if own.shortfalls_T is not None]
        # What a file may hold besides the share is not counted against the share.
        inexact = sum(int((part > 0).sum()) for part in below) - FLOORS.inexact_tokens
        seen["inexact_share"].append(max(0, inexact) / sum(len(part) for part in below))
    if free is not None:
        seen["surprise_sample"] += [surprise([own]) for own in free]
        files = [free[begin : begin + FILE_SAMPLES] for begin in range(0, len(free), FILE_SAMPLES)]
        seen["surprise_file"] += [surprise(file) for file in files]


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    set_threads(count)
    try:
        yield
    finally:
        set_threads(before)


def to_toml(model: str, found: Measured) -> str:
    """The table to paste into a config."""
    chosen = found.thresholds()
    lines = [f"# shoal calibrate {model}: worst of {len(found.seen['shortfall'])} comparisons of a token"]
    lines += [f"# times {SAFETY:g} (surprise: times {SAFETY_SURPRISE:g}), with floors", "[audit.thresholds]"]
    for name, value in chosen.model_dump().items():
        comment = f"  # worst {found.quantiles(name)[-1]:.3g}" if name in UNITS else ""
        lines.append(f"{name} = {value}{comment}")
    text = "\n".join(lines) + "\n"
    tree = {"name": "check", "steps": 1, "tasks": [{"source": "x"}], **tomllib.loads(text)}
    assert check_config(tree, "what was calibrated").audit.thresholds == chosen
    return text


def print_differences(found: Measured, console: Console) -> None:
    table = Table(title="how far honest workers are off", title_justify="left")
    table.add_column("threshold", no_wrap=True)
    for heading in ("50 %", "99 %", "99.9 %", "max", "chosen"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    chosen = found.thresholds()
    for name, unit in UNITS.items():
        table.add_row(name, *(f"{q:.2g}" for q in found.quantiles(name)), f"{getattr(chosen, name):g}", unit)
    console.print(table)
