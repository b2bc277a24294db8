"""The rollout record: one Parquet file per submission, with a versioned schema.

What a file says of itself is a claim. `read_rollouts` checks all that can be checked without a model: a file that is
truncated, foreign, of another lease or out of bounds is a RolloutError that says which value broke which rule. One that
this machine or this release cannot read is an UnreadError, which blames nobody.
"""

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.errors import RolloutError, UnreadError
from shoal.files import open_regular, parse_json
from shoal.protocol.lease import Lease
from shoal.protocol.parquet_reader import READER
from shoal.protocol.rollout import SCHEMA, Rollout, table_of
from shoal.protocol.rollout_rules import MAX_TEXT, Limits, checked_rollouts
from shoal.protocol.spans import (
    Span,
    SpanLease,
    check_all_named,
    check_span_leases,
    read_span_leases,
    spans_of,
    write_span_leases,
)
from shoal.rollout_size import MAX_BYTES, sample_room

SCHEMA_VERSION = "6"
# What pyarrow raises on a file that is not what it seems; text that is not UTF-8 comes as a plain ValueError.
BROKEN = (pa.ArrowException, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class Submission:
    """All that one file holds: samples in order, the lease they were made under and the version they began with."""

    lease: Lease
    version: int
    weights: str
    """Root hash of the version's content: a version number alone could name two things after a resume."""
    rollouts: list[Rollout]
    later: tuple[SpanLease, ...] = ()
    """What its answers went on with, span by span; nothing unless `workers.in_flight`."""

    @property
    def spans(self) -> list[Span]:
        """Which version drew which tokens, version by version."""
        return spans_of(self.version, self.weights, self.later)

    def groups(self) -> list[list[Rollout]]:
        """The samples of each prompt."""
        return [list(group) for _, group in groupby(self.rollouts, key=lambda rollout: rollout.group)]


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts that a file's footer claims."""

    groups: int
    signal: int


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
        "shoal.spans": write_span_leases(submission.later),
        "shoal.summary": json.dumps({"groups": submission.lease.groups, "signal": signal_groups}),
    }
    return parquet_of(submission.rollouts, metadata)


def parquet_of(rollouts: Sequence[Rollout], metadata: Mapping[str, str]) -> bytes:
    """Samples as the bytes of a Parquet file."""
    table = table_of(rollouts).replace_schema_metadata(dict(metadata))
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
    later = read_span_leases(path.name, footer.get("shoal.spans", ""))
    check_span_leases(path.name, later, lease, limits.span_tokens, limits.max_new_tokens)
    # Repeated values take no room in a file: what unfolds to more than samples can be is not unfolded at all.
    room = sample_room(limits.max_prompt_tokens, limits.max_new_tokens, limits.max_turns)
    table = READER.read(path, expected * room)
    if table.num_rows != expected or not table.schema.remove_metadata().equals(SCHEMA.remove_metadata()):
        raise RolloutError(f"{path.name}: damaged (its footer is not that of its {table.num_rows} samples)")
    try:
        rollouts = checked_rollouts(path.name, table, limits)
    except BROKEN as error:
        raise RolloutError(f"{path.name}: damaged ({error})") from error
    longest = max(len(rollout.completion) for rollout in rollouts)
    check_all_named(path.name, later, limits.span_tokens, longest)
    submission = Submission(lease, version, footer.get("shoal.weights", ""), rollouts, later)
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
