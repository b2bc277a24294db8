"""A signed lease: the lease and the root hash of the version that it names."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from shoal.config import RunConfig
from shoal.crypto.keys import Key, signer_of
from shoal.crypto.signed import canonical, check_signed, message
from shoal.errors import RolloutError
from shoal.protocol.lease import Lease

DOMAIN = "shoal lease 3"


@dataclass(frozen=True, slots=True)
class SignedLease:
    """Permission that anyone can check: who gave it, to whom, for what."""

    lease: Lease
    root: str
    """Root hash of the version that it names, as it is announced; empty if the version was taken back."""
    signature: str

    @classmethod
    def sign(cls, lease: Lease, root: str, key: Key) -> Self:
        return cls(lease, root, key.sign(_message(lease, root)))

    def check(self, coordinator: str) -> None:
        """A RolloutError unless the coordinator signed it."""
        said = _message(self.lease, self.root)
        check_signed(said, self.signature, coordinator, str(self.lease), RolloutError)

    @property
    def signer(self) -> str:
        """Who signed it."""
        return signer_of(_message(self.lease, self.root), self.signature)

    def check_fits(self, config: RunConfig) -> None:
        """A RolloutError unless it is one that the run's own config allows for: a lease says how much is computed."""
        lease, max_groups = self.lease, config.workers.groups_per_submission
        if not 1 <= lease.groups <= max_groups:
            raise RolloutError(f"{lease}: is for {lease.groups} groups, a file of this run has 1 to {max_groups}")
        oldest = max(0, lease.step - config.async_level)
        if not oldest <= lease.version <= lease.step < config.steps or lease.submission < 0:
            raise RolloutError(
                f"{lease}: is for version {lease.version}, a run of {config.steps} steps takes {oldest}..{lease.step}"
            )

    def root_of(self, version: int) -> str | None:
        """The root hash of the version that it names; None of any other."""
        return (self.root or None) if version == self.lease.version else None

    def to_tree(self) -> dict[str, Any]:
        return {
            "lease": asdict(self.lease),
            "root": self.root,
            "signature": self.signature,
        }

    @classmethod
    def from_tree(cls, tree: Any) -> Self:
        try:
            lease = Lease.from_json(json.dumps(tree["lease"]))
            return cls(lease, str(tree["root"]), str(tree["signature"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RolloutError(f"not a signed lease: {str(tree)[:80]!r} ({error})") from error


def _message(lease: Lease, root: str) -> bytes:
    return message(DOMAIN, canonical({"lease": asdict(lease), "root": root}))
