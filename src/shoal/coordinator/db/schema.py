"""Database schema: the same tables on SQLite and PostgreSQL."""

from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

SCHEMA_VERSION = "11"
metadata = MetaData()


class LeaseStatus(StrEnum):
    """What became of a lease. There is a file for those in `WITH_FILE` only."""

    OPEN = "open"
    USED = "used"
    REFUSED = "refused"
    """Used, and the file was rejected for something that its maker can bring about; its draw waits for a newer version,
    to be given again."""
    REDONE = "redone"
    """Used, and the file was rejected so; its draw was given again."""
    EXPIRED = "expired"
    """Let go; its draw waits to be given again."""
    AGAIN = "again"
    """Let go; its draw was given again to its node, or to another of its network."""
    LOST = "lost"
    """Let go; its draw was given to another network, or given up."""
    RETURNED = "returned"
    """Handed back by its node; its draw waits to be given again."""
    RETAKEN = "retaken"
    """Handed back by its node; its draw was given again to that node, or to another of its network."""
    VOID = "void"
    """Ended by nobody's fault: its version was taken back, or its step was over and its draw was given again."""


WITH_FILE = (LeaseStatus.USED, LeaseStatus.REFUSED, LeaseStatus.REDONE)

facts = Table(
    "facts",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", Text, nullable=False),
)

nodes = Table(
    "nodes",
    metadata,
    Column("address", String(42), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("name", String(64), nullable=False),
    Column("url", String(200), nullable=False),
    Column("joined", Double, nullable=False),
    Column("seen", Double, nullable=False),
    Column("state", String(16), nullable=False),
    Column("since", Double, nullable=False),  # when it came into this state
    Column("reason", Text, nullable=False),
    Column("doing", String(200), nullable=False),
    Column("waits_on", String(64), nullable=False),
    Column("version", Integer),
    Column("accepted", Integer, nullable=False),
    Column("rejected", Integer, nullable=False),
    Column("samples", BigInteger, nullable=False),  # in accepted files, as the judges counted them
    Column("tokens", BigInteger, nullable=False),
    Column("busy_s", Double, nullable=False),  # in which it had leases that were accepted in the end
    Column("refused", Text, nullable=False),  # the last rejected file and why
    Column("expired", Integer, nullable=False),  # leases in a row
    Column("abandoned", Integer, nullable=False),  # leases in all that it let expire
    Column("owed", Integer, nullable=False),  # draws that it let go or spoiled, and that nobody near it made good
    Column("network", String(64), nullable=False),  # where it asked for a lease last; see `rate_limit.neighbours_of`
    Column("profile", String(180), nullable=False),  # how it says that it computes
    Index("nodes_by_seen", "state", "seen"),
    Index("nodes_by_network", "network"),
)

versions = Table(
    "versions",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("root", String(128), nullable=False),
    Column("announced", Double, nullable=False),
)

# The table that leases draw tasks by, one per version; of old versions only the hash is kept.
weights = Table(
    "weights",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("sha256", String(64), nullable=False),
    Column("signed", Text),
)

leases = Table(
    "leases",
    metadata,
    Column("step", Integer, nullable=False),
    Column("submission", Integer, nullable=False),
    Column("node", String(42), nullable=False),
    Column("groups", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("beacon", BigInteger, nullable=False),
    Column("draw_of", String(24), nullable=False),  # the lease that had this draw first, if it was let go
    Column("given", Integer, nullable=False),  # how often this draw was given, this time included
    Column("issued", Double, nullable=False),
    Column("deadline", Double, nullable=False),  # as signed
    Column("until", Double, nullable=False),  # the deadline, and the time for which the coordinator was down
    Column("status", String(8), nullable=False),  # a LeaseStatus
    Column("network", String(64), nullable=False),  # where it was asked for
    PrimaryKeyConstraint("step", "submission"),
    Index("leases_of_node", "node", "status"),
    Index("leases_by_end", "status", "until"),
    Index("leases_of_network", "network", "status", "until"),
    Index("leases_of_draw", "draw_of"),
)

submissions = Table(
    "submissions",
    metadata,
    Column("step", Integer, nullable=False),
    Column("submission", Integer, nullable=False),
    Column("node", String(42), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("groups", Integer, nullable=False),
    Column("signal", Integer, nullable=False),  # the node's claim, which the validator checks
    Column("received", Double, nullable=False),
    Column("kept", Boolean, nullable=False),  # whether its bytes are still there
    Column("accept", Boolean),  # None until there is a verdict
    Column("verdict", Text),
    Column("judge", String(42)),
    Column("judged", Double),
    Column("tokens", BigInteger, nullable=False),  # as its first judge counted them
    Column("entered", Boolean, nullable=False),  # whether the ledger was told, or is about to be
    Column("network", String(64), nullable=False),  # that of its lease
    Column("ordinal", Integer, nullable=False),  # its place among the files of its node, from 1 on
    PrimaryKeyConstraint("step", "submission"),
    Index("submissions_of_node", "node", "accept"),
)

nonces = Table(
    "nonces",
    metadata,
    Column("node", String(42), nullable=False),
    Column("nonce", String(32), nullable=False),
    Column("time", Double, nullable=False),
    PrimaryKeyConstraint("node", "nonce"),
    Index("nonces_by_time", "time"),
)

# What the ledger is yet to be told, written with the change itself so that neither is without the other.
outbox = Table(
    "outbox",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("kind", String(16), nullable=False),
    Column("body", Text, nullable=False),
)

votes = Table(
    "votes",
    metadata,
    Column("step", Integer, nullable=False),
    Column("submission", Integer, nullable=False),
    Column("judge", String(42), nullable=False),
    Column("accept", Boolean, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    PrimaryKeyConstraint("step", "submission", "judge"),
)

# What validators that share the files tell each other of those that they judged, in the order of their verdicts.
notes = Table(
    "notes",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("step", Integer, nullable=False),
    Column("submission", Integer, nullable=False),
    Column("judge", String(42), nullable=False),
    Column("body", Text, nullable=False),
)

# Numeric evidence against nodes, as of the last verdict that had some; it outlives a node that is forgotten.
evidence = Table(
    "evidence",
    metadata,
    Column("node", String(42), primary_key=True),
    Column("nats", Double, nullable=False),
    Column("files", Integer, nullable=False),  # that were weighed
    Column("limit_nats", Double, nullable=False),  # from so much on a node is banned
)

# Validators that ask for a node to be banned; a quorum of them is needed.
bans = Table(
    "bans",
    metadata,
    Column("node", String(42), nullable=False),
    Column("judge", String(42), nullable=False),
    Column("rates", Integer),  # version of the honest rates that speak against it; none for other reasons
    PrimaryKeyConstraint("node", "judge"),
)

# Invites that were used, and those that were revoked, whose node is empty.
invites = Table(
    "invites",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("node", String(42), nullable=False),
    Column("at", Double, nullable=False),
    Index("invites_of_node", "node"),
)

# Leases whose files the planter hands in to see who judges them right; nobody but the coordinator is told of them.
plants = Table(
    "plants",
    metadata,
    Column("step", Integer, nullable=False),
    Column("submission", Integer, nullable=False),
    Column("letter", String(1), nullable=False),  # a: known to be good, r: known to be bad
    PrimaryKeyConstraint("step", "submission"),
)

# What the answers of a lease go on with, where a run lets them change versions while they grow.
span_leases = Table(
    "span_leases",
    metadata,
    Column("step", Integer, nullable=False),
    Column("submission", Integer, nullable=False),
    Column("first", Integer, nullable=False),  # its first token
    Column("version", Integer, nullable=False),
    Column("weights", String(64), nullable=False),  # the version's root hash when it was given
    Column("beacon", BigInteger, nullable=False),
    PrimaryKeyConstraint("step", "submission", "first"),
)
