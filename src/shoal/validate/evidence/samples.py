"""The samples of a bundle: rows of its JSON where they are short, a Parquet file beside it where they are long.

The JSON names the SHA-256 of that file, so the hash of a bundle covers both.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.errors import RolloutError
from shoal.files import sha256_file, write_whole
from shoal.protocol.parquet_reader import READER
from shoal.protocol.rollout import RAGGED, SCHEMA, Rollout
from shoal.protocol.rollout_rules import rollouts_as_written
from shoal.protocol.submission import parquet_of

# As JSON so many tokens take half a megabyte, with their log-probs and proofs; as Parquet a third of that.
MAX_JSON_TOKENS = 1 << 14


def samples_path(bundle: Path) -> Path:
    """The file with a bundle's samples, where they are long."""
    return bundle.with_suffix(".parquet")


def write_samples(rollouts: Sequence[Rollout], bundle: Path) -> object:
    """What a bundle's JSON says of its samples; long ones are written beside it."""
    if sum(len(sample.prompt) + len(sample.completion) for sample in rollouts) <= MAX_JSON_TOKENS:
        return [_row(sample) for sample in rollouts]
    target = samples_path(bundle)
    write_whole(target, parquet_of(rollouts, {}))
    return {"sha256": sha256_file(target)}


def read_samples(said: Any, bundle: Path, max_bytes: int) -> list[Rollout]:
    """The samples that a bundle's JSON holds, or those beside it, which unfold to at most `max_bytes`."""
    if isinstance(said, list):
        rows = [{**row, "proof": base64.b64decode(row["proof"], validate=True)} for row in said]
        return rollouts_as_written(bundle.name, pa.Table.from_pylist(rows, SCHEMA))
    file = samples_path(bundle)
    if (found := sha256_file(file)) != said["sha256"]:
        raise RolloutError(
            f"{file}: has SHA-256 {found[:12]}, {bundle.name} is about {said['sha256']!r:.14}; copy both from one place"
        )
    table = READER.read(file, max_bytes)
    if not table.schema.remove_metadata().equals(SCHEMA):
        raise RolloutError(f"{file}: its columns are {table.schema.names!s:.500}, expected {SCHEMA.names}")
    return rollouts_as_written(file.name, table)


def _row(sample: Rollout) -> dict[str, object]:
    row = {name: getattr(sample, name) for name in SCHEMA.names}
    arrays = {name: np.asarray(row[name]).tolist() for name in RAGGED}
    return {**row, **arrays, "proof": base64.b64encode(sample.proof).decode()}
