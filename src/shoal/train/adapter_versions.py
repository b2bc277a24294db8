"""Versions of a run that trains adapters: each is an adapter with the hash of the weights that it makes of the base."""

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from shoal.config import LoraConfig
from shoal.models.adapter_files import Merged, write_adapter
from shoal.models.lora import adapter_of
from shoal.models.merge import MergedWeights
from shoal.models.version_reader import VersionReader
from shoal.rundir import RunDir
from shoal.train.export import write_model


class AdapterVersions:
    """Writes adapters (`Policy.trained_weights`) as versions of a run, each merged once to know the result's hash."""

    def __init__(self, run: RunDir, config: LoraConfig) -> None:
        self._run, self._config = run, config
        self._reader = VersionReader(run.channel(), run.config.model.dtype)

    def writer(self, folder: Path, adapters: Mapping[str, Tensor]) -> Callable[[], None]:
        """Copies the adapters; what it gives writes the copy, while training goes on."""
        adapter = adapter_of(adapters, self._config)

        def write() -> None:
            base = self._reader.base()
            weights = MergedWeights(base, adapter, str(folder)).root()
            write_adapter(folder, adapter, Merged(base=base.root, dtype=self._run.config.model.dtype, weights=weights))

        return write

    def write_model(self, folder: Path, adapters: Mapping[str, Tensor]) -> None:
        """Writes the base with the adapters merged into it as an ordinary model directory."""
        weights = MergedWeights(self._reader.base(), adapter_of(adapters, self._config), str(folder))
        write_model(folder, self._run.base_model, weights, self._run.config.model.dtype)
