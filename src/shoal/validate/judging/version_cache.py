"""Version cache: the weights that files are computed with, the last few of them in memory."""

from collections import OrderedDict
from dataclasses import dataclass, field

from torch import Tensor

from shoal.models.load import Policy, read_weights
from shoal.protocol.stores import Version, WeightSource


@dataclass(slots=True)
class VersionCache:
    """Puts versions into a policy, one at a time; as many stay in memory as files of one step may be made with."""

    channel: WeightSource
    policy: Policy
    loaded: Version
    dtype: str
    size: int
    kept: OrderedDict[Version, dict[str, Tensor]] = field(default_factory=OrderedDict)

    def load(self, version: Version) -> None:
        """Makes `version` the one that files are computed with; a WeightsError or ModelError if it cannot be."""
        if version == self.loaded:
            return
        if version not in self.kept:
            self.kept[version] = read_weights(self.channel.fetch(version), self.dtype)
            while len(self.kept) > self.size:
                self.kept.popitem(last=False)
        self.policy.set_weights(self.kept[version], f"version {version.number}")
        self.loaded = version

    def before(self, version: Version) -> dict[str, Tensor] | None:
        """The weights of the version before this one, if they are still in memory."""
        return next((kept for known, kept in self.kept.items() if known.number == version.number - 1), None)
