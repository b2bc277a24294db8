"""Testbed of the verification benchmark for one model: what a judge sees of honest machines and of cheats, in bfloat16.

Texts are drawn once. Every way of computing, honest or not, is one forward pass over them, from which follow the
tokens, log-probs and proofs that such a machine would claim (`numerics.honest_answers`). So all machines answer the
same tasks with the same noise: files of one machine are independent of each other, files of two machines are not.

Version 1 is what everybody claims. It is trained from version 0 by the trainer's own steps, and both are rounded to
bfloat16 as a run publishes them.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.configs import base_model
from benchmarks.common.progress import Progress
from benchmarks.validation.attack_testbed import build_testbed
from shoal import toploc
from shoal.attacks.base import fewer_layers
from shoal.config import RunConfig
from shoal.errors import BenchError
from shoal.models.load import Policy, load
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer
from shoal.validate.numerics.alternatives import OLDER, ROUNDED, Weights, fp8_rounded, int_rounded, with_weights
from shoal.validate.numerics.bets import Noise, Observed
from shoal.validate.numerics.honest_answers import (
    EXACT,
    Claim,
    Computed,
    Drawn,
    beside,
    blocks,
    computed,
    draw_texts,
    noise_of,
    picked,
)
from shoal.validate.numerics.judge import NOISE_ANSWERS, own_answers
from shoal.validate.numerics.observe import own_noise
from shoal.validate.numerics.vllm_way import Vllm, vllm_python
from shoal.validate.numerics.ways import WAYS, Way, rounded

# Tokens of 8-bit weights, with the log-probs and proofs that the true weights have for them.
LAUNDERED = "int8_laundered"
CHEATS = ("int4", "int8", "fp8", "older_version", "temperature", "smaller_model", LAUNDERED)
EDITED = "edited"
COOLED = 0.9
# The way that is computed for real, where vLLM is installed.
VLLM = "vllm"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is computed of one model."""

    texts: int
    tokens: int
    """Of each text."""
    answers: int
    """Of each file."""
    cheat_texts: int
    """Texts that each cheat answers on each kind of hardware."""
    cheat_ways: Sequence[str]
    steps: int
    """Training steps from the base model, each on as many files as the config's; the last one leads from the older
    version to the claimed one."""


@dataclass(slots=True)
class Sight:
    """What a judge sees of one model's machines."""

    noise: Noise
    honest: dict[str, list[Observed]]
    """Answers by way."""
    cheats: dict[tuple[str, str], list[Observed]]
    """Answers by cheat, and by the way in which its hardware computes."""
    distances: dict[str, float]
    """Root mean square of what the judge's other computations are off by, over its own noise."""


def look(name: str, config: RunConfig, size: Size, progress: Progress) -> Sight:
    """Computes all machines on one model."""
    policy, older = trained(name, config, size, progress)
    progress.stage(f"{name}: drawing {size.texts} texts of {size.tokens} tokens")
    tasks, most = build_source(config.tasks), config.sampling.max_prompt_tokens
    prompts = [policy.encode(tasks.task("train", number).prompt)[:most] for number in range(size.texts)]
    policy = replace(policy, eos_ids=frozenset())  # every text reaches its length
    texts = draw_texts(policy, config, prompts, size.texts, size.tokens, seed=1)
    noise = own_noise(own_answers(policy, prompts[:NOISE_ANSWERS], config))
    vocab = policy.vocab
    honest: dict[str, list[Observed]] = defaultdict(list)
    cheats: dict[tuple[str, str], list[Observed]] = defaultdict(list)
    done = 0
    with vllm_of(policy, max(len(text.read) for text in texts)) as vllm:
        for block in (*blocks(texts[: size.cheat_texts], vocab), *blocks(texts[size.cheat_texts :], vocab)):
            bench = _Bench(policy, config.sampling.temperature, older, block)
            for way in WAYS.values():
                progress.detail(f"{done} of {size.texts} texts, {way.name}")
                own = bench.computed(way)
                honest[way.name] += bench.seen(own)
                if way.name in size.cheat_ways:
                    cheats[EDITED, way.name] += bench.edited(own)
            if vllm is not None:
                progress.detail(f"{done} of {size.texts} texts, {VLLM}")
                honest[VLLM] += bench.seen(vllm.computed(block, config.sampling.temperature))
            for cheat in CHEATS:
                for kind in size.cheat_ways if done < size.cheat_texts else ():
                    progress.detail(f"{done} of {size.texts} texts, {cheat} on {kind}")
                    cheats[cheat, kind] += bench.cheat(cheat, WAYS[kind])
            done += len(block)
    return Sight(noise, honest, cheats, _distances(honest["flash"], noise))


@contextmanager
def vllm_of(policy: Policy, max_len: int) -> Iterator[Vllm | None]:
    """vLLM with the weights that are loaded; None where it is not installed."""
    if (python := vllm_python()) is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="shoal-vllm-") as scratch:
        policy.model.save_pretrained(scratch)
        with Vllm(python, Path(scratch), max_len) as vllm:
            yield vllm


def trained(name: str, config: RunConfig, size: Size, progress: Progress) -> tuple[Policy, Weights]:
    """The claimed version, in bfloat16 values, and the one before it."""
    directory = base_model(config, progress)
    progress.stage(f"{name}: loading, and {size.steps} training steps")
    policy = load(directory)
    with tempfile.TemporaryDirectory(prefix="shoal-verification-") as scratch, Scorer(config.tasks) as judge:
        tasks = build_source(config.tasks)
        files = max(1, config.train.groups_per_step // config.workers.groups_per_submission)
        lr = config.train.lr
        testbed = build_testbed(config, policy, tasks, judge, Path(scratch), files, lr, steps=size.steps)
    if all(torch.equal(rounded(w), rounded(testbed.before[name])) for name, w in policy.weights().items()):
        raise BenchError(f"{name}: {files} files taught the model nothing in bfloat16: there is no older version")
    policy.set_weights({name: rounded(w) for name, w in policy.weights().items()}, "version 1")
    return policy, {name: rounded(w) for name, w in testbed.before.items()}


class _Bench:
    """A portion of the texts: what is true of them and what other computations yield, computed once."""

    def __init__(self, policy: Policy, temperature: float, older: Weights, texts: Sequence[Drawn]) -> None:
        self._policy, self._temperature, self._older, self._texts = policy, temperature, older, texts
        self._noise = noise_of(texts, policy.vocab)
        self._truth = self.computed(EXACT)
        self._others: dict[str, Computed] = {}
        for name in (*ROUNDED, OLDER):
            with self._with(older.__getitem__ if name == OLDER else None, ROUNDED.get(name)):
                self._others[name] = self.computed(EXACT)

    def computed(self, way: Way, temperature: float | None = None) -> Computed:
        return computed(self._policy, way, self._texts, temperature or self._temperature)

    def seen(self, own: Computed) -> list[Observed]:
        """What a judge sees of a machine that picks by what it computed."""
        return self._beside(picked(own, self._noise))

    def edited(self, own: Computed) -> list[Observed]:
        """The same, with one token of each answer drawn again and its log-prob as it should be."""
        found = []
        for number, claim in enumerate(picked(own, self._noise)):
            rng = np.random.default_rng([number, *self._texts[number].key])
            place = int(rng.integers(len(claim.tokens_T)))
            p_V = torch.softmax(own.scaled[number][place].double(), dim=0)
            p_V[claim.tokens_T[place]] = 0.0
            token = int(rng.choice(len(p_V), p=(p_V / p_V.sum()).numpy()))
            tokens_T, logprobs_T = claim.tokens_T.clone(), claim.logprobs_T.clone()
            tokens_T[place] = token
            logprobs_T[place] = torch.log_softmax(own.scaled[number][place], dim=0)[token]
            found.append(Claim(tokens_T, logprobs_T, claim.proof))
        return self._beside(found)

    def cheat(self, cheat: str, way: Way) -> list[Observed]:
        with self._cheating(cheat):
            own = self.computed(way, COOLED * self._temperature if cheat == "temperature" else None)
        claims = picked(own, self._noise)
        return self._beside(laundered(claims, self.computed(way)) if cheat == LAUNDERED else claims)

    def _cheating(self, cheat: str) -> AbstractContextManager[None]:
        match cheat:
            case "int4":
                return self._with(None, lambda w: rounded(int_rounded(7, w)))
            case "int8" | "int8_laundered":
                return self._with(None, lambda w: rounded(int_rounded(127, w)))
            case "fp8":
                return self._with(None, lambda w: rounded(fp8_rounded(w)))
            case "older_version":
                return self._with(self._older.__getitem__, None)
            case "smaller_model":
                return fewer_layers(self._policy)
            case _:
                return nullcontext()

    @contextmanager
    def _with(self, named: Callable[[str], Tensor] | None, change: Callable[[Tensor], Tensor] | None) -> Iterator[None]:
        def changed(name: str, weights: Tensor) -> Tensor:
            weights = named(name) if named else weights
            return change(weights) if change else weights

        with with_weights(self._policy, changed, "the benchmark"):
            yield

    def _beside(self, claimed: Sequence[Claim]) -> list[Observed]:
        return beside(self._truth, claimed, self._noise, self._others)


def laundered(claims: Sequence[Claim], honest: Computed) -> list[Claim]:
    """The same tokens, with the log-probs and proofs that an honest machine computes for them."""
    found = []
    for claim, states_TD, scaled_TV in zip(claims, honest.states, honest.scaled, strict=True):
        logprobs_T = torch.log_softmax(scaled_TV, dim=1).gather(1, claim.tokens_T.unsqueeze(1)).squeeze(1)
        found.append(Claim(claim.tokens_T, logprobs_T, toploc.build(states_TD.bfloat16())))
    return found


def not_best(answers: Sequence[Observed]) -> float:
    """The share of tokens that are not the best under the lease's noise."""
    return float(np.mean(np.concatenate([answer.shortfalls_T for answer in answers]) > 0))


def _distances(answers: Sequence[Observed], noise: Noise) -> dict[str, float]:
    names: Mapping[str, object] = answers[0].shifts
    shifts = {name: np.concatenate([answer.shifts[name] for answer in answers]) for name in names}
    return {name: float(np.sqrt(np.mean(shift_T**2))) / noise.gap for name, shift_T in shifts.items()}
