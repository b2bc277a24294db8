"""Attention of a packed row, one implementation per kind of device; this is the only place that chooses between them.

| device | row | kernel |
|---|---|---|
| CPU | `padded.PaddedRow` | PyTorch's flash attention for CPUs |
| a GPU with flash attention, 16-bit numbers | `varlen.VarlenRow` | `torch.nn.attention.varlen` |
| everything else: MPS, float32 on a GPU, wide heads | `sdpa.SdpaRow` | `scaled_dot_product_attention` |
"""

from typing import Protocol

from torch import Tensor

from shoal.devices import has_flash_attention
from shoal.models.kernels.padded import PaddedRow
from shoal.models.kernels.sdpa import SdpaRow
from shoal.models.kernels.segments import Segments
from shoal.models.kernels.varlen import VarlenRow


class Row(Protocol):
    """A packed row on one device."""

    def attend(self, q_HTD: Tensor, k_hTD: Tensor, v_hTD: Tensor, scale: float) -> Tensor:
        """Attention output as tokens x heads x head size of v, with gradient."""
        ...


def row_on(segments: Segments, q_HTD: Tensor, v_hTD: Tensor) -> Row:
    """The row of these segments for the device and the numbers of a query."""
    device = q_HTD.device
    if device.type == "cpu":
        return PaddedRow(segments)
    if has_flash_attention(device, q_HTD.dtype, max(q_HTD.shape[-1], v_hTD.shape[-1])):
        return VarlenRow(segments, device)
    return SdpaRow(segments, device)
