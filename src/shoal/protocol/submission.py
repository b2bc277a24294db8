"""The rollout record: one Parquet file per submission, with a versioned schema.

What a file says of itself is a claim. `read_rollouts` checks all that can be checked without a model: a file that is
truncated, foreign, of another lease or out of bounds is a RolloutError that says which value broke which rule. One that
this machine or this release cannot read is an UnreadError, which blames nobody.
"""

import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.errors import RolloutError, UnreadError
from shoal.files import open_regular, parse_json
from shoal.protocol.lease import Lease
from shoal.protocol.parquet_reader import READER
from shoal.protocol.size_limits import MAX_BYTES, proof_room, sample_room

SCHEMA_VERSION = "3"
MAX_REWARD = 1e6
# Messages quote what they refuse, and find their way into verdicts, evidence and metrics.
MAX_TEXT = 1000
# What pyarrow raises on a file that is not what it seems; text that is not UTF-8 comes as a plain ValueError.
BROKEN = (pa.ArrowException, OSError, ValueError)

SCHEMA = pa.schema(
    [
        pa.field("group", pa.int32(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("task", pa.int64(), nullable=False),
        pa.field("prompt", pa.list_(pa.int32()), nullable=False),
        pa.field("completion", pa.list_(pa.int32()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("finish", pa.string(), nullable=False),
        pa.field("reward", pa.float32()),
        pa.field("advantage", pa.float32(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("proof", pa.binary(), nullable=False),
        pa.field("parts", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sample: what was asked, what was answered, how likely it was and what it earned."""

    group: int
    sample: int
    source: str
    task: int
    prompt: list[int]
    completion: list[int]
    logprobs: list[float]
    finish: Literal["eos", "length"]
    reward: float | None
    """None where the scorer failed; `error` then says how."""
    advantage: float
    error: str
    proof: bytes
    """TOPLOC proofs of the states that the tokens were drawn from, chunk after chunk."""
    parts: str = ""
    """What the reward is made of, by name, as JSON; empty where it is one thing."""

    @property
    def task_reward(self) -> float | None:
        """The reward without what the length adds to it."""
        return read_parts(self.parts).get("task", self.reward)


@dataclass(frozen=True, slots=True)
class Submission:
    """All that one file holds: samples in order, and the lease and version they were made under."""

    lease: Lease
    version: int
    weights: str
    """Root hash of the version's content: a version number alone could name two things after a resume."""
    rollouts: list[Rollout]

    def groups(self) -> list[list[Rollout]]:
        """The samples of each prompt."""
        return [list(group) for _, group in groupby(self.rollouts, key=lambda rollout: rollout.group)]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sample of this run may look like."""

    group_size: int
    vocab: int
    max_prompt_tokens: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts that a file's footer claims."""

    groups: int
    signal: int


def write_parts(parts: Mapping[str, float]) -> str:
    """A reward's parts as they stand in a file."""
    return json.dumps(dict(parts), sort_keys=True) if parts else ""


def read_parts(text: str) -> dict[str, float]:
    return {str(name): float(value) for name, value in parse_json(text).items()} if text else {}


def groups_with_signal(submission: Submission) -> int:
    """Groups of a submission that teach something: pacing believes the file's own count, so it must be the true one."""
    import torch  # here, because who only counts does without

    from shoal.rl.advantages import has_signal

    rewards = [float("nan") if r.reward is None else r.reward for r in submission.rollouts]
    return int(has_signal(torch.tensor(rewards).view(submission.lease.groups, -1)).sum())


def write_rollouts(submission: Submission, signal_groups: int) -> bytes:
    """The bytes of a submission's file."""
    metadata = {
        "shoal.schema": SCHEMA_VERSION,
        "shoal.lease": submission.lease.to_json(),
        "shoal.version": str(submission.version),
        "shoal.weights": submission.weights,
        "shoal.summary": json.dumps({"groups": submission.lease.groups, "signal": signal_groups}),
    }
    columns = {name: [getattr(r, name) for r in submission.rollouts] for name in SCHEMA.names}
    table = pa.table(columns, schema=SCHEMA.with_metadata(metadata))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()


def _summary(path: Path, footer: Mapping[bytes, bytes]) -> Summary:
    try:
        counts = parse_json(footer[b"shoal.summary"])
        summary = Summary(int(counts["groups"]), int(counts["signal"]))
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise RolloutError(f"{path.name}: no summary in its footer") from error
    if not 0 <= summary.signal <= summary.groups:
        raise RolloutError(f"{path.name}: claims {summary.signal} groups with signal out of {summary.groups}")
    return summary


def claimed_lease(path: Path) -> Lease:
    """The lease that a file says it was made under, which is a claim."""
    metadata = _open(path).schema.metadata or {}
    if (said := metadata.get(b"shoal.lease")) is None:
        raise RolloutError(f"{path.name}: names no lease; give a file of rollouts, as workers hand them in")
    return Lease.from_json(said.decode(errors="replace"))


def read_rollouts(path: Path, lease: Lease, limits: Limits) -> Submission:
    """Reads and checks a file that claims to be the submission of `lease`."""
    schema = _open(path).schema
    metadata = schema.metadata
    footer = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in metadata.items()}
    if (schema_version := footer.get("shoal.schema")) != SCHEMA_VERSION:
        reason = (
            f"{path.name}: schema version {schema_version!r:.80}, this program reads {SCHEMA_VERSION!r}; use the same "
            "release of shoal on both sides"
        )
        # What another release wrote may well be right; it is not for this one to say.
        raise RolloutError(reason) if schema_version is None else UnreadError(reason, again=False)
    if Lease.from_json(footer.get("shoal.lease", "")) != lease:
        raise RolloutError(f"{path.name}: made under another lease than {lease}")
    if not schema.remove_metadata().equals(SCHEMA.remove_metadata()):
        raise RolloutError(f"{path.name}: its columns are {schema.names!s:.{MAX_TEXT}}, expected {SCHEMA.names}")
    expected = lease.groups * limits.group_size
    if (found := int(footer["shoal.rows"])) != expected:
        raise RolloutError(f"{path.name}: {found} samples, the lease is for {expected}")
    summary = _summary(path, metadata)
    if summary.groups != lease.groups:
        raise RolloutError(f"{path.name}: claims {summary.groups} groups, the lease is for {lease.groups}")
    try:
        version = int(footer.get("shoal.version", ""))
    except ValueError:
        raise RolloutError(f"{path.name}: version {footer.get('shoal.version')!r:.80} is not a number") from None
    lease.check_version(version)
    # Repeated values take no room in a file: what unfolds to more than samples can be is not unfolded at all.
    room = sample_room(limits.max_prompt_tokens, limits.max_new_tokens)
    table = READER.read(path, expected * room)
    if table.num_rows != expected or not table.schema.remove_metadata().equals(SCHEMA.remove_metadata()):
        raise RolloutError(f"{path.name}: damaged (its footer is not that of its {table.num_rows} samples)")
    try:
        rows = table.to_pylist()
    except BROKEN as error:
        raise RolloutError(f"{path.name}: damaged ({error})") from error
    rollouts = [Rollout(**row) for row in rows]
    for number, rollout in enumerate(rollouts):
        where, first = f"{path.name} sample {number}", rollouts[number - number % limits.group_size]
        check_sample(where, number, rollout, limits)
        if (rollout.source, rollout.task, rollout.prompt) != (first.source, first.task, first.prompt):
            raise RolloutError(f"{where}: answers another prompt than the first sample of its group")
    submission = Submission(lease, version, footer.get("shoal.weights", ""), rollouts)
    if summary.signal != (signal := groups_with_signal(submission)):
        raise RolloutError(f"{path.name}: claims {summary.signal} groups with signal, it has {signal}")
    return submission


def _open(path: Path) -> Any:
    """The file's footer and schema, as a table without rows."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise RolloutError(f"{path.name}: not a readable Parquet file ({error})") from error
    if size > MAX_BYTES:
        raise RolloutError(f"{path.name}: {size} bytes, at most {MAX_BYTES} are read")
    return READER.read(path, None)


def check_sample(where: str, number: int, rollout: Rollout, limits: Limits) -> None:
    """Refuses a sample, number `number` of its file, that is out of bounds."""
    place = divmod(number, limits.group_size)
    if (rollout.group, rollout.sample) != place:
        raise RolloutError(f"{where}: numbered group {rollout.group} sample {rollout.sample}, expected {place}")
    _check_tokens(where, "prompt", rollout.prompt, limits.max_prompt_tokens, limits.vocab)
    _check_tokens(where, "completion", rollout.completion, limits.max_new_tokens, limits.vocab)
    if len(rollout.logprobs) != len(rollout.completion):
        raise RolloutError(f"{where}: {len(rollout.logprobs)} log-probs for {len(rollout.completion)} tokens")
    # Softmax in float32 may round a certain token to a log-prob just above 0.
    if bad := [p for p in rollout.logprobs if p is None or not -1e4 <= p <= 1e-4]:
        raise RolloutError(f"{where}: log-prob {bad[0]} is not in -10000..0")
    for name in ("source", "error", "parts"):
        if (found := len(getattr(rollout, name))) > MAX_TEXT:
            raise RolloutError(f"{where}: {name} of {found} characters, at most {MAX_TEXT} are allowed")
    if rollout.finish not in ("eos", "length"):
        raise RolloutError(f'{where}: finish {rollout.finish!r:.80} is neither "eos" nor "length"')
    if rollout.reward is not None and not -MAX_REWARD <= rollout.reward <= MAX_REWARD:
        raise RolloutError(f"{where}: reward {rollout.reward} is not in -{MAX_REWARD:.0f}..{MAX_REWARD:.0f}")
    if not math.isfinite(rollout.advantage):
        raise RolloutError(f"{where}: advantage {rollout.advantage} is not finite")
    if len(rollout.proof) > (max_count := proof_room(limits.max_new_tokens)):
        raise RolloutError(f"{where}: a proof of {len(rollout.proof)} bytes, at most {max_count} are needed")
    try:
        read_parts(rollout.parts)
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise RolloutError(f"{where}: parts {rollout.parts!r:.80} is not a JSON object of numbers") from None
    if (rollout.reward is None) != bool(rollout.error):
        raise RolloutError(f"{where}: reward {rollout.reward} with error {rollout.error!r}; exactly one must be given")


def _check_tokens(where: str, what: str, ids: Sequence[int | None], max_count: int, vocab: int) -> None:
    if not 1 <= len(ids) <= max_count:
        raise RolloutError(f"{where}: {what} of {len(ids)} tokens, allowed 1..{max_count}")
    if bad := [i for i in ids if i is None or not 0 <= i < vocab]:
        raise RolloutError(f"{where}: {what} holds token {bad[0]}, allowed 0..{vocab - 1}")
