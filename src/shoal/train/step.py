"""One training step as a function: a policy, its optimizer and a batch of groups in, changed weights and numbers out.

A file whose claimed log-probs are not those of the policy that sampled it changes no weight: where that can be seen,
which is where the policy is still the same, the step is left undone and the file is named.

Every token of an optimizer batch weighs the same, however its samples were packed. A gradient that is not finite
changes no weight, and weights that would not be finite, or give log-probs that are not, are taken back: that optimizer
step is left out and counted.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from random import Random

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from shoal.config import RunConfig
from shoal.rl.loss import LossInputs, LossOutputs, compute_loss
from shoal.train.batch import Group, MicroBatch, deal, pack
from shoal.train.dealing import Share, dealt, empty_turn, scatter
from shoal.train.distributed import World
from shoal.train.learner import Learner
from shoal.train.optimizer import local
from shoal.train.scorer import Scorer


@dataclass(slots=True)
class StepResult:
    """What a step reports; sums over tokens become means in `metrics`."""

    tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    ratio_max: float = 0.0
    fresh_tokens: int = 0
    mismatch_sum: float = 0.0
    mismatch_kl_sum: float = 0.0
    mismatch_max: float = 0.0
    drift_sum: float = 0.0
    forward_tokens: int = 0
    forward_budget: int = 0
    skipped: int = 0
    off: dict[int, float] = field(default_factory=dict)
    """Files with log-probs that are not this policy's, and by how much; if there are any, nothing was changed."""
    turned_down: int = 0

    def add_up(self, world: World) -> None:
        """Makes sums and maxima those of all ranks. Losses and gradient norms are everybody's already."""
        names = ("tokens", "fresh_tokens", "forward_tokens", "forward_budget")
        sums = ("mismatch_sum", "mismatch_kl_sum", "drift_sum")
        kinds = ("policy_loss", "kl", "entropy", "clipped_high", "clipped_low")
        own = [*(float(getattr(self, name)) for name in names + sums), *(self.sums.get(kind, 0.0) for kind in kinds)]
        found = world.sum(own)
        for name, value in zip(names + sums, found, strict=False):
            setattr(self, name, int(value) if name in names else value)
        self.sums = dict(zip(kinds, found[len(names + sums) :], strict=True))
        self.ratio_max, self.mismatch_max = world.max([self.ratio_max, self.mismatch_max])

    def metrics(self) -> dict[str, float]:
        """Means over tokens.

        `mismatch` compares trainer and engine on the same weights, so it knows only tokens that the newest version
        sampled, and is NaN without any; `mismatch_kl` is the k3 estimate of KL(engine || trainer) from the same tokens;
        `drift` is how far the policy has moved since it sampled, over all tokens.
        """
        tokens = max(self.tokens, 1)
        finite = max(len(self.losses), 1)
        return {
            "loss": sum(self.losses) / finite,
            "grad_norm": sum(self.grad_norms) / finite,
            "kl": self.sums.get("kl", 0.0) / tokens,
            "entropy": self.sums.get("entropy", 0.0) / tokens,
            "clip_high": self.sums.get("clipped_high", 0.0) / tokens,
            "clip_low": self.sums.get("clipped_low", 0.0) / tokens,
            "ratio_max": self.ratio_max,
            "mismatch": self.mismatch_sum / self.fresh_tokens if self.fresh_tokens else nan,
            "mismatch_kl": self.mismatch_kl_sum / self.fresh_tokens if self.fresh_tokens else nan,
            "mismatch_max": self.mismatch_max if self.fresh_tokens else nan,
            "drift": self.drift_sum / tokens,
            "updates_skipped": self.skipped,
            "turned_down": self.turned_down,
            "packing_fill": self.forward_tokens / max(self.forward_budget, 1),
            "loss_tokens": float(self.tokens),
        }


def plan_step(groups: Sequence[Group], config: RunConfig, step: int, ranks: int = 1) -> list[list[Share]]:
    """A step's optimizer batches, each as the shares of all ranks."""
    train = config.train
    parts = deal(groups, min(train.optimizer_steps, len(groups)), Random(f"{config.seed}:{step}"))
    budget = train.token_budget
    return [dealt(pack(part, budget), pack(part[:1], budget)[0], ranks) for part in parts]


def train_step(learner: Learner, groups: Sequence[Group] | None, config: RunConfig, step: int) -> StepResult:
    """All optimizer steps on one step's groups. Recomputed log-probs are those from before the first of them.

    Every rank calls it; the groups are rank 0's, and its result is that of all ranks.
    """
    world = learner.world
    plan = plan_step(groups, config, step, world.size) if groups is not None else None
    shares = scatter(plan, world)
    # With a single optimizer step its own forward pass gives the recomputed log-probs: nothing has changed before it.
    ahead = len(shares) > 1
    now = [_scored(learner.scorer if ahead else None, share, config, world) for share in shares]
    base = [_scored(learner.reference, share, config, world) for share in shares]
    result = StepResult()
    if ahead:
        for share, now_of_turns in zip(shares, now, strict=True):
            for m, now_A in zip(share.turns, now_of_turns, strict=True):
                if m is not None and now_A is not None:
                    _note_off(result, m, now_A, config, step)
        if _anyone_off(result, world):
            return result
    for number, share in enumerate(shares):
        update = step * config.train.optimizer_steps + number + 1
        for group in learner.optimizer.param_groups:
            group["lr"] = learning_rate(config, update)
        _optimizer_step(learner, share, now[number], base[number], config, step, result)
    result.add_up(world)
    return result


@torch.no_grad()
def _scored(scorer: Scorer | None, share: Share, config: RunConfig, world: World) -> list[Tensor | None]:
    """Log-probs of a share's tokens, turn by turn; none without a scorer, nor for an empty turn."""
    if scorer is None:
        return [None] * len(share.turns)
    temperature = config.sampling.temperature
    found = (scorer((m or empty_turn()).to(world.device), temperature)[0] for m in share.turns)
    return [None if m is None else logp_A.cpu() for m, logp_A in zip(share.turns, found, strict=True)]


def learning_rate(config: RunConfig, update: int) -> float:
    """The rate of optimizer step `update`, counted from 1 over the whole run: linear up, constant, linear down."""
    train = config.train
    up = update / max(1, train.warmup_steps)
    left = config.steps * train.optimizer_steps - update + 1
    down = left / train.cooldown_steps if train.cooldown_steps else 1.0
    return train.lr * min(1.0, up, down)


def _optimizer_step(
    learner: Learner,
    share: Share,
    now: Sequence[Tensor | None],
    base: Sequence[Tensor | None],
    config: RunConfig,
    step: int,
    result: StepResult,
) -> None:
    world, optimizer = learner.world, learner.optimizer
    optimizer.zero_grad(set_to_none=True)
    loss = accumulate(learner, share, now, base, config, step, result)
    if _anyone_off(result, world):
        optimizer.zero_grad(set_to_none=True)
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = _clipped_norm(parameters, config.train.grad_clip)
    # Sums over all ranks: what is not finite on one is not finite on any, and all skip alike.
    (loss,) = world.sum([loss])
    if not (isfinite(loss) and isfinite(norm)):
        result.skipped += 1
        optimizer.zero_grad(set_to_none=True)
        return
    optimizer.step()
    if not world.all(_is_sound(learner, parameters, share.probe, config.sampling.temperature)):
        # The moments stay: they hold a gradient, which was finite.
        optimizer.undo()
        result.skipped += 1
    else:
        result.losses.append(loss)
        result.grad_norms.append(norm)
    optimizer.zero_grad(set_to_none=True)


def accumulate(
    learner: Learner,
    share: Share,
    now: Sequence[Tensor | None],
    base: Sequence[Tensor | None],
    config: RunConfig,
    step: int,
    result: StepResult,
) -> float:
    """Adds the gradient of a share's turns to the parameters', and says this rank's part of the loss."""
    device, temperature = learner.world.device, config.sampling.temperature
    loss = 0.0
    for turn, now_A, base_A in zip(share.turns, now, base, strict=True):
        m = (turn or empty_turn()).to(device)
        logp_A, entropy_A = learner.scorer(m, temperature)
        if turn is None:
            torch.autograd.backward((logp_A.sum() + entropy_A.sum()) * 0.0)
            continue
        recomputed_A = logp_A.detach() if now_A is None else now_A.to(device)
        old_A = m.engine_logp_A if config.train.old_logprobs == "sampled" else recomputed_A
        reference_A = None if base_A is None else base_A.to(device)
        inputs = LossInputs(logp_A, old_A, m.advantage_A, m.sample_A, entropy_A, reference_A)
        out = compute_loss(inputs, config.train.loss, total_tokens=share.tokens)
        torch.autograd.backward(out.loss)
        loss += float(out.loss.detach())
        if now_A is None:
            _note_off(result, m, recomputed_A, config, step)
        _count(result, m, recomputed_A, m.version_A == step, out, config.train.token_budget)
    return loss


@torch.no_grad()
def _clipped_norm(parameters: Sequence[Tensor], most: float) -> float:
    """Scales the gradient down to a norm of `most`, and gives the norm that it had, over all ranks' shares."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, most)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def _anyone_off(result: StepResult, world: World) -> bool:
    """Whether a file's log-probs are off on any rank; rank 0 then knows all such files."""
    if world.all(not result.off):
        return False
    for text in world.texts(json.dumps(result.off)):
        for number, gap in json.loads(text).items():
            result.off[int(number)] = max(gap, result.off.get(int(number), 0.0))
    return True


def _note_off(result: StepResult, m: MicroBatch, recomputed_A: Tensor, config: RunConfig, step: int) -> None:
    """Notes files of the newest version whose log-probs are not its own.

    Older versions are not here to compare with; the loss bounds what their log-probs can do. Nor is the newest where it
    was published in another format than it is trained in.
    """
    if config.model.dtype != "float32":
        return
    gap_A = (recomputed_A - m.engine_logp_A).abs()
    # A NaN of a policy that diverged is nobody's claim; it is found by other means.
    fresh_A = m.version_A == step
    for number in m.submission_A[fresh_A & (gap_A > config.audit.thresholds.logprob)].unique().tolist():
        worst = float(gap_A[fresh_A & (m.submission_A == number) & gap_A.isfinite()].max())
        result.off[number] = max(worst, result.off.get(number, 0.0))


@torch.no_grad()
def _is_sound(learner: Learner, parameters: Sequence[Tensor], probe: MicroBatch, temperature: float) -> bool:
    """Whether this rank's weights are finite, and the log-probs that all weights give to one group."""
    logp_A, _ = learner.scorer(probe.to(learner.world.device), temperature)
    return bool(logp_A.isfinite().all()) and all(bool(local(p).isfinite().all()) for p in parameters)


def _count(
    result: StepResult, m: MicroBatch, recomputed_A: Tensor, fresh_A: Tensor, out: LossOutputs, budget: int
) -> None:
    log_ratio_A = recomputed_A - m.engine_logp_A
    difference_A = log_ratio_A.abs()
    result.tokens += m.target_A.numel()
    result.drift_sum += float(difference_A.sum())
    if bool(fresh_A.any()):
        result.fresh_tokens += int(fresh_A.sum())
        result.mismatch_sum += float(difference_A[fresh_A].sum())
        result.mismatch_kl_sum += float((log_ratio_A.expm1() - log_ratio_A)[fresh_A].sum())
        result.mismatch_max = max(result.mismatch_max, float(difference_A[fresh_A].max()))
    result.ratio_max = max(result.ratio_max, float(out.ratio_max))
    result.forward_tokens += m.layout.tokens
    result.forward_budget += budget
    for name, value in out.sums.items():
        result.sums[name] = result.sums.get(name, 0.0) + float(value)
