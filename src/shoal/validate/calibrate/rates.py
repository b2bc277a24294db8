"""Honest rates of bfloat16 runs: how far every honest way, and this machine itself, is off from float32.

The ways are emulated (`numerics/ways`), on texts that are drawn once. This machine answers for real, with the engine
and the number format that its workers have, and its rates stand under the name of its profile; so do those of vLLM on
this machine, where it is installed (`numerics/vllm_way`).
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from shoal.config import RunConfig
from shoal.devices import CPU
from shoal.generate.engine import Request
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy, load, load_as
from shoal.models.this_machine import this_profile
from shoal.protocol.rollout import Rollout, bare_rollout
from shoal.validate.calibrate.tally import Tally
from shoal.validate.numerics.bets import Noise
from shoal.validate.numerics.calibration import Say, answers_of_ways
from shoal.validate.numerics.honest_answers import draw_texts, machine_answers
from shoal.validate.numerics.judge import seen
from shoal.validate.numerics.observe import own_noise
from shoal.validate.numerics.vllm_way import Vllm, vllm_python
from shoal.validate.numerics.ways import WAYS, check_emulated

# The way that a judge takes its own noise from, which is the unit of all rates.
OWN = "flash"


def measure_rates(
    directory: Path, config: RunConfig, requests: Sequence[Request], say: Say, device: torch.device = CPU
) -> tuple[dict[str, Tally], Noise]:
    """Tallies of all emulated ways and of this machine's device, and the noise that they are measured by."""
    policy = load_as(directory, "bfloat16", "float32")
    check_emulated(policy)
    say(0.0, "generating texts")
    prompts = list(dict.fromkeys(request.prompt for request in requests))
    texts = draw_texts(policy, config, prompts, len(requests), config.sampling.max_new_tokens, config.seed)
    steps = len(WAYS) + 1
    found = answers_of_ways(policy, config, texts, lambda share, what: say(share * len(WAYS) / steps, what))
    profile = this_profile("bfloat16", device).name
    say(len(WAYS) / steps, f"computing as {profile}")
    answers, keys = engine_answers(load(directory, "bfloat16", device), config, requests)
    found[profile] = seen(policy, config, answers, keys, {})
    # Its script reads states from host memory, and its profile is that of this CPU.
    if device.type == "cpu" and (python := vllm_python()) is not None:
        say(len(WAYS) / steps, "computing as vLLM")
        with Vllm(python, directory, config.max_len) as vllm:
            found[vllm.profile.name] = machine_answers(policy, vllm.computed, texts, config.sampling.temperature)
    noise = own_noise(found[OWN])
    return {name: Tally.of(answers, noise) for name, answers in found.items()}, noise


def engine_answers(
    policy: Policy, config: RunConfig, requests: Sequence[Request]
) -> tuple[list[Rollout], list[tuple[int, int]]]:
    """Answers that our engine generates, with proofs, and the keys of their noise."""
    engine = TorchEngine(
        policy,
        max_batch=config.workers.max_batch,
        max_len=config.max_len,
        temperature=config.sampling.temperature,
        noise=config.sampling.noise,
    )
    rollouts = []
    answers = sorted(engine.generate(requests), key=lambda answer: answer.key)
    for request, answer in zip(requests, answers, strict=True):
        rollouts.append(bare_rollout(request.prompt, answer.tokens, answer.logprobs, answer.finish, answer.proof))
    return rollouts, [(request.seed, request.sample) for request in requests]
