"""Packed attention on a GPU with flash attention: stretches stand as they are in one call, without padding."""

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.models.kernels.segments import Segments, Stretch, on_device, tokens_first
from shoal.models.kernels.two_parts import Given, attend

# Flash attention takes heads whose size is a multiple of this.
HEAD_MULTIPLE = 8


class Cuts(NamedTuple):
    """Where the stretches of a call begin and end in its tensor, and how long the longest is."""

    ends_N: Tensor
    """int32, beginning with 0."""
    longest: int


class VarlenRow:
    """A packed row on a GPU."""

    def __init__(self, segments: Segments, device: torch.device) -> None:
        self.has_prompts = bool(segments.shared)
        self._own = _cuts(segments.own, device)
        prompts, answers = [f.prompt for f in segments.shared], [f.answers for f in segments.shared]
        self._prompts, self._answers = _cuts(prompts, device), _cuts(answers, device)
        self._prompts_P, self._answers_A = _places(prompts, device), _places(answers, device)

    def attend(self, q_HTD: Tensor, k_hTD: Tensor, v_hTD: Tensor, scale: float) -> Tensor:
        return attend(self, *tokens_first(q_HTD, k_hTD, v_hTD, HEAD_MULTIPLE), scale)[..., : v_hTD.shape[-1]]

    def own(self, q_THD: Tensor, k_ThD: Tensor, v_ThD: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        out_THD, lse_HT = flash(q_THD, k_ThD, v_ThD, self._own, self._own, True, scale)
        return out_THD, lse_HT.t()

    def prompts(self, q_THD: Tensor, k_ThD: Tensor, v_ThD: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        q, k, v = q_THD[self._answers_A], k_ThD[self._prompts_P], v_ThD[self._prompts_P]
        out_AHD, lse_HA = flash(q, k, v, self._answers, self._prompts, False, scale)
        out_THD = torch.zeros_like(q_THD)
        lse_TH = torch.full(q_THD.shape[:2], float("-inf"), dtype=torch.float32, device=q_THD.device)
        return out_THD.index_copy_(0, self._answers_A, out_AHD), lse_TH.index_copy_(0, self._answers_A, lse_HA.t())

    def own_backward(self, given: Given) -> tuple[Tensor, Tensor, Tensor]:
        *tensors, lse_TH, scale = given
        return flash_backward(tensors, lse_TH.t(), self._own, self._own, True, scale)

    def add_prompts_backward(self, given: Given, totals: tuple[Tensor, Tensor, Tensor]) -> None:
        at = self._answers_A, self._answers_A, self._prompts_P, self._prompts_P, self._answers_A
        tensors = [x[where] for x, where in zip(given[:5], at, strict=True)]
        lse_HA = given.lse_TH[self._answers_A].t()
        shares = flash_backward(tensors, lse_HA, self._answers, self._prompts, False, given.scale)
        for total, where, share in zip(totals, at[1:4], shares, strict=True):
            total.index_add_(0, where, share)


def _cuts(stretches: Sequence[Stretch], device: torch.device) -> Cuts:
    lengths = np.array([end - begin for begin, end in stretches], dtype=np.int32)
    ends_N = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    return Cuts(on_device(ends_N, device), int(lengths.max(initial=0)))


def _places(stretches: Sequence[Stretch], device: torch.device) -> Tensor:
    """Where the tokens of these stretches stand in the row."""
    return on_device(np.concatenate([np.arange(0), *(np.arange(*stretch) for stretch in stretches)]), device)


def flash(
    q_QHD: Tensor, k_KhD: Tensor, v_KhD: Tensor, queries: Cuts, keys: Cuts, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Each stretch of queries to its stretch of keys: output, and log-sum-exp of the scores as heads x queries."""
    varlen = import_module("torch.nn.attention.varlen")  # PyTorch 2.13, which a CPU does not need
    out_QHD, lse_HQ = varlen.varlen_attn(
        q_QHD,
        k_KhD,
        v_KhD,
        queries.ends_N,
        keys.ends_N,
        queries.longest,
        keys.longest,
        return_aux=varlen.AuxRequest(lse=True),
        scale=scale,
        window_size=(-1, 0 if causal else -1),
        enable_gqa=True,
    )
    return out_QHD, lse_HQ


def flash_backward(
    tensors: Sequence[Tensor], lse_HQ: Tensor, queries: Cuts, keys: Cuts, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v from those of the output: `tensors` is (grad, q, k, v, output), where output and
    log-sum-exp are those of a softmax of which these keys may be a part.

    `varlen_attn`'s own gradient would take the log-sum-exp of these keys alone.
    """
    backward = import_module("torch.nn.attention.varlen")._varlen_attn_backward
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=lse_HQ.device)
    window = [-1, 0 if causal else -1]
    ends = queries.ends_N, keys.ends_N, queries.longest, keys.longest
    dq, dk, dv = backward(*tensors, lse_HQ.contiguous(), *ends, causal, no_dropout, scale, window)
    return dq, dk, dv
