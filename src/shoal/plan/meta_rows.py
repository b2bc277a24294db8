"""Packed rows on the meta device that allocate what attention on a CPU or on a GPU allocates, and compute nothing."""

from collections.abc import Sequence

from torch import Tensor

from shoal.devices import META
from shoal.models.attention import Packed, SharedPrompt
from shoal.models.kernels import Row
from shoal.models.kernels.padded import PaddedRow
from shoal.models.kernels.segments import Segments
from shoal.models.kernels.varlen import VarlenRow


class MetaPacked(Packed):
    """A packed row whose attention is that of another device than the one its tensors are on."""

    def __init__(self, families: Sequence[SharedPrompt | int], *, on_cpu: bool) -> None:
        super().__init__(families, META)
        self._row: Row = _MetaPaddedRow(self.segments) if on_cpu else VarlenRow(self.segments, META)

    def attend(self, layer: int, q_1HTD: Tensor, k_1hTD: Tensor, v_1hTD: Tensor, scale: float) -> Tensor:
        del layer
        return self._row.attend(q_1HTD[0], k_1hTD[0], v_1hTD[0], scale).unsqueeze(0)


class _MetaPaddedRow(PaddedRow):
    def __init__(self, segments: Segments) -> None:
        super().__init__(segments)
        self._index_SL = [index_SL.to(META) for index_SL in self._index_SL]
        self._padding_SL = [None if padding_SL is None else padding_SL.to(META) for padding_SL in self._padding_SL]
        self._order_T = self._order_T.to(META)
