"""A policy as one module: log-probs and entropies of a micro-batch in one call."""

from torch import Tensor, nn

from shoal.models.load import Policy
from shoal.models.lora import adapters_off
from shoal.rl.logprobs import chosen_logprobs
from shoal.train.batch import MicroBatch


class Scorer(nn.Module):
    """Hidden states and head in one forward call, without which the hooks that gather a sharded policy do not run."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.model = policy.model
        self.policy = policy

    def forward(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        logp_A, entropy_A = logprobs(self.policy, batch, temperature)
        return logp_A.clone(), entropy_A  # no view: an operation in place on one would take FSDP's hooks off


class Unadapted(Scorer):
    """A policy's own base, for the KL term: the same module with its adapters off while it computes."""

    def __init__(self, scorer: Scorer) -> None:
        super().__init__(scorer.policy)
        self.scorer = scorer

    def forward(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        with adapters_off(self.model):
            scored: tuple[Tensor, Tensor] = self.scorer(batch, temperature)
        return scored


def logprobs(policy: Policy, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of a micro-batch's loss tokens under the sampling distribution."""
    hidden_TD = policy.hidden(batch.ids_1T, batch.layout.positions_1T, batch.layout)[0]
    return chosen_logprobs(
        hidden_TD[batch.source_A], policy.head, batch.target_A, temperature=temperature, vocab=policy.vocab
    )
