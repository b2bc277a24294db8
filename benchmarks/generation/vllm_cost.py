"""What our noise and proofs cost: the same prompts and lengths on vLLM with them and on vLLM as it is, in turns."""

import time
from dataclasses import replace
from pathlib import Path

from benchmarks.common.progress import Progress
from benchmarks.common.result import Figure
from benchmarks.validation.made_file import cpu_s
from shoal.config import RunConfig
from shoal.generate.engine import Request
from shoal.generate.vllm.engine import VllmEngine
from shoal.generate.vllm.start import VllmSettings
from shoal.models.load import outline

ROUNDS = 4
BATCH = 32
PROMPT = 48


def prompt_of(number: int) -> tuple[int, ...]:
    """Tokens that mean nothing, other ones for each number."""
    return tuple((7 * number + 13 * place) % 5000 + 100 for place in range(PROMPT))


def measure_cost(
    folder: Path, config: RunConfig, answers: int, tokens: int, values: dict[str, Figure], progress: Progress
) -> float:
    """Wall time with noise and proofs over wall time without, the best of some rounds each.

    No answer ends before its limit, so that both sides generate as many tokens.
    """
    policy = replace(outline(folder), eos_ids=frozenset())
    requests = [Request(prompt_of(n), 11, n, tokens) for n in range(answers)]
    settings = VllmSettings(
        max_batch=BATCH,
        max_len=PROMPT + tokens,
        temperature=config.sampling.temperature,
        held="float32",
        dtype="float32",
        cuda=False,
        threads=config.workers.threads,
        kv_cache_gb=1.0,
    )
    sides = {"ours": settings, "plain": replace(settings, noise=False, proofs=False)}
    engines = {}
    try:
        for name, side in sides.items():
            progress.stage(f"cost: starting {name}")
            engines[name] = VllmEngine(folder, policy, side, origin=name, reader=lambda _: {}, say=lambda _: None)
            list(engines[name].generate(requests[:BATCH]))  # first calls are slow
        best = dict.fromkeys(sides, float("inf"))
        cpu = dict.fromkeys(sides, float("inf"))
        for number in range(ROUNDS):
            for name, engine in engines.items():
                progress.stage(f"cost: round {number + 1} of {ROUNDS}, {name}")
                began, used = time.monotonic(), cpu_s()
                made = sum(len(answer.tokens) for answer in engine.generate(requests))
                best[name] = min(best[name], time.monotonic() - began)
                cpu[name] = min(cpu[name], cpu_s() - used)
    finally:
        for engine in engines.values():
            engine.close()
    values["cost_tokens_per_s"] = made / best["ours"]
    values["cost_tokens_per_s_plain"] = made / best["plain"]
    values["cost_cpu"] = cpu["ours"] / cpu["plain"]
    return best["ours"] / best["plain"]
