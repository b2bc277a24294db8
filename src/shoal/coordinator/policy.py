"""The coordinator's terms: the part of a run's config that it enforces, and which address may do what."""

from dataclasses import dataclass

from shoal import clocks
from shoal.config import RunConfig
from shoal.protocol.spans import span_tokens

# For so many leases of a new node a draw that was let go is kept for its node and network, and counts against it: a day
# at 240 s, in which the slowest node that works all the time does as many files. Long automatic ones: fewer.
KEPT_LEASES = 360
KEPT_LONG_LEASES = 24
DAY_S = 86_400.0


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
    """What a lease of a new node lasts."""
    group_tokens: int
    """Most tokens that are generated for a group; 0 where all leases last as long as a new node's."""
    trainer: str
    """Reads accepted files, announces versions, forgets old steps."""
    validators: frozenset[str]
    """Read files, judge them, ban nodes."""
    quorum: int
    """Equal votes of validators that decide on a file."""
    seats: int
    """Validators that judge a file if all are on time: the one that decides, or as many as are drawn to vote."""
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
    span_tokens: int = 0
    """Tokens of a span of an answer; 0 where answers keep their version."""
    max_new_tokens: int = 0
    closed: bool = False
    """Whether others than those in `allow` need an invite."""
    tables: int = 0
    """Versions whose tables of weights are kept; 0 where all tasks are asked alike and there are none."""

    @property
    def kept_s(self) -> float:
        """Seconds for which a draw that was let go is kept for its node and network."""
        kept_s = KEPT_LEASES * self.lease_s
        return min(kept_s, max(DAY_S, KEPT_LONG_LEASES * self.lease_s)) if self.group_tokens else kept_s

    def lease_for(self, groups: int, tokens: int, busy_s: float, given: int, beside: int = 0) -> float:
        """Seconds that a lease lasts: for so many groups, for a node that took `busy_s` for the `tokens` that it has
        had accepted, the `given`-th time that its draw is given, beside so many other leases that the node holds.

        A node's speed is that of full submissions: fewer answers side by side are slower in proportion, so a lease for
        fewer groups lasts as long as a full one. And it is that of all its leases together, so each of several has the
        time of all.
        """
        if not self.group_tokens:
            return self.lease_s
        speed = tokens / busy_s if tokens and busy_s else None
        wide = groups if speed is None else max(groups, self.groups_per_submission)
        return clocks.lease_s((1 + beside) * wide * self.group_tokens, speed, given)

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
            lease_s=config.new_lease_s,
            group_tokens=0 if config.workers.lease_s else config.sampling.group_size * config.sampling.max_new_tokens,
            trainer=trainer,
            validators=validators,
            quorum=config.ledger.quorum,
            seats=config.ledger.drawn if config.ledger.quorum > 1 else 1,
            allow=frozenset(address.lower() for address in swarm.allow) or None,
            closed=swarm.is_closed,
            probation=config.audit.probation,
            probation_files=swarm.probation_files,
            leases=swarm.leases,
            max_nodes=swarm.max_nodes,
            max_upload=config.max_file_bytes,
            heartbeat_s=swarm.heartbeat_s,
            requests_per_s=swarm.requests_per_s,
            profiles=tuple(config.audit.profiles),
            span_tokens=span_tokens(config.sampling.max_new_tokens) if config.workers.in_flight else 0,
            max_new_tokens=config.sampling.max_new_tokens,
            tables=0 if config.sampler.kind == "uniform" else config.keep.versions,
        )
