"""`shoal calibrate MODEL`: how far honest workers differ from a validator, and the thresholds that follow.

The same requests are answered in every way an honest worker may choose (our engine with few and many sequences side by
side, one thread and two, plain transformers) and computed again in every way a validator may (packed, one by one, one
thread and two). In bfloat16 both sides also compute in float32 on the bfloat16 weights. Every answer is compared with
every recomputation; a threshold is the worst that was seen, times a factor, and never below a floor.
"""

import math
import random
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from shoal import toploc
from shoal.config import RunConfig, ThresholdsConfig
from shoal.config_io import check_config, load_config
from shoal.errors import ConfigError
from shoal.files import write_whole
from shoal.generate.engine import Completion, Engine, Request, TorchEngine
from shoal.generate.reference_engine import PlainEngine
from shoal.models.base import ensure_base_model
from shoal.models.load import Policy, load
from shoal.protocol.submission import Rollout
from shoal.tasks.build import build_source
from shoal.validate.checks.sampling import surprise
from shoal.validate.recompute import Replayed, replay

# Thresholds are the worst that was seen, times this: a calibration sees some thousand tokens on one machine, a run sees
# millions on many.
SAFETY = 3.0
# Evidence against fair draws has a known distribution: more than x nats come with a probability below e^-x.
SAFETY_SURPRISE = 2.0
# What a threshold never goes below: a calibration that sees no difference at all still leaves room for other machines.
FLOORS = ThresholdsConfig()
FILE_SAMPLES = 16
RANDOM_PROMPT = 16
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


def generations(policies: Sequence[Policy], directory: Path, config: RunConfig) -> list[Generation]:
    """All ways to generate. The first policy is the run's; a second one has the same weights in another format."""
    temperature, length = config.sampling.temperature, config.max_len

    def ours(policy: Policy, batch: int) -> Callable[[], Engine]:
        return lambda: TorchEngine(policy, max_batch=batch, max_len=length, temperature=temperature)

    def plain(policy: Policy, dtype: str) -> Callable[[], Engine]:
        return lambda: PlainEngine(directory, policy, dtype, temperature)

    ways = []
    for policy in policies:
        dtype = str(policy.model.dtype).removeprefix("torch.")
        ways += [
            Generation(f"engine, batch 64, {dtype}", 1, ours(policy, 64)),
            Generation(f"engine, batch 1, {dtype}", 1, ours(policy, 1)),
            Generation(f"engine, batch 5, {dtype}", 2, ours(policy, 5)),
            Generation(f"transformers, {dtype}", 2, plain(policy, dtype)),
        ]
    return ways


def validations(policies: Sequence[Policy]) -> list[Validation]:
    ways = []
    for policy in policies:
        dtype = str(policy.model.dtype).removeprefix("torch.")
        ways += [Validation(f"packed, {dtype}", 2, policy, False), Validation(f"alone, {dtype}", 1, policy, True)]
    return ways


def measure(
    policies: Sequence[Policy],
    directory: Path,
    config: RunConfig,
    requests: Sequence[Request],
    say: Callable[[float, str], None],
) -> Measured:
    """Compares every generation with every validation. `say` hears the share that is done, and what is next."""
    found = Measured()
    ways, checks = generations(policies, directory, config), validations(policies)
    for number, way in enumerate(ways):
        say(number / len(ways), f"generating: {way.name}, {way.threads} threads")
        with threads(way.threads):
            answers = sorted(way.engine().generate(requests, hidden=True), key=lambda c: c.index)
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
        Rollout(0, 0, "", 0, list(request.prompt), answer.tokens, answer.logprobs, answer.finish, None, 0.0, "", b"")
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
        assert answer.hidden_TD is not None
        seen["shortfall"] += own.shortfalls_T.tolist()
        seen["logprob"] += np.abs(np.asarray(answer.logprobs) - own.logprobs_T).tolist()
        for chunk in toploc.verify(own.states_TD.bfloat16(), toploc.build(answer.hidden_TD.bfloat16())):
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
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_requests(policy: Policy, config: RunConfig, samples: int, with_tasks: bool) -> list[Request]:
    """Groups of answers to the config's tasks, or to random tokens."""
    rng = random.Random(config.seed)
    source = build_source(config.tasks) if with_tasks else None
    size, new = config.sampling.group_size, config.sampling.max_new_tokens
    requests: list[Request] = []
    while len(requests) < samples:
        group = len(requests) // size
        if source is not None:
            prompt = policy.encode(source.task("train", group).prompt)[: config.sampling.max_prompt_tokens]
        else:
            prompt = [rng.randrange(policy.vocab) for _ in range(RANDOM_PROMPT)]
        requests += [Request(tuple(prompt), config.seed, len(requests) + n, new) for n in range(size)]
    return requests[:samples]


def resolve(model: str, config: Path | None, dtype: str | None) -> tuple[RunConfig, bool]:
    """The config to calibrate with, and whether its tasks are the prompts."""
    if model.endswith(".toml") and config is None:
        resolved, with_tasks = load_config(Path(model)), True
    elif config is not None:
        resolved, with_tasks = load_config(config, [f"model.source='{model}'"]), True
    elif model == "tiny":
        raise ConfigError("calibrate tiny: a tiny model is built from a config; give one with --config")
    else:
        # Its tasks are never asked: prompts are random tokens.
        tasks = [{"source": "reasoning-gym/spell_backward"}]
        bare = {"name": "calibrate", "steps": 1, "tasks": tasks, "model": {"source": model}}
        resolved, with_tasks = check_config(bare, "calibrate"), False
    if dtype is not None and dtype != resolved.model.dtype:
        # Unchecked: the thresholds that another format needs are what is measured here.
        model_config = resolved.model.model_copy(update={"dtype": dtype})
        resolved = resolved.model_copy(update={"model": model_config})
    return resolved, with_tasks


def both_formats(directory: Path, dtype: str) -> list[Policy]:
    """The policy; in bfloat16 also with the same weights widened to float32, which is an honest way to compute too."""
    policy = load(directory, dtype)
    if dtype == "float32":
        return [policy]
    wide = load(directory, "float32")
    wide.set_weights(policy.weights(), "the policy in bfloat16")
    return [policy, wide]


def to_toml(model: str, dtype: str, found: Measured) -> str:
    """The table to paste into a config."""
    chosen = found.thresholds()
    lines = [
        f"# shoal calibrate {model} --dtype {dtype}: worst of {len(found.seen['shortfall'])} comparisons of a token"
    ]
    lines += [f"# times {SAFETY:g} (surprise: times {SAFETY_SURPRISE:g}), with floors", "[audit.thresholds]"]
    for name, value in chosen.model_dump().items():
        comment = f"  # worst {found.quantiles(name)[-1]:.3g}" if name in UNITS else ""
        lines.append(f"{name} = {value}{comment}")
    text = "\n".join(lines) + "\n"
    tree = {"name": "check", "steps": 1, "tasks": [{"source": "x"}], **tomllib.loads(text)}
    assert check_config(tree, "what was calibrated").audit.thresholds == chosen
    return text


def calibrate(
    model: str, config: Path | None, dtype: str | None, out: Path | None, samples: int, console: Console
) -> None:
    """Measures, prints the table of differences and the thresholds, and writes these to `out`."""
    resolved, with_tasks = resolve(model, config, dtype)
    dtype = resolved.model.dtype
    errors = Console(stderr=True)
    directory = ensure_base_model(resolved, errors)
    columns = (BarColumn(), TextColumn("{task.percentage:3.0f} %  {task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("loading the model", total=1.0)
        policies = both_formats(directory, dtype)
        requests = make_requests(policies[0], resolved, samples, with_tasks)
        said = [""]

        def say(share: float, what: str) -> None:
            bar.update(task, completed=share, description=what)
            if not errors.is_terminal and what.startswith("generating") and what != said[0]:
                errors.print(f"{share:4.0%} {what}", highlight=False)
                said[0] = what

        found = measure(policies, directory, resolved, requests, say)
    _print(found, console)
    text = to_toml(model, dtype, found)
    console.print(f"\n{text}", markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        write_whole(out, text.encode())
        console.print(f"written to {out}", markup=False, highlight=False, soft_wrap=True)


def _print(found: Measured, console: Console) -> None:
    table = Table(title="how far honest workers are off", title_justify="left")
    table.add_column("threshold", no_wrap=True)
    for heading in ("50 %", "99 %", "99.9 %", "max", "chosen"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    chosen = found.thresholds()
    for name, unit in UNITS.items():
        table.add_row(name, *(f"{q:.2g}" for q in found.quantiles(name)), f"{getattr(chosen, name):g}", unit)
    console.print(table)
