"""Section `ranks` of the benchmark `sharding`: two gloo ranks against one process.

Gradients are compared bit for bit, on a small random model and on the first four blocks of SmolLM2, with micro-batches
that do not divide among the ranks evenly: the process adds in the ranks' order, those of a turn first. Weights are
compared after 20 optimizer steps, in which orders differ. `bytes_per_parameter` is the largest number of bytes that
weights, gradients, moments and everything that an optimizer step makes take at once, counted as tensors are made and
freed, over both ranks; activations and the reference model come on top. Learning is the laptop's model on the laptop's
task, trained on what it sampled itself: mean reward of the last steps, of several seeds.
"""

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from benchmarks.common.configs import base_model, changed, checkout_config, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.ranks import forked_ranks
from benchmarks.common.result import BenchResult, Figure
from shoal.config import RunConfig
from shoal.generate.engine import Request
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import load, trainable
from shoal.plan.live_bytes import LiveBytes
from shoal.protocol.rollout import bare_rollout
from shoal.rl.advantages import group_advantages, has_signal
from shoal.tasks.build import build_source
from shoal.train.batch import Group
from shoal.train.dealing import Share, scatter
from shoal.train.distributed import ALONE, World
from shoal.train.learner import Learner, build_learner
from shoal.train.optimizer import local
from shoal.train.publishing import gathered
from shoal.train.step import StepResult, accumulate, plan_step, train_step

RANKS = 2
BLOCKS = 4
GROUPS, ANSWERS = 8, 4
# Micro-batches of two or three groups: an optimizer batch is several turns.
SHORT = {"sampling.max_prompt_tokens": 64, "sampling.max_new_tokens": 12, "train.token_budget": 80}
OLD = -1  # a version that is not here to compare log-probs with


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    optimizer_steps: int
    slice: bool
    seeds: int
    learning_steps: int
    last: int
    """Steps at the end whose rewards are averaged."""


FULL = Size(optimizer_steps=20, slice=True, seeds=3, learning_steps=24, last=6)
QUICK = Size(optimizer_steps=3, slice=False, seeds=1, learning_steps=2, last=1)


def bench_ranks(quick: bool, progress: Progress) -> BenchResult:
    """Gradients, weights, memory and learning of two ranks and of one process."""
    size = QUICK if quick else FULL
    torch.set_num_threads(1)  # before ranks are forked: threads do not survive that
    values: dict[str, Figure] = {}
    laptop = laptop_config()
    models = {"": (base_model(laptop, progress), laptop)}
    with tempfile.TemporaryDirectory(prefix="shoal-bench-ranks-") as scratch:
        if size.slice:
            smollm2 = checkout_config("smollm2.toml")
            models["_smollm2"] = first_blocks(base_model(smollm2, progress), Path(scratch) / "slice"), smollm2
        for name, (model, of_run) in models.items():
            steps = size.optimizer_steps
            batches = {"train.optimizer_steps": steps, "train.groups_per_step": GROUPS * steps}
            config = changed(of_run, SHORT | batches)
            values |= {f"{figure}{name}": value for figure, value in _compared(model, config, progress).items()}
    for figure in ("gradients_differ", "weights_gap", "bytes_per_parameter"):
        values[figure] = max(float(value) for name, value in values.items() if name.startswith(figure))
    values |= _learning(models[""][0], laptop, size, progress)
    bars = {"gradients_differ": ("<=", 0.0), "weights_gap": ("<=", 2e-6), "bytes_per_parameter": ("<=", 16.5)}
    return BenchResult("ranks", {}, values, {**bars, "learning_gap": ("<=", float(values["learning_noise"]))})  # type: ignore[dict-item]


def first_blocks(model: Path, target: Path) -> Path:
    """The first blocks of a model, with its embedding, norm and head."""
    whole: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, num_hidden_layers=BLOCKS)
    whole.save_pretrained(target)
    for file in model.iterdir():
        if "token" in file.name and file.is_file():
            (target / file.name).write_bytes(file.read_bytes())
    return target


def random_groups(count: int, seed: int = 0, vocab: int = 200) -> list[Group]:
    """Groups of uneven lengths, of an older version, so that their log-probs are nobody's claim."""
    rng = Random(seed)
    groups = []
    for number in range(count):
        prompt = [rng.randrange(2, vocab) for _ in range(rng.choice([1, 4, 9]))]
        answers = [[rng.randrange(2, vocab) for _ in range(rng.choice([1, 3, 8]))] for _ in range(ANSWERS)]
        samples = [bare_rollout(prompt, answer, [-5.0] * len(answer)) for answer in answers]
        advantages_1S = group_advantages(torch.tensor([[rng.random() for _ in samples]]))
        groups.append(Group(samples[0].prompt, samples, advantages_1S[0].tolist(), OLD, number))
    return groups


def _compared(model: Path, config: RunConfig, progress: Progress) -> dict[str, Figure]:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-gradients-") as scratch:
        progress.stage(f"{model.name}: gradients of {RANKS} ranks and of one process")
        file = Path(scratch) / "ranks.safetensors"
        forked_ranks(RANKS, partial(_gradients_of_ranks, model, config, file))
        ranks, alone = load_file(file), _gradients_in_order(model, config)
        differ = sum(not torch.equal(ranks[name], alone[name]) for name in alone)
        progress.stage(f"{model.name}: {config.train.optimizer_steps} optimizer steps")
        tracked = forked_ranks(RANKS, partial(_stepped, model, config, file))
        after, ours = load_file(file), build_learner(model, config)
        train_step(ours, random_groups(GROUPS * config.train.optimizer_steps), config, 0)
        gap = max(float((after[name] - tensor).abs().max()) for name, tensor in ours.policy.weights().items())
        parameters = sum(p.numel() for _, p in trainable(ours.policy.model))
    return {
        "gradients_differ": differ,
        "gradients": len(alone),
        "weights_gap": gap,
        "bytes_per_parameter": sum(tracked) / parameters,
        "parameters": parameters,
    }


def _shares(config: RunConfig, ranks: int) -> list[list[Share]]:
    """One optimizer batch whose micro-batches leave a rank an empty turn."""
    once = changed(config, {"train.optimizer_steps": 1})
    groups = next(g for g in (random_groups(n) for n in range(GROUPS, 99)) if len(_turns(g, once)) % ranks == 1)
    return plan_step(groups, once, 0, ranks)


def _turns(groups: Sequence[Group], config: RunConfig) -> list[object]:
    return list(plan_step(groups, config, 0)[0][0].turns)


def _gradients_of_ranks(model: Path, config: RunConfig, file: Path, world: World) -> None:
    learner = build_learner(model, config, world)
    (share,) = scatter(_shares(config, world.size) if world.is_first else None, world)
    _accumulated(learner, share, config)
    found = {}
    for name, parameter in trainable(learner.policy.model):
        assert isinstance(parameter.grad, DTensor)
        found[name] = parameter.grad.full_tensor()
    if world.is_first:
        save_file(found, file)


def _gradients_in_order(model: Path, config: RunConfig) -> dict[str, Tensor]:
    """The same micro-batches in one process: gradients of a turn are added first, and to those before them then."""
    learner = build_learner(model, config)
    (shares,) = _shares(config, RANKS)
    total: dict[str, Tensor] = {}
    for turns in zip(*(share.turns for share in shares), strict=True):
        parts = []
        for turn in turns:
            learner.optimizer.zero_grad(set_to_none=True)
            _accumulated(learner, Share([turn], shares[0].tokens, shares[0].probe), config)
            parts.append({name: p.grad for name, p in trainable(learner.policy.model) if p.grad is not None})
        for name in parts[0]:
            added = torch.stack([part[name] for part in parts]).sum(0)
            total[name] = total[name] + added if name in total else added
    return total


def _accumulated(learner: Learner, share: Share, config: RunConfig) -> None:
    nothing = [None] * len(share.turns)
    accumulate(learner, share, nothing, nothing, changed(config, {"train.loss.kl_coef": 0.0}), 0, StepResult())


def _stepped(model: Path, config: RunConfig, file: Path, world: World) -> int:
    """Makes the optimizer steps, writes the weights, and says how many bytes another step takes on this rank."""
    learner = build_learner(model, config, world)
    train_step(learner, random_groups(GROUPS * config.train.optimizer_steps) if world.is_first else None, config, 0)
    weights = gathered(learner.policy.weights(), world)
    if world.is_first:
        save_file(weights, file)
    (share,) = scatter(_shares(config, world.size) if world.is_first else None, world)
    _accumulated(learner, share, config)
    held = [local(t) for _, p in trainable(learner.policy.model) for t in (p.detach(), p.grad) if t is not None]
    held += [local(t) for state in learner.optimizer.state.values() for t in state.values()]
    with LiveBytes(held) as tracked:
        learner.optimizer.step()
    return int(tracked.peak)


def _learning(base: Path, laptop: RunConfig, size: Size, progress: Progress) -> dict[str, Figure]:
    """Rewards of one process and of two ranks, and how far apart they may be by chance.

    The noise is two standard errors of the difference of the means, from the spread between the seeds.
    """
    rewards: dict[int, list[float]] = {1: [], RANKS: []}
    for seed in range(size.seeds):
        for ranks, found in rewards.items():
            progress.stage(f"learning with seed {seed}, ranks {ranks}")
            config = changed(laptop, {"seed": seed, "train.groups_per_step": 24, "steps": size.learning_steps})
            curves = forked_ranks(ranks, partial(_curve, base, config))
            found.append(statistics.fmean(curves[0][-size.last :]))
    one, two = rewards[1], rewards[RANKS]
    spread = sum(statistics.variance(side) / len(side) for side in (one, two)) if size.seeds > 1 else 1.0
    return {
        "reward_of_one_process": statistics.fmean(one),
        "reward_of_two_ranks": statistics.fmean(two),
        "learning_gap": abs(statistics.fmean(one) - statistics.fmean(two)),
        "learning_noise": 2 * spread**0.5,
    }


def _curve(base: Path, config: RunConfig, world: World = ALONE) -> list[float]:
    """The mean reward of each step; rank 0 samples, and all train."""
    learner = build_learner(base, config, world)
    tasks, sampling = build_source(config.tasks), config.sampling
    policy = load(base)
    batch = sampling.group_size * config.train.groups_per_step
    engine = TorchEngine(
        policy, max_batch=batch, max_len=config.max_len, temperature=sampling.temperature, proofs=False
    )
    curve = []
    for step in range(config.steps):
        weights = gathered(learner.policy.weights(), world)
        groups = None
        if world.is_first:
            policy.set_weights(weights, "learner")
            groups, reward = _sampled(engine, tasks, config, step)
            curve.append(reward)
        train_step(learner, groups, config, step)
    return curve


def _sampled(engine: TorchEngine, tasks: Any, config: RunConfig, step: int) -> tuple[list[Group], float]:
    """Groups with signal that the engine sampled and the task scored, and the mean reward of all."""
    policy, samples, count = engine.policy, config.sampling.group_size, config.train.groups_per_step
    asked = [tasks.task("train", (config.seed * config.steps + step) * count + number) for number in range(count)]
    prompts = [policy.encode(task.prompt) for task in asked]
    requests = [
        Request(tuple(prompt), config.seed * config.steps + step, g * samples + s, config.sampling.max_new_tokens)
        for g, prompt in enumerate(prompts)
        for s in range(samples)
    ]
    done = sorted(engine.generate(requests), key=lambda completion: completion.key)
    scores = [float(tasks.score(asked[c.key // samples], policy.decode(c.tokens)) >= 1.0) for c in done]
    rewards_GS = torch.tensor(scores).view(count, samples)
    advantages_GS = group_advantages(rewards_GS, normalise=config.train.advantage_std)
    groups = []
    for g in range(count):
        if bool(has_signal(rewards_GS[g : g + 1])):
            made = [bare_rollout(prompts[g], c.tokens, c.logprobs) for c in done[g * samples : (g + 1) * samples]]
            groups.append(Group(made[0].prompt, made, advantages_GS[g].tolist(), step))
    return groups, float(rewards_GS.mean())
