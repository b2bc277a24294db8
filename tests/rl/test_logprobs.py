import math

import pytest
import torch
from torch import Tensor, nn

from shoal.rl.logprobs import chosen_logprobs

TOKENS, WIDTH, VOCAB = 23, 8, 11
HIDDEN_TD = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))
TARGETS_T = torch.randint(VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(2))


class CountingHead(nn.Module):
    """A linear head that remembers how many rows each call saw."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, VOCAB)
        self.rows: list[int] = []

    def forward(self, hidden_RD: Tensor) -> Tensor:
        self.rows.append(hidden_RD.shape[0])
        logits_RV: Tensor = self.linear(hidden_RD)
        return logits_RV


@pytest.fixture
def head() -> CountingHead:
    torch.manual_seed(0)
    return CountingHead()


def logits(hidden_TD: Tensor) -> Tensor:
    """A head for tests that choose their logits by hand."""
    return hidden_TD


def test_log_probability_and_entropy_are_those_of_the_softmax() -> None:
    # Logits ln 1, ln 2, ln 5: probabilities 1/8, 2/8, 5/8.
    logits_TV = torch.tensor([[1.0, 2.0, 5.0]]).log()
    logp_T, entropy_T = chosen_logprobs(logits_TV, logits, torch.tensor([2]), temperature=1.0, vocab=3)
    entropy = -(1 / 8 * math.log(1 / 8) + 2 / 8 * math.log(2 / 8) + 5 / 8 * math.log(5 / 8))
    assert logp_T.tolist() == pytest.approx([math.log(5 / 8)])
    assert entropy_T.tolist() == pytest.approx([entropy])


def test_logits_are_divided_by_the_temperature() -> None:
    # At temperature 1/2 the logits ln 1, ln 2, ln 5 double to ln 1, ln 4, ln 25: probabilities 1/30, 4/30, 25/30.
    logits_TV = torch.tensor([[1.0, 2.0, 5.0]]).log()
    logp_T, _ = chosen_logprobs(logits_TV, logits, torch.tensor([1]), temperature=0.5, vocab=3)
    assert logp_T.tolist() == pytest.approx([math.log(4 / 30)])


def test_sixteen_bit_logits_are_scored_in_float32() -> None:
    # 1000 equal logits of 3: each -ln 1000 = -6.9078, which bfloat16 would round to -6.90625.
    logits_TV = torch.full((1, 1000), 3.0, dtype=torch.bfloat16)
    logp_T, entropy_T = chosen_logprobs(logits_TV, logits, torch.tensor([0]), temperature=0.6, vocab=1000)
    assert logp_T.dtype == entropy_T.dtype == torch.float32
    assert logp_T.item() == pytest.approx(-math.log(1000), abs=1e-5)


def test_entropy_has_the_gradient_of_the_entropy() -> None:
    # dH/dlogit_i = -p_i (ln p_i + H), with p = 1/4, 3/4.
    logits_TV = torch.tensor([[1.0, 3.0]]).log().requires_grad_()
    _, entropy_T = chosen_logprobs(logits_TV, logits, torch.tensor([0]), temperature=1.0, vocab=2)
    (gradient_TV,) = torch.autograd.grad(entropy_T.sum(), logits_TV)
    entropy = -(1 / 4 * math.log(1 / 4) + 3 / 4 * math.log(3 / 4))
    expected = [-1 / 4 * (math.log(1 / 4) + entropy), -3 / 4 * (math.log(3 / 4) + entropy)]
    assert gradient_TV[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("rows", [1, 2, 7, 22])
def test_chunks_give_the_values_and_gradients_of_the_whole(head: CountingHead, rows: int) -> None:
    def run(max_logits: int) -> list[Tensor]:
        leaf_TD = HIDDEN_TD.clone().requires_grad_()
        logp_T, entropy_T = chosen_logprobs(
            leaf_TD, head, TARGETS_T, temperature=0.7, vocab=VOCAB, max_logits=max_logits
        )
        scalar = (logp_T * torch.arange(TOKENS)).sum() + entropy_T.square().sum()
        gradients = torch.autograd.grad(scalar, [leaf_TD, *head.parameters()])
        return [logp_T, entropy_T, *gradients]

    for chunked, whole in zip(run(rows * VOCAB), run(TOKENS * VOCAB), strict=True):
        torch.testing.assert_close(chunked, whole)


def test_no_call_of_the_head_sees_more_rows_than_allowed_forward_or_backward(head: CountingHead) -> None:
    # 60 logits allow 60 // 11 = 5 rows: 23 tokens take four chunks of 5 and one of 3.
    logp_T, entropy_T = chosen_logprobs(HIDDEN_TD, head, TARGETS_T, temperature=1.0, vocab=VOCAB, max_logits=60)
    assert head.rows == [5, 5, 5, 5, 3]
    torch.autograd.grad(logp_T.sum() + entropy_T.sum(), list(head.parameters()))
    assert sorted(head.rows[5:]) == [3, 5, 5, 5, 5]


def test_between_forward_and_backward_no_logits_are_kept(head: CountingHead) -> None:
    def elements_kept(max_logits: int) -> int:
        kept: list[int] = []

        def keep(tensor: Tensor) -> Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            chosen_logprobs(HIDDEN_TD, head, TARGETS_T, temperature=1.0, vocab=VOCAB, max_logits=max_logits)
        return sum(kept)

    assert elements_kept(max_logits=5 * VOCAB) < TOKENS * VOCAB <= elements_kept(max_logits=TOKENS * VOCAB)


def test_a_single_chunk_is_not_computed_twice(head: CountingHead) -> None:
    logp_T, _ = chosen_logprobs(HIDDEN_TD, head, TARGETS_T, temperature=1.0, vocab=VOCAB)
    torch.autograd.grad(logp_T.sum(), list(head.parameters()))
    assert head.rows == [TOKENS]


def test_without_gradient_the_rows_are_still_bounded(head: CountingHead) -> None:
    with torch.no_grad():
        logp_T, _ = chosen_logprobs(HIDDEN_TD, head, TARGETS_T, temperature=1.0, vocab=VOCAB, max_logits=1)
    assert head.rows == [1] * TOKENS
    assert not logp_T.requires_grad


def test_a_temperature_of_zero_is_refused(head: CountingHead) -> None:
    with pytest.raises(ValueError, match="temperature 0"):
        chosen_logprobs(HIDDEN_TD, head, TARGETS_T, temperature=0.0, vocab=VOCAB)


def test_a_head_wider_than_the_vocabulary_it_claims_is_refused(head: CountingHead) -> None:
    with pytest.raises(ValueError, match="head returned 11 logits per token, vocab is 10"):
        chosen_logprobs(HIDDEN_TD, head, TARGETS_T, temperature=1.0, vocab=10)
