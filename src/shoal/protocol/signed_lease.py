"""A signed lease: the lease and the root hash of every version that it allows."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from shoal.config import RunConfig
from shoal.crypto.keys import Key
from shoal.crypto.signed import canonical, check_signed, message
from shoal.errors import RolloutError
from shoal.protocol.lease import Lease

DOMAIN = "shoal lease 2"


@dataclass(frozen=True, slots=True)
class SignedLease:
    """Permission that anyone can check: who gave it, to whom, for what."""

    lease: Lease
    versions: dict[int, str]
    """Root hashes of the allowed versions that are published so far."""
    signature: str

    @classmethod
    def sign(cls, lease: Lease, versions: dict[int, str], key: Key) -> Self:
        return cls(lease, versions, key.sign(_message(lease, versions)))

    def check(self, coordinator: str) -> None:
        """A RolloutError unless the coordinator signed it."""
        said = _message(self.lease, self.versions)
        check_signed(said, self.signature, coordinator, str(self.lease), RolloutError)

    def check_fits(self, config: RunConfig) -> None:
        """A RolloutError unless it is one that the run's own config allows for: a lease says how much is computed."""
        lease, max_groups = self.lease, config.workers.groups_per_submission
        if not 1 <= lease.groups <= max_groups:
            raise RolloutError(f"{lease}: is for {lease.groups} groups, a file of this run has 1 to {max_groups}")
        if not 0 <= lease.oldest <= lease.newest == lease.step < config.steps or lease.submission < 0:
            raise RolloutError(
                f"{lease}: allows versions {lease.oldest}..{lease.newest}, this run has {config.steps} steps"
            )

    def to_tree(self) -> dict[str, Any]:
        return {
            "lease": asdict(self.lease),
            "versions": {str(number): root for number, root in self.versions.items()},
            "signature": self.signature,
        }

    @classmethod
    def from_tree(cls, tree: Any) -> Self:
        try:
            lease = Lease.from_json(json.dumps(tree["lease"]))
            versions = {int(number): str(root) for number, root in tree["versions"].items()}
            return cls(lease, versions, str(tree["signature"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RolloutError(f"not a signed lease: {str(tree)[:80]!r} ({error})") from error


def _message(lease: Lease, versions: dict[int, str]) -> bytes:
    allowed = {str(number): root for number, root in versions.items()}
    return message(DOMAIN, canonical({"lease": asdict(lease), "versions": allowed}))
