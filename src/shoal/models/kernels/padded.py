"""Packed attention on a CPU: stretches of similar length are padded into batches for PyTorch's flash attention."""

from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.devices import CPU
from shoal.models.kernels.segments import (
    Segments,
    buckets,
    for_each_query_head,
    gather,
    on_device,
    order,
    tokens_first,
)
from shoal.models.kernels.two_parts import Given, attend


class PaddedRow:
    """A packed row on the CPU."""

    def __init__(self, segments: Segments) -> None:
        tables = list(buckets(segments.own))
        self.has_prompts = bool(segments.shared)
        self._shared = segments.shared
        self._index_SL = [on_device(table.index_SL, CPU) for table in tables]
        self._padding_SL = [None if table.real_SL.all() else on_device(~table.real_SL, CPU) for table in tables]
        self._order_T = on_device(order(tables, segments.tokens), CPU)

    def attend(self, q_HTD: Tensor, k_hTD: Tensor, v_hTD: Tensor, scale: float) -> Tensor:
        k_HTD, v_HTD = for_each_query_head(q_HTD, k_hTD), for_each_query_head(q_HTD, v_hTD)
        return attend(self, *tokens_first(q_HTD, k_HTD, v_HTD), scale)[..., : v_hTD.shape[-1]]

    def own(self, q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        outs, lses = [], []
        for index_SL in self._index_SL:
            q, k, v = (gather(x, index_SL) for x in (q_THD, k_THD, v_THD))
            out_SHLD, lse_SHL = _flash(q, k, v, True, scale)
            outs.append(out_SHLD.transpose(1, 2).flatten(0, 1))
            lses.append(lse_SHL.transpose(1, 2).flatten(0, 1))
        out_THD, lse_TH = (torch.cat(x).index_select(0, self._order_T) for x in (outs, lses))
        return out_THD, lse_TH

    def prompts(self, q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        out_THD = torch.zeros_like(q_THD)
        lse_TH = q_THD.new_full(q_THD.shape[:2], float("-inf"), dtype=torch.float32)
        for prompt, answers in self._families():
            q, k, v = _batched(q_THD[answers]), _batched(k_THD[prompt]), _batched(v_THD[prompt])
            out_1HAD, lse_1HA = _flash(q, k, v, False, scale)
            out_THD[answers], lse_TH[answers] = out_1HAD[0].transpose(0, 1), lse_1HA[0].t()
        return out_THD, lse_TH

    def own_backward(self, given: Given) -> tuple[Tensor, Tensor, Tensor]:
        parts = []
        for index_SL, padding_SL in zip(self._index_SL, self._padding_SL, strict=True):
            grad, q, k, v, out = (gather(x, index_SL) for x in given[:5])
            if padding_SL is not None:
                grad = grad.masked_fill(padding_SL[:, None, :, None], 0)
            lse = given.lse_TH[index_SL].transpose(1, 2)
            shares = _flash_backward(grad, q, k, v, out, lse, True, given.scale)
            parts.append([x.transpose(1, 2).flatten(0, 1) for x in shares])
        dq, dk, dv = (torch.cat(x).index_select(0, self._order_T) for x in zip(*parts, strict=True))
        return dq, dk, dv

    def add_prompts_backward(self, given: Given, totals: tuple[Tensor, Tensor, Tensor]) -> None:
        for prompt, answers in self._families():
            at = answers, answers, prompt, prompt, answers
            grad, q, k, v, out = (_batched(x[where]) for x, where in zip(given[:5], at, strict=True))
            lse = given.lse_TH[answers].t().unsqueeze(0)
            shares = _flash_backward(grad, q, k, v, out, lse, False, given.scale)
            for total, where, share in zip(totals, at[1:4], shares, strict=True):
                total[where] += share[0].transpose(0, 1)

    def _families(self) -> Iterator[tuple[slice, slice]]:
        return ((slice(*family.prompt), slice(*family.answers)) for family in self._shared)


def _batched(x_THD: Tensor) -> Tensor:
    """A stretch of the row as a batch of one, heads first."""
    return x_THD.transpose(0, 1).unsqueeze(0)


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of the scores."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return out, lse


def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, lse, 0.0, causal, scale=scale
    )
    return dq, dk, dv
