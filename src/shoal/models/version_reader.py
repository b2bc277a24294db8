"""Reading versions of a run: whole files as they are, an adapter merged into the run's base and checked by its hash."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from shoal.errors import ModelError, WeightsError
from shoal.models.adapter_files import is_adapter, read_adapter
from shoal.models.merge import Base, MergedWeights
from shoal.models.weights import read_weights
from shoal.protocol.stores import WeightSource


class VersionReader:
    """Turns version directories into weights, whatever they are made of; the base is read once, when it is needed."""

    def __init__(self, source: WeightSource, dtype: str) -> None:
        """`source` is where version 0 comes from, `dtype` the number format of the run's weights."""
        self._source, self._dtype = source, dtype
        self._base: Base | None = None

    def read(self, folder: Path) -> Mapping[str, Tensor]:
        """The weights of a version that was fetched; a ModelError that names it if they are not what it says.

        An adapter is read into memory first: to fetch the base may release the version's own files.
        """
        if not is_adapter(folder):
            return read_weights(folder, self._dtype)
        adapter, merged = read_adapter(folder)
        base = self.base()
        if merged.base != base.root:
            raise ModelError(
                f"{folder}: is an adapter of base {merged.base[:12]}, this run's version 0 has root {base.root[:12]}; "
                "merge it into the model that it was trained on"
            )
        if merged.dtype != self._dtype:
            raise ModelError(f"{folder}: is an adapter of {merged.dtype} weights, model.dtype is {self._dtype!r}")
        weights = MergedWeights(base, adapter, str(folder))
        if (found := weights.root()) != merged.weights:
            raise ModelError(
                f"{folder}: merged weights have hash {found[:12]}, the version names {merged.weights[:12]}; the base "
                "model here or the adapter is damaged, or this machine adds wrongly"
            )
        return weights

    def base(self) -> Base:
        """Version 0, which adapters are merged into."""
        if self._base is None:
            version = self._source.version(0)
            if version is None:
                raise WeightsError("version 0, the base of this run's adapters, is missing; adapters cannot be merged")
            self._base = Base(version.root, read_weights(self._source.fetch(version), self._dtype))
        return self._base
