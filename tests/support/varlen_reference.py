"""Attention of stretches in plain matrix products: what a GPU's flash attention computes, on any device.

It takes the place of the two kernel calls of `shoal.models.kernels.varlen`; the rest of that module runs as it is.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from shoal.models.kernels.varlen import Cuts


def flash(
    q_QHD: Tensor, k_KhD: Tensor, v_KhD: Tensor, queries: Cuts, keys: Cuts, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    out_QHD = torch.empty_like(q_QHD)
    lse_HQ = torch.empty(q_QHD.shape[1], q_QHD.shape[0], dtype=torch.float32)
    for q, k in _stretches(queries, keys):
        scores_HQK = _scores(q_QHD[q], k_KhD[k], causal, scale)
        lse_HQ[:, q] = scores_HQK.logsumexp(-1)
        values_HKD = _heads(v_KhD[k], q_QHD.shape[1])
        out_QHD[q] = (scores_HQK.softmax(-1) @ values_HKD).transpose(0, 1).to(out_QHD.dtype)
    return out_QHD, lse_HQ


def flash_backward(
    tensors: Sequence[Tensor], lse_HQ: Tensor, queries: Cuts, keys: Cuts, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    grad_QHD, q_QHD, k_KhD, v_KhD, out_QHD = tensors
    dq_QHD, dk_KhD, dv_KhD = torch.zeros_like(q_QHD), torch.zeros_like(k_KhD), torch.zeros_like(v_KhD)
    heads, shared = q_QHD.shape[1], k_KhD.shape[1]
    for q, k in _stretches(queries, keys):
        grad_HQD, own_HQD = _heads(grad_QHD[q], heads), _heads(out_QHD[q], heads)
        p_HQK = (_scores(q_QHD[q], k_KhD[k], causal, scale) - lse_HQ[:, q, None]).exp()
        dp_HQK = grad_HQD @ _heads(v_KhD[k], heads).transpose(1, 2)
        ds_HQK = p_HQK * (dp_HQK - (grad_HQD * own_HQD).sum(-1, keepdim=True)) * scale
        dq_QHD[q] = (ds_HQK @ _heads(k_KhD[k], heads)).transpose(0, 1).to(q_QHD.dtype)
        for total_KhD, share_HKD in (
            (dk_KhD, ds_HQK.transpose(1, 2) @ _heads(q_QHD[q], heads)),
            (dv_KhD, p_HQK.transpose(1, 2) @ grad_HQD),
        ):
            total_KhD[k] = share_HKD.unflatten(0, (shared, -1)).sum(1).transpose(0, 1).to(total_KhD.dtype)
    return dq_QHD, dk_KhD, dv_KhD


def _stretches(queries: Cuts, keys: Cuts) -> Iterator[tuple[slice, slice]]:
    ends = [cuts.ends_N.tolist() for cuts in (queries, keys)]
    assert all(end[0] == 0 for end in ends)
    for q, k in zip(*map(pairwise, ends), strict=True):
        assert q[1] - q[0] <= queries.longest
        assert k[1] - k[0] <= keys.longest
        yield slice(*q), slice(*k)


def _heads(x_TnD: Tensor, heads: int) -> Tensor:
    """Heads first, in float32, each as often as query heads share it."""
    return x_TnD.float().transpose(0, 1).repeat_interleave(heads // x_TnD.shape[1], 0)


def _scores(q_QHD: Tensor, k_KhD: Tensor, causal: bool, scale: float) -> Tensor:
    heads = q_QHD.shape[1]
    scores_HQK = _heads(q_QHD, heads) @ _heads(k_KhD, heads).transpose(1, 2) * scale
    if causal:
        unseen_QK = torch.ones(scores_HQK.shape[1:], dtype=torch.bool).triu(1)
        scores_HQK = scores_HQK.masked_fill(unseen_QK, float("-inf"))
    return scores_HQK
