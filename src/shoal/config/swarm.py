"""Tables of the coordinator, and of how much history is kept."""

from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.config.table import Positive, Table
from shoal.crypto.tls import Mode, is_served


class SwarmConfig(Table):
    """The coordinator: where it listens, where it stores its state, and which addresses have which role."""

    host: str = Field(
        "127.0.0.1", description="Address that the coordinator and the relay listen on; 0.0.0.0: all interfaces."
    )
    public: str = Field(
        "", description="Host name or address under which other machines reach this one; if empty, host."
    )
    port: int = Field(0, ge=0, le=65535, description="Port that the coordinator listens on; 0 picks a free one.")
    pages: Literal["loopback", "public", "off"] = Field(
        "loopback",
        description="Who may open the run's web pages: this machine alone, everybody who reaches swarm.host "
        "(docs/page.md lists what they see), or nobody.",
    )
    page_port: int = Field(0, ge=0, le=65535, description="Port of the web pages; 0 picks a free one.")
    tls: Mode = Field(
        "auto",
        description="Whether the coordinator and the relay serve https; auto: unless they listen on loopback only.",
    )
    tls_cert: str = Field(
        "",
        description="PEM file with a certificate from a public authority; if empty, a self-signed one, which the "
        "address in URL#0xADDRESS vouches for.",
    )
    tls_key: str = Field("", description="PEM file with the private key of tls_cert.")
    database: str = Field(
        "",
        description="postgresql://USER@HOST/NAME, with the password in the environment (PGPASSWORD, PGPASSFILE); "
        "if empty, a SQLite file in the run's directory.",
    )
    store: str = Field(
        "", description="Where uploads are stored: s3://BUCKET or a directory; if empty, in the run's directory."
    )
    store_options: dict[str, str] = Field(
        default_factory=dict,
        description="Options of the object store, such as endpoint and region; secrets belong in the environment.",
    )
    trainer: str = Field("", description="Address of the trainer; if empty, that of the key in RUN/keys.")
    validators: list[str] = Field(
        default_factory=list, description="Addresses whose verdicts count; if empty, that of the key in RUN/keys."
    )
    origin: str = Field("", description="Address that signs versions; if empty, the run's own origin.")
    relays: list[str] = Field(default_factory=list, description="URLs from which versions can be fetched.")
    allow: list[str] = Field(
        default_factory=list,
        description="Allow-list of addresses that may join, beside nodes with an invite; if empty, anyone may, unless "
        "the run is closed.",
    )
    closed: bool = Field(
        False, description="Whether only nodes of the allow-list and nodes with an invite (shoal invite) may join."
    )
    leases: Positive = Field(
        4,
        description="Leases that a node may hold at once. More than one needs accepted files, more than three stake "
        "(ledger.stake_per_lease).",
    )
    probation_files: Positive = Field(
        4,
        description="Files that may await a verdict per node on probation (fewer accepted files than "
        "audit.probation); all new nodes of one network share as many.",
    )
    max_nodes: Positive = Field(
        10_000,
        description="Largest number of nodes; beyond it, a lost node without an accepted file makes room for a "
        "new one.",
    )
    heartbeat_s: float = Field(10.0, ge=0.1, le=30, description="Seconds between a node's heartbeats.")
    requests_per_s: float = Field(
        100.0,
        ge=1,
        description="Rate limit (token bucket) per node, and per IP address for all strangers together; bursts "
        "of twenty times as many.",
    )

    @property
    def is_closed(self) -> bool:
        """Whether a stranger needs an invite."""
        return self.closed or bool(self.allow)

    @property
    def public_host(self) -> str:
        """The host in URLs that others are told; loopback for a run that listens everywhere and has no name."""
        host = self.public or {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host

    @property
    def scheme(self) -> Literal["http", "https"]:
        """What coordinator and relay speak."""
        return "https" if is_served(self.tls, self.host) else "http"

    @model_validator(mode="after")
    def _has_both(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key: give both, or neither")
        return self


class KeepConfig(Table):
    """How much history is kept on disk."""

    versions: Positive = Field(5, description="Policy versions kept in addition to the base model.")
    checkpoints: Positive = Field(2, description="Checkpoints kept.")
    rollouts: int = Field(
        0,
        ge=0,
        description="Trained steps whose rollouts are kept, and those since the last whole checkpoint; 0 keeps all. An "
        "accepted file that is removed before its challenge window closes, up to 2 * (ledger.patience + ledger.window) "
        "+ 2 steps, can no longer be ruled on.",
    )
    rejected_mib: int = Field(
        1024,
        ge=0,
        description="MiB of rejected files that the coordinator keeps while they can be challenged.",
    )
    evidence: Positive = Field(
        50,
        description="Steps for which evidence bundles are kept; longer if a challenge may take longer.",
    )
    evidence_versions: int = Field(
        1,
        ge=0,
        description="Versions of blamed files whose weights are kept after nobody can challenge the verdict any more. "
        "Until then all are.",
    )
