"""The recipe learns: no demonstrations, only rewards, from one right answer in ten to nearly all."""

from pathlib import Path
from typing import get_args

import pytest
import torch

from shoal.config import RunConfig
from shoal.generate.engine import Request
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import load
from shoal.protocol.rollout import tokens_of
from shoal.rl.advantages import group_advantages, has_signal
from shoal.rl.loss_config import Family
from shoal.train.batch import Group
from shoal.train.learner import alone
from shoal.train.optimizer import AdamW
from shoal.train.step import train_step
from tests.support.roles_in_process import make_config
from tests.support.submissions import make_rollout

STEPS = 40
GROUPS = 12
SAMPLES = 8


def right(answer: str) -> float:
    """26 of some 260 tokens begin a right answer."""
    return float(answer[:1].isascii() and answer[:1].islower())


def learning_curve(directory: Path, config: RunConfig) -> list[float]:
    """The mean reward of each step's samples, drawn by the engine and trained on as the trainer does."""
    policy = load(directory)
    reference = load(directory)
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    learner = alone(policy, reference, AdamW(parameters, lr=1e-3, betas=config.train.betas, weight_decay=0.01))
    engine = TorchEngine(policy, max_batch=GROUPS * SAMPLES, max_len=config.max_len, temperature=1.0)
    curve = []
    for step in range(STEPS):
        prompts = [policy.encode(f"{step * GROUPS + number}?") for number in range(GROUPS)]
        requests = [Request(tuple(p), step, g * SAMPLES + s, 2) for g, p in enumerate(prompts) for s in range(SAMPLES)]
        done = sorted(engine.generate(requests), key=lambda c: c.key)
        rewards_GS = torch.tensor([right(policy.decode(c.tokens)) for c in done]).view(GROUPS, SAMPLES)
        advantages_GS = group_advantages(rewards_GS, normalise=config.train.advantage_std)
        groups = [
            Group(
                tokens_of(prompts[g]),
                [
                    make_rollout(g, s, completion=done[i].tokens, logprobs=done[i].logprobs)
                    for s, i in enumerate(members)
                ],
                advantages_GS[g].tolist(),
                step,
            )
            for g, signal in enumerate(has_signal(rewards_GS))
            if signal
            for members in [range(g * SAMPLES, (g + 1) * SAMPLES)]
        ]
        curve.append(float(rewards_GS.mean()))
        if groups:
            result = train_step(learner, groups, config, step)
            assert result.skipped == 0
            assert result.metrics()["mismatch_max"] < 1e-3
    return curve


@pytest.mark.parametrize("family", get_args(Family))
@pytest.mark.parametrize("old_logprobs", ["recomputed", "sampled"])
def test_every_loss_family_learns_from_rewards_alone(tiny_dir: Path, family: str, old_logprobs: str) -> None:
    train = {
        "lr": 3e-3,
        "optimizer_steps": 2,
        "token_budget": 512,
        "old_logprobs": old_logprobs,
        "loss": {"family": family},
    }
    curve = learning_curve(tiny_dir, make_config(tiny_dir, train=train))
    assert sum(curve[:2]) / 2 < 0.25
    assert sum(curve[-5:]) / 5 > 0.8
