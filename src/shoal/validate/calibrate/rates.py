"""Honest rates of bfloat16 runs: how far every honest way, and this machine itself, is off from float32.

The ways are emulated (`numerics/ways`), on texts that are drawn once. This machine answers for real, with the engine
and the number format that its workers have, and its rates stand under the name of its profile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from shoal import toploc
from shoal.config import RunConfig
from shoal.generate.engine import Request, TorchEngine
from shoal.models.load import Policy, load, load_as
from shoal.models.this_machine import this_profile
from shoal.protocol.rates.honest_rates import HonestRates
from shoal.protocol.rates.rates_file import Architecture, RatesFile
from shoal.protocol.submission import Rollout
from shoal.validate.numerics.bets import Noise, Observed, histograms
from shoal.validate.numerics.calibration import answers_of_ways
from shoal.validate.numerics.honest_answers import draw_texts
from shoal.validate.numerics.judge import seen
from shoal.validate.numerics.observe import own_noise
from shoal.validate.numerics.ways import WAYS

Say = Callable[[float, str], None]
# What a judge takes its own noise from: the unit of all rates.
OWN = "flash"


@dataclass(frozen=True, slots=True)
class Measured:
    """What was seen of honest answers, by way or profile, and the noise that they are measured by."""

    noise: Noise
    answers: Mapping[str, Sequence[Observed]]

    def to_file(self, model: str, architecture: Architecture) -> RatesFile:
        rates = HonestRates.of({name: histograms(seen, self.noise) for name, seen in self.answers.items()})
        tokens = {name: sum(len(answer.gaps_T) for answer in seen) for name, seen in self.answers.items()}
        return RatesFile(model=model, architecture=architecture, tokens=tokens, rates=rates)


def measure_rates(directory: Path, config: RunConfig, requests: Sequence[Request], say: Say) -> Measured:
    """All emulated ways, and this machine. `say` hears the share that is done, and what is next."""
    policy = load_as(directory, "bfloat16", "float32")
    say(0.0, "generating texts")
    prompts = list(dict.fromkeys(request.prompt for request in requests))
    texts = draw_texts(policy, config, prompts, len(requests), config.sampling.max_new_tokens, config.seed)
    steps = len(WAYS) + 1
    ways = answers_of_ways(policy, config, texts, lambda share, what: say(share * len(WAYS) / steps, what))
    found: dict[str, Sequence[Observed]] = dict(ways)
    profile = this_profile("bfloat16").name
    say(len(WAYS) / steps, f"computing as {profile}")
    answers, keys = engine_answers(load(directory, "bfloat16"), config, requests)
    found[profile] = seen(policy, config, answers, keys, {})
    return Measured(own_noise(list(found[OWN])), found)


def engine_answers(
    policy: Policy, config: RunConfig, requests: Sequence[Request]
) -> tuple[list[Rollout], list[tuple[int, int]]]:
    """Answers that our engine generates, with proofs, and the keys of their noise."""
    engine = TorchEngine(
        policy,
        max_batch=config.workers.max_batch,
        max_len=config.max_len,
        temperature=config.sampling.temperature,
    )
    rollouts = []
    answers = sorted(engine.generate(requests, hidden=True), key=lambda answer: answer.index)
    for request, answer in zip(requests, answers, strict=True):
        assert answer.hidden_TD is not None
        proof = toploc.build(answer.hidden_TD.bfloat16())
        place, prompt, drawn = (0, 0, "", 0), list(request.prompt), (answer.tokens, answer.logprobs, answer.finish)
        rollouts.append(Rollout(*place, prompt, *drawn, None, 0.0, "", proof))
    return rollouts, [(request.seed, request.sample) for request in requests]


def print_rates(found: Measured, console: Console) -> None:
    """One line per way: how far it is off, in multiples of what the judge's own arithmetic is."""
    table = Table(title="how far honest machines are off, over the judge's own noise", title_justify="left")
    table.add_column("way or profile", overflow="fold")
    for heading in ("tokens", "gaps", "worst unit", "not the best", "proofs"):
        table.add_column(heading, justify="right")
    for name, answers in found.answers.items():
        gaps_T, short_T, chunks_C = (
            np.concatenate([getattr(answer, column) for answer in answers])
            for column in ("gaps_T", "shortfalls_T", "chunks_C")
        )
        gaps, _, _ = histograms(answers, found.noise)
        table.add_row(
            name,
            f"{len(gaps_T):,}",
            f"{np.sqrt(np.mean(gaps_T**2)) / found.noise.gap:.2f}",
            f"{worst_of(gaps.above):.2f}",
            f"{(short_T > 0).mean():.2%}",
            f"{np.mean(chunks_C) / found.noise.mantissa:.2f}",
        )
    console.print(table)
    console.print(
        f"the judge's own noise ({OWN}): log-prob gaps of {found.noise.gap:.3g} per unit of spread, mantissas "
        f"{found.noise.mantissa:.3g} in the last place",
        highlight=False,
        soft_wrap=True,
    )


def worst_of(above: Sequence[int]) -> float:
    """The last edge of the scale that anything was above."""
    from shoal.protocol.rates.honest_rates import EDGES

    return float(EDGES[max([0, *(n for n, count in enumerate(above) if count)])])
