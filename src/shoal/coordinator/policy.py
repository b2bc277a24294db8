"""The coordinator's terms: the part of a run's config that it enforces, and which address may do what."""

from dataclasses import dataclass

from shoal.config import RunConfig
from shoal.protocol.size_limits import max_file_bytes


@dataclass(frozen=True, slots=True)
class Terms:
    """Everything that leases, uploads and verdicts are decided by."""

    run: str
    steps: int
    async_level: int
    groups_per_step: int
    max_groups: int
    online_filter: bool
    groups_per_submission: int
    lease_s: float
    trainer: str
    """Reads accepted files, announces versions, forgets old steps."""
    validators: frozenset[str]
    """Read files, judge them, ban nodes."""
    quorum: int
    """Equal votes of validators that decide on a file."""
    allow: frozenset[str] | None
    """Who else may join; anybody if None."""
    probation: int
    """Accepted files after which a node is trusted with more leases at once."""
    probation_files: int
    """Files without a verdict that such a node may have: a node that cheats from the start wastes only these."""
    leases: int
    max_nodes: int
    max_upload: int
    heartbeat_s: float
    requests_per_s: float
    profiles: tuple[str, ...] = ()
    """Patterns of profiles that may join; all if there is none."""
    tables: int = 0
    """Versions whose tables of weights are kept; 0 where all tasks are asked alike and there are none."""

    @classmethod
    def of(cls, config: RunConfig, trainer: str, validators: frozenset[str]) -> "Terms":
        swarm = config.swarm
        return cls(
            run=config.name,
            steps=config.steps,
            async_level=config.async_level,
            groups_per_step=config.train.groups_per_step,
            max_groups=config.train.max_groups,
            online_filter=config.train.online_filter,
            groups_per_submission=config.workers.groups_per_submission,
            lease_s=config.workers.lease_s,
            trainer=trainer,
            validators=validators,
            quorum=config.ledger.quorum,
            allow=frozenset(address.lower() for address in swarm.allow) or None,
            probation=config.audit.probation,
            probation_files=swarm.probation_files,
            leases=swarm.leases,
            max_nodes=swarm.max_nodes,
            max_upload=max_file_bytes(config),
            heartbeat_s=swarm.heartbeat_s,
            requests_per_s=swarm.requests_per_s,
            profiles=tuple(config.audit.profiles),
            tables=0 if config.sampler.kind == "uniform" else config.keep.versions,
        )
