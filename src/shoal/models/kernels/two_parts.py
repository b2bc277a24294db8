"""Attention as two parts that are merged: every stretch to itself, and answers to the prompt that they share.

Each part gives its output and the log-sum-exp of its scores; an answer's two softmaxes become one by these.
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class Given(NamedTuple):
    """What the gradient of a part follows from: output and log-sum-exp are those of both parts together."""

    grad_THD: Tensor
    q_THD: Tensor
    k_ThD: Tensor
    v_ThD: Tensor
    out_THD: Tensor
    lse_TH: Tensor
    scale: float


class TwoPartRow(Protocol):
    """A packed row whose kernel gives log-sum-exps. All tensors have tokens first; lse_TH is float32."""

    has_prompts: bool

    def own(self, q_THD: Tensor, k_ThD: Tensor, v_ThD: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Every stretch to itself, causally: output and log-sum-exp."""
        ...

    def prompts(self, q_THD: Tensor, k_ThD: Tensor, v_ThD: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Answers to their prompt; zero and -inf for all other tokens."""
        ...

    def own_backward(self, given: Given) -> tuple[Tensor, Tensor, Tensor]:
        """This part's share of the gradients of q, k and v."""
        ...

    def add_prompts_backward(self, given: Given, totals: tuple[Tensor, Tensor, Tensor]) -> None:
        """Adds the other part's share to the first one's."""
        ...


class TwoPartAttention(torch.autograd.Function):
    """Attention of a packed row. Its gradient is flash attention's own: a part of the keys needs only the output and
    the normaliser of the whole softmax to know its share of the gradient.
    """

    @staticmethod
    def forward(ctx: Any, q_THD: Tensor, k_ThD: Tensor, v_ThD: Tensor, row: TwoPartRow, scale: float) -> Tensor:
        out_THD, lse_TH = row.own(q_THD, k_ThD, v_ThD, scale)
        if row.has_prompts:
            out_THD, lse_TH = merge(out_THD, lse_TH, *row.prompts(q_THD, k_ThD, v_ThD, scale))
        ctx.save_for_backward(q_THD, k_ThD, v_ThD, out_THD, lse_TH)
        ctx.row, ctx.scale = row, scale
        return out_THD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        row: TwoPartRow = ctx.row
        q_THD, k_ThD, v_ThD, out_THD, lse_TH = ctx.saved_tensors
        given = Given(grads[0].contiguous(), q_THD, k_ThD, v_ThD, out_THD, lse_TH, ctx.scale)
        totals = row.own_backward(given)
        if row.has_prompts:
            row.add_prompts_backward(given, totals)
        return (*totals, None, None)


def attend(row: TwoPartRow, q_THD: Tensor, k_ThD: Tensor, v_ThD: Tensor, scale: float) -> Tensor:
    out_THD: Tensor = TwoPartAttention.apply(q_THD, k_ThD, v_ThD, row, scale)  # type: ignore[no-untyped-call]
    return out_THD


def merge(out: Tensor, lse: Tensor, more_out: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys, of which the second may be empty (its normaliser is then -inf)."""
    total = torch.logaddexp(lse, more_lse)
    kept, added = ((part - total).exp().unsqueeze(-1) for part in (lse, more_lse))
    return (out * kept + more_out * added).to(out.dtype), total
