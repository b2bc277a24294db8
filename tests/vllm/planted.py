"""vLLM's worker with a fault that can be planted: the packed copy of a tied head stays as it was."""

from typing import Any

from shoal.generate.vllm import worker_extension
from shoal.generate.vllm.worker_extension import WorkerExtension

_PACK = worker_extension.pack_heads


class PlantedExtension(WorkerExtension):
    """The extension that is tested, and a fault in it."""

    def plant_stale_head(self, planted: bool) -> None:
        setattr(worker_extension, "pack_heads", _forget if planted else _PACK)  # noqa: B010  not exported


def _forget(_model: Any) -> None:
    """What vLLM's own reload does with the copy."""
