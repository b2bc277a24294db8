"""One training step as a function: a policy, its optimizer and a batch of groups in, changed weights and numbers out.

A file whose claimed log-probs are not those of the policy that sampled it changes no weight: where that can be seen,
which is where the policy is still the same, the step is left undone and the file is named.

Every token of an optimizer batch weighs the same, however its samples were packed. A gradient that is not finite
changes no weight, and weights that would not be finite, or give log-probs that are not, are taken back: that optimizer
step is left out and counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from random import Random

import torch
from torch import Tensor

from shoal.config import RunConfig
from shoal.models.load import Policy
from shoal.rl.logprobs import chosen_logprobs
from shoal.rl.loss import LossInputs, LossOutputs, compute_loss
from shoal.train.batch import Group, MicroBatch, deal, pack


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
    mismatch_max: float = 0.0
    drift_sum: float = 0.0
    forward_tokens: int = 0
    forward_budget: int = 0
    skipped: int = 0
    off: dict[int, float] = field(default_factory=dict)
    """Files with log-probs that are not this policy's, and by how much; if there are any, nothing was changed."""
    turned_down: int = 0

    def metrics(self) -> dict[str, float]:
        """Means over tokens.

        `mismatch` compares trainer and engine on the same weights, so it knows only tokens that the newest version
        sampled, and is NaN without any; `drift` is how far the policy has moved since it sampled, over all tokens.
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
            "mismatch_max": self.mismatch_max if self.fresh_tokens else nan,
            "drift": self.drift_sum / tokens,
            "updates_skipped": self.skipped,
            "turned_down": self.turned_down,
            "packing_fill": self.forward_tokens / max(self.forward_budget, 1),
            "loss_tokens": float(self.tokens),
        }


def logprobs(policy: Policy, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of a micro-batch's loss tokens under the sampling distribution."""
    hidden_TD = policy.hidden(batch.ids_1T, batch.layout.positions_1T, batch.layout)[0]
    return chosen_logprobs(
        hidden_TD[batch.source_A], policy.head, batch.target_A, temperature=temperature, vocab=policy.vocab
    )


def train_step(
    policy: Policy,
    reference: Policy | None,
    optimizer: torch.optim.Optimizer,
    groups: Sequence[Group],
    config: RunConfig,
    step: int,
) -> StepResult:
    """All optimizer steps on one step's groups. Recomputed log-probs are those from before the first of them."""
    train, temperature = config.train, config.sampling.temperature
    dealt = deal(groups, min(train.optimizer_steps, len(groups)), Random(f"{config.seed}:{step}"))
    batches = [pack(part, train.token_budget) for part in dealt]
    # With a single optimizer step its own forward pass gives the recomputed log-probs: nothing has changed before it.
    ahead = len(batches) > 1
    with torch.no_grad():
        now = [[logprobs(policy, m, temperature)[0] if ahead else None for m in batch] for batch in batches]
        base = [[logprobs(reference, m, temperature)[0] if reference else None for m in batch] for batch in batches]
    result = StepResult()
    if ahead:
        for m, now_A in ((m, now_A) for pair in zip(batches, now, strict=True) for m, now_A in zip(*pair, strict=True)):
            assert now_A is not None
            _note_off(result, m, now_A, config, step)
        if result.off:
            return result
    for number, batch in enumerate(batches):
        update = step * train.optimizer_steps + number + 1
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, update)
        probe = pack(dealt[number][:1], train.token_budget)[0]
        _optimizer_step(policy, optimizer, batch, now[number], base[number], probe, config, step, result)
    return result


def learning_rate(config: RunConfig, update: int) -> float:
    """The rate of optimizer step `update`, counted from 1 over the whole run: linear up, constant, linear down."""
    train = config.train
    up = update / max(1, train.warmup_steps)
    left = config.steps * train.optimizer_steps - update + 1
    down = left / train.cooldown_steps if train.cooldown_steps else 1.0
    return train.lr * min(1.0, up, down)


def _optimizer_step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[MicroBatch],
    now: Sequence[Tensor | None],
    base: Sequence[Tensor | None],
    probe: MicroBatch,
    config: RunConfig,
    step: int,
    result: StepResult,
) -> None:
    total = sum(m.target_A.numel() for m in batch)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad(set_to_none=True)
    loss = 0.0
    for m, now_A, base_A in zip(batch, now, base, strict=True):
        logp_A, entropy_A = logprobs(policy, m, config.sampling.temperature)
        recomputed_A = logp_A.detach() if now_A is None else now_A
        old_A = m.engine_logp_A if config.train.old_logprobs == "sampled" else recomputed_A
        inputs = LossInputs(logp_A, old_A, m.advantage_A, m.sample_A, entropy_A, base_A)
        out = compute_loss(inputs, config.train.loss, total_tokens=total)
        torch.autograd.backward(out.loss)
        loss += float(out.loss.detach())
        if now_A is None:
            _note_off(result, m, recomputed_A, config, step)
        _count(result, m, recomputed_A, m.version_A == step, out, config.train.token_budget)
    if result.off:
        optimizer.zero_grad(set_to_none=True)
        return
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, config.train.grad_clip))
    if not (isfinite(loss) and isfinite(norm)):
        result.skipped += 1
        optimizer.zero_grad(set_to_none=True)
        return
    before = [p.detach().clone() for p in parameters]
    optimizer.step()
    if not _is_sound(policy, parameters, probe, config.sampling.temperature):
        # The moments stay: they hold a gradient, which was finite.
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                parameter.copy_(old)
        result.skipped += 1
        return
    result.losses.append(loss)
    result.grad_norms.append(norm)


def _note_off(result: StepResult, m: MicroBatch, recomputed_A: Tensor, config: RunConfig, step: int) -> None:
    """Notes files of the newest version whose log-probs are not its own.

    Older versions are not here to compare with; the loss bounds what their log-probs can do. Nor is the newest where it
    was published in another format than it is trained in.
    """
    if config.model.dtype != "float32":
        return
    gap_A = (recomputed_A - m.engine_logp_A).abs()
    # A NaN of a policy that diverged is nobody's claim; it is found by other means.
    for number in m.submission_A[(m.version_A == step) & (gap_A > config.audit.thresholds.logprob)].unique().tolist():
        worst = float(gap_A[(m.submission_A == number) & gap_A.isfinite()].max())
        result.off[number] = max(worst, result.off.get(number, 0.0))


@torch.no_grad()
def _is_sound(policy: Policy, parameters: Sequence[Tensor], probe: MicroBatch, temperature: float) -> bool:
    """Whether weights are finite, and the log-probs that they give to one group."""
    return all(bool(p.isfinite().all()) for p in parameters) and bool(
        logprobs(policy, probe, temperature)[0].isfinite().all()
    )


def _count(
    result: StepResult, m: MicroBatch, recomputed_A: Tensor, fresh_A: Tensor, out: LossOutputs, budget: int
) -> None:
    difference_A = (recomputed_A - m.engine_logp_A).abs()
    result.tokens += m.target_A.numel()
    result.drift_sum += float(difference_A.sum())
    if bool(fresh_A.any()):
        result.fresh_tokens += int(fresh_A.sum())
        result.mismatch_sum += float(difference_A[fresh_A].sum())
        result.mismatch_max = max(result.mismatch_max, float(difference_A[fresh_A].max()))
    result.ratio_max = max(result.ratio_max, float(out.ratio_max))
    result.forward_tokens += m.layout.tokens
    result.forward_budget += budget
    for name, value in out.sums.items():
        result.sums[name] = result.sums.get(name, 0.0) + float(value)
