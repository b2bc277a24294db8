"""vLLM's worker with faults that can be planted: the packed copy of a tied head, or one matrix, stays as it was."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.generate.vllm import worker_extension
from shoal.generate.vllm.worker_extension import WorkerExtension
from shoal.models.weights import read_weights

_PACK = worker_extension.pack_heads
_RELOAD = worker_extension.reload


class PlantedExtension(WorkerExtension):
    """The extension that is tested, and faults in it."""

    def plant_stale_head(self, planted: bool) -> None:
        setattr(worker_extension, "pack_heads", _forget if planted else _PACK)  # noqa: B010  not exported

    def plant_stale_matrix(self, name: str, folder: str, dtype: str) -> None:
        """What is loaded from now on keeps this matrix of the version in `folder`; an empty name ends it."""
        stale = {name: read_weights(Path(folder), dtype)[name]} if name else {}

        def reload(worker: Any, weights: Mapping[str, Tensor]) -> None:
            _RELOAD(worker, {**weights, **stale})

        setattr(worker_extension, "reload", reload)  # noqa: B010  not exported


def _forget(_model: Any) -> None:
    """What vLLM's own reload does with the copy."""
