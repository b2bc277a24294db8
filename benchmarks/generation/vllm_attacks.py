"""Attacks that concern engines, made on vLLM: other weights, another temperature, top-k, chosen and edited answers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.common.progress import Progress
from benchmarks.common.result import Figure
from benchmarks.generation.vllm_engines import started, written
from benchmarks.validation.attack_testbed import Recorded, Testbed
from shoal.attacks import ATTACKS
from shoal.attacks.base import through_the_right_model
from shoal.attacks.texts import COOLER
from shoal.config import RunConfig
from shoal.generate.engine import Completion, Request
from shoal.generate.submission_builder import Maker
from shoal.generate.vllm.engine import VllmEngine
from shoal.validate.numerics.alternatives import int_rounded

TOP_K_PROCESSOR = "benchmarks.generation.vllm_top_k:TopK"


def caught_on(
    testbed: Testbed, config: RunConfig, count: int, scratch: Path, version: Path, progress: Progress
) -> dict[str, Figure]:
    """Share of files caught, by attack; the files of each are `count`."""
    own = testbed.policy.weights()
    other: dict[str, dict[str, Tensor]] = {
        "int4": {name: int_rounded(7, w) if w.ndim == 2 else w for name, w in own.items()},
        "older_version": testbed.before,
    }
    values: dict[str, Figure] = {}
    with started(version, config) as engine:
        for name, weights in other.items():
            progress.stage(f"attack {name}, on vLLM")
            engine.load(written(scratch / name, testbed.policy, weights), name)
            values[f"caught.{name}"] = _caught(testbed, count, Maker(*_parts(testbed, engine)).answer)
        engine.load(version, "version 1")
        for name in ("best_of_n", "edited_tokens"):
            progress.stage(f"attack {name}, on vLLM")
            values[f"caught.{name}"] = _caught(testbed, count, ATTACKS[name](*_parts(testbed, engine)).answer)
        progress.stage("attack temperature, on vLLM")
        with _cooler(engine):
            values["caught.temperature"] = _caught(testbed, count, _laundered(testbed, engine))
    progress.stage("attack top_k, on vLLM")
    more = {"logits_processors": [TOP_K_PROCESSOR]}
    with started(version, config, more=more) as engine:
        values["caught.top_k"] = _caught(testbed, count, _laundered(testbed, engine))
    return values


def _parts(testbed: Testbed, engine: VllmEngine) -> tuple[Any, ...]:
    return testbed.config, testbed.policy, engine, testbed.tasks, testbed.judge


@contextmanager
def _cooler(engine: VllmEngine) -> Iterator[None]:
    honest = engine.temperature
    engine.temperature = honest * COOLER
    try:
        yield
    finally:
        engine.temperature = honest


def _laundered(testbed: Testbed, engine: VllmEngine) -> Callable[[list[Request]], list[Completion]]:
    """Tokens of the engine, with log-probs and proofs that the right model has for them."""
    maker = Maker(*_parts(testbed, engine))

    def answer(requests: list[Request]) -> list[Completion]:
        drafts = maker.answer(requests)
        return through_the_right_model(maker, requests, [c.tokens for c in drafts], [c.finish == "eos" for c in drafts])

    return answer


def _caught(testbed: Testbed, count: int, answer: Callable[[list[Request]], list[Completion]]) -> float:
    leases = testbed.leases(count, first=20_000)
    requests = testbed.requests(leases)
    files = testbed.files(Maker, leases, Recorded(requests, answer(requests)))
    return sum(map(bool, testbed.judged(files))) / len(files)
