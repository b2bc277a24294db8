"""Request and response types of the coordinator's API; the OpenAPI description is generated from them."""

import unicodedata
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from shoal.errors import ConfigError
from shoal.protocol.judge_note import JudgeNote
from shoal.protocol.profile import MAX_NAME, Profile
from shoal.protocol.run_card import Address
from shoal.tasks.difficulty import Table


def _plain(text: str) -> str:
    """No control characters, nor those that turn text around: what is stored is shown, and no database takes NUL."""
    if any(character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cf") for character in text):
        raise ValueError("must hold no control characters")
    return text


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be Unicode text; it holds half a character") from None
    return text


def _profile(name: str) -> str:
    if name:
        try:
            Profile.parse(name)
        except ConfigError as error:
            raise ValueError(str(error)) from None
    return name


Plain = Annotated[str, AfterValidator(_encodable), AfterValidator(_plain)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Number = Annotated[int, Field(ge=0, lt=10**9)]
Nats = Annotated[float, Field(ge=-1e9, le=1e9)]
Url = Annotated[str, Field(max_length=200, pattern=r"^$|^https?://[A-Za-z0-9.:\[\]_/-]{1,190}$")]
Root = Annotated[str, Field(pattern=r"^[0-9a-f]{8,128}$")]
ProfileName = Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_profile)]
Role = Literal["worker", "validator", "trainer", "relay"]
Value = float | int | Annotated[Plain, Field(max_length=4000)] | None


class _In(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class JoinIn(_In):
    role: Role
    name: Annotated[Plain, Field(max_length=64)] = ""
    url: Url = Field("", description="Where a relay serves; it is then part of the run card.")
    profile: ProfileName = Field(
        "", description="How a worker computes: hardware/engine/attention/dtype/tpN; some runs admit only some."
    )
    invite: Annotated[str, Field(max_length=200, pattern=r"^[0-9A-Za-z_.-]*$")] = Field(
        "", description="Admits a node to a closed run, once."
    )


class HeartbeatIn(_In):
    doing: Annotated[Plain, Field(max_length=200)] = ""
    waits_on: Annotated[Plain, Field(max_length=64)] = Field("", description="Role or node that it waits for.")
    version: Number | None = Field(None, description="Newest policy version that it has.")


class LeaseIn(_In):
    version: Number = Field(description="Newest policy version that the node has.")
    holding: list[Annotated[tuple[Number, Number], Field(strict=False)]] = Field(
        default_factory=list,
        max_length=64,
        description="Leases, as step and submission, that the node works on; others of its own it gets again.",
    )


class SpanIn(_In):
    version: Number = Field(description="The version that the node would go on with.")


class UploadIn(_In):
    sha256: Sha256
    size: int = Field(ge=0, le=1 << 40)
    signal: Number = Field(description="Groups in the file that have signal.")


class UploadOut(BaseModel):
    url: str | None = Field(description="PUT the file there, then say that it is done; null: PUT it to /v1/files.")
    done: bool = Field(description="Whether these bytes are here already.")


class FindingIn(_In):
    check: Annotated[Plain, Field(max_length=100)]
    rule: Annotated[Plain, Field(max_length=2000)]
    claimed: Value
    found: Value
    sample: Number | None = None


class NumbersIn(_In):
    nats: Nats = Field(description="Evidence against the file.")
    tokens: Number = Field(description="Tokens that were computed again.")
    strongest: Annotated[Plain, Field(max_length=100)] = Field(description="The bet that won most.")
    node_nats: Nats = Field(description="Evidence against the node, over all of its files that were weighed.")
    node_files: Number
    limit: Nats = Field(gt=0, description="From so much evidence on a node is banned.")
    rates: Number | None = Field(None, description="Version of the honest rates that it was weighed by.")


class VerdictIn(_In):
    accept: bool
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = Field(
        description="Of the bytes that were judged; empty only for a rejected file that could not be read."
    )
    audited: bool
    finding: FindingIn | None = None
    evidence: Annotated[Plain, Field(max_length=500)] = ""
    samples: Number = Field(0, description="Answers in an accepted file.")
    tokens: Number = Field(0, description="Generated tokens in the file.")
    numbers: NumbersIn | None = Field(None, description="Numeric evidence, in bfloat16 runs.")
    note: JudgeNote | None = Field(None, description="For the validators that share the files with this one.")


class VersionIn(_In):
    root: Root = Field(description="Root hash of the version's content.")
    table: Table | None = Field(None, description="What tasks are drawn by, in runs that draw by weight.")


class BanIn(_In):
    reason: Annotated[Plain, Field(min_length=1, max_length=4000)]
    rates: int | None = Field(
        None,
        ge=0,
        lt=1 << 31,
        description="Version of the honest rates that speak against the node; none if it is banned for other reasons.",
    )


class Problem(BaseModel):
    """Why a request was refused."""

    error: str = Field(description="A code for programs.")
    reason: str = Field(description="For people: the thing, its value, the rule, the fix.")


class Done(BaseModel):
    changed: bool = Field(description="False if everything was as asked already.")


class JoinOut(BaseModel):
    address: Address
    heartbeat_s: float


class InviteOut(BaseModel):
    id: str
    node: str = Field(description="Who used it; empty if it was revoked.")
    at: float = Field(description="When, in seconds since 1970.")


class InviteList(BaseModel):
    invites: list[InviteOut]


class OrderOut(BaseModel):
    do: Literal["work", "wait", "stop"]
    reason: str
    state: str
    version: int | None
    next_s: float
    accepted: int = Field(description="Files of the node that were accepted.")
    rejected: int
    refused: str = Field(description="The last of its files that was rejected, as STEP/NUMBER, and why.")
    card: str = Field(description="Changes when the run card does, as when a relay joins.")
    time: float = Field(description="The coordinator's clock, in seconds since 1970.")


class LeaseOut(BaseModel):
    lease: dict[str, Any] | None = Field(
        description="The lease, the root hash of its version and the coordinator's signature; null if there is none."
    )
    reason: str = Field("", description="Why there is none.")
    retry_s: float = Field(0.0, description="When to ask again if nothing else happens.")


class SpanOut(BaseModel):
    first: int = Field(description="The span's first token in every answer of the lease.")
    version: int = Field(description="The version that draws it.")
    weights: Sha256 = Field(description="Root hash of that version.")
    beacon: int = Field(description="Fixes the span's noise, with the lease's seed.")
    signature: str = Field(description="The coordinator's, over the lease and all of this.")


class FiledOut(BaseModel):
    lease: dict[str, Any]
    sha256: Sha256
    size: int
    record: int = Field(1, description="What its node has shown: 2 that it works, 1 nothing yet, 0 that it does not.")
    ordinal: int = Field(0, description="Which of its node's files this is, from 1 on.")


class FiledList(BaseModel):
    files: list[FiledOut]


class CountOut(BaseModel):
    seen: int
    signal: int
    leased: int


class NewestOut(BaseModel):
    newest: int | None = Field(description="Number of the newest policy version; null before there is one.")


class PlaceOut(BaseModel):
    step: int
    submission: int


class HandedBack(BaseModel):
    leases: list[PlaceOut] = Field(description="Each lease that was open.")


class Numbers(BaseModel):
    numbers: list[int]


class ExplanationOut(BaseModel):
    """What became of a submission."""

    step: int
    submission: int
    node: Address
    sha256: Sha256
    received: float
    verdict: dict[str, Any] | None
    judge: str
    judged: float | None


class EvidenceOut(BaseModel):
    """Numeric evidence against a node, as of the last verdict on a file of its that was weighed."""

    nats: float
    files: int = Field(description="Files that were weighed.")
    limit: float = Field(description="From so much on a node is banned.")


class NodeEvidenceOut(BaseModel):
    numbers: EvidenceOut | None = Field(description="Null if none of the node's files was weighed.")


class LinesOut(BaseModel):
    lines: list[str] = Field(
        description="Entries in their order, each in its one canonical form; none: there are no more."
    )


class StandingOut(BaseModel):
    stake: int
    gift: int
    leaving: int
    locked: int = Field(description="Earned, and still open to challenge.")
    earned: int = Field(description="Earned and free.")
    accepted: int
    offences: int
    leases: int = Field(description="Leases that the node may hold at once.")
    status: Literal["active", "suspended", "banned"]


class NodeOut(BaseModel):
    address: Address
    role: str
    name: str
    state: str
    seen_s: float
    reason: str
    doing: str
    waits_on: str
    version: int | None
    leases: int
    profile: str = Field("", description="How it says that it computes.")
    accepted: int
    rejected: int
    abandoned: int = Field(description="Leases that it let expire, in all.")
    owed: int = Field(0, description="Draws that it let go or had rejected, and that are not done.")
    samples: int
    tokens: int
    numbers: EvidenceOut | None = None


class LatenciesOut(BaseModel):
    version: int
    first_rollout_s: float | None = Field(description="From announcing the version to the first file made with it.")
    full_batch_s: float | None = Field(
        description="From announcing the version until the step that trains it had all accepted groups that it needs."
    )
    verdict_p50_s: float | None = Field(description="From a file's arrival to its verdict, median.")
    verdict_p95_s: float | None = Field(description="The same, 95th percentile.")


class StatusOut(BaseModel):
    run: str
    steps: int
    version: int | None
    nodes: list[NodeOut]
    states: dict[str, int]
    counts: dict[int, CountOut]
    needed: int
    waiting: int
    accepted: int
    rejected: int
    latencies: LatenciesOut | None = None
