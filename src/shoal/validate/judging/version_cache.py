"""Version cache: the weights that files are computed with, the last few of them in memory."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from shoal.errors import WeightsError
from shoal.models.load import Policy
from shoal.models.version_reader import VersionReader
from shoal.protocol.stores import Version, WeightSource


@dataclass(slots=True)
class VersionCache:
    """Puts versions into a policy, one at a time; as many stay in memory as files of one step may be made with."""

    channel: WeightSource
    policy: Policy
    loaded: Version
    dtype: str
    size: int
    kept: OrderedDict[Version, Mapping[str, Tensor]] = field(default_factory=OrderedDict)
    _reader: VersionReader = field(init=False)

    def __post_init__(self) -> None:
        self._reader = VersionReader(self.channel, self.dtype)

    def load(self, version: Version) -> None:
        """Makes `version` the one that files are computed with; a WeightsError or ModelError if it cannot be."""
        if version == self.loaded:
            return
        self.policy.set_weights(self._weights(version), f"version {version.number}")
        self.loaded = version

    def before(self, version: Version) -> Mapping[str, Tensor] | None:
        """The weights of the version before this one; None if nobody has them any more."""
        older = self.channel.version(version.number - 1) if version.number else None
        if older is None:
            return None
        try:
            return self._weights(older)
        except WeightsError:  # it is not needed to judge the file, only to compare it
            return None

    def _weights(self, version: Version) -> Mapping[str, Tensor]:
        if version not in self.kept:
            self.kept[version] = self._reader.read(self.channel.fetch(version))
            while len(self.kept) > self.size:
                self.kept.popitem(last=False)
        return self.kept[version]
