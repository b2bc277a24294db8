"""Packed attention on any device that has `scaled_dot_product_attention`, which gives no log-sum-exp: keys of a shared
prompt stand before the keys of each of its answers."""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.kernels.segments import (
    Bucket,
    Segments,
    Stretch,
    buckets,
    for_each_query_head,
    gather,
    on_device,
    order,
    tokens_first,
)


class SdpaRow:
    """A packed row for PyTorch's own choice of kernel; gradients are autograd's."""

    def __init__(self, segments: Segments, device: torch.device) -> None:
        answers = {stretch for family in segments.shared for stretch in family.each}
        tables: list[Bucket] = list(buckets([stretch for stretch in segments.own if stretch not in answers]))
        prompts: list[Stretch | None] = [None] * len(tables)
        for family in segments.shared:
            tables += (own := list(buckets(family.each)))
            prompts += [family.prompt] * len(own)
        self._parts = [(on_device(table.index_SL, device), p) for table, p in zip(tables, prompts, strict=True)]
        self._order_T = on_device(order(tables, segments.tokens), device)

    def attend(self, q_HTD: Tensor, k_hTD: Tensor, v_hTD: Tensor, scale: float) -> Tensor:
        k_HTD, v_HTD = for_each_query_head(q_HTD, k_hTD), for_each_query_head(q_HTD, v_hTD)
        q_THD, k_THD, v_THD = tokens_first(q_HTD, k_HTD, v_HTD)
        outs = []
        for index_SL, prompt in self._parts:
            q, k, v = (gather(x, index_SL) for x in (q_THD, k_THD, v_THD))
            mask_LK = None
            if prompt is not None:
                k, v = _behind(k_THD, prompt, k), _behind(v_THD, prompt, v)
                mask_LK = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
                mask_LK = mask_LK.tril(k.shape[2] - q.shape[2])
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_LK, is_causal=mask_LK is None, scale=scale)
            outs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outs).index_select(0, self._order_T)[..., : v_hTD.shape[-1]]


def _behind(x_THD: Tensor, prompt: Stretch, answers_SHLD: Tensor) -> Tensor:
    """Keys or values of each answer behind those of the prompt."""
    prompt_HPD = x_THD[slice(*prompt)].transpose(0, 1)
    return torch.cat([prompt_HPD.expand(len(answers_SHLD), *prompt_HPD.shape), answers_SHLD], dim=2)
