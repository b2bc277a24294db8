"""Version cache: the weights that files are computed with, the last few of them as maps of their files.

A version that is not in the policy takes no memory: its tensors are read from their files when they are used, one by
one. So a validator holds one copy of the model, whatever number of versions files are made with.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import WeightsError
from shoal.models.load import Policy
from shoal.models.version_reader import VersionReader
from shoal.protocol.stores import Version, WeightSource
from shoal.validate.numerics.alternatives import Weights


@dataclass(slots=True)
class VersionCache:
    """Puts versions into a policy, one at a time; as many stay mapped as files of one step may be made with."""

    channel: WeightSource
    policy: Policy
    loaded: Version
    dtype: str
    size: int
    on_load: Callable[[Version, Path], None] | None = None
    """Told of each version that is loaded, and its directory."""
    kept: OrderedDict[Version, Weights] = field(default_factory=OrderedDict)
    _reader: VersionReader = field(init=False)
    _told: Version = field(init=False)

    def __post_init__(self) -> None:
        self._told = self.loaded
        self._reader = VersionReader(self.channel, self.dtype)

    def load(self, version: Version) -> None:
        """Makes `version` the one that files are computed with; a WeightsError or ModelError if it cannot be.

        Policy and listener have one version each: where one has it and the other failed to take it, the next call makes
        up for that, whichever version it is for.
        """
        if version != self.loaded:
            self.policy.set_weights(self._weights(version), f"version {version.number}")
            self.loaded = version
        if version != self._told and self.on_load is not None:
            self.on_load(version, self.channel.fetch(version))
            self._told = version

    def own(self) -> Weights | None:
        """The weights of the version that is loaded, in their files; None if nobody has these any more."""
        return self._if_there(self.loaded)

    def before(self, version: Version) -> Weights | None:
        """The weights of the version before this one, in their files; None if nobody has them any more.

        A channel keeps the files of what was fetched last. Those that the listener was told of are fetched again, for
        it may not have read them yet; the version before needs no more than its maps.
        """
        older = self.channel.version(version.number - 1) if version.number else None
        if older is None:
            return None
        is_kept = older in self.kept
        found = self._if_there(older)
        if self.on_load is not None and not is_kept:
            with suppress(WeightsError):  # the listener copes with files that are gone
                self.on_load(self._told, self.channel.fetch(self._told))
        return found

    def _if_there(self, version: Version) -> Weights | None:
        try:
            return self._weights(version)
        except WeightsError:  # it is not needed to judge the file, only to compare it
            return None

    def _weights(self, version: Version) -> Weights:
        if version not in self.kept:
            self.kept[version] = self._reader.read(self.channel.fetch(version))
            while len(self.kept) > self.size:
                self.kept.popitem(last=False)
        return self.kept[version]
