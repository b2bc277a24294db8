"""One sample, and many of them as an Arrow table: tokens and log-probs are numpy views of the table, never lists.

`table_of` lays samples end to end in columns, `Columns.of` takes a table apart again without copying. What is in a
table is a claim; `rollout_rules` says what may be.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.files import parse_json
from shoal.protocol.turns import ONE_TURN, Places, Runs, drawn_count, drawn_places, drawn_runs

Tokens = npt.NDArray[np.int32]
Logprobs = npt.NDArray[np.float32]
Number = TypeVar("Number", np.int32, np.float32)

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
        pa.field("runs", pa.list_(pa.int32()), nullable=False),
    ]
)
RAGGED = ("prompt", "completion", "logprobs", "runs")


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One sample: what was asked, what was answered, how likely it was and what it earned."""

    group: int
    sample: int
    source: str
    task: int
    prompt: Tokens
    """The samples of a group share one array."""
    completion: Tokens
    """All that follows the prompt: what the policy drew and, between its turns, what was inserted."""
    logprobs: Logprobs
    """Of the drawn tokens."""
    finish: Literal["eos", "length"]
    reward: float | None
    """None where the scorer failed; `error` then says how."""
    advantage: float
    error: str
    proof: bytes
    """TOPLOC proofs of the states that the tokens were drawn from, chunk after chunk."""
    parts: str = ""
    """What the reward is made of, by name, as JSON; empty where it is one thing."""
    runs: Runs = field(default_factory=lambda: ONE_TURN)
    """Lengths of what was drawn, inserted, drawn, ... in turn (`turns`); empty for an answer of one turn."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rollout) and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            if name in RAGGED
            else getattr(self, name) == getattr(other, name)
            for name in SCHEMA.names
        )

    @property
    def drawn(self) -> Tokens:
        """The tokens that the policy drew, turn after turn."""
        return self.completion[drawn_places(self.runs, len(self.completion))] if len(self.runs) else self.completion

    @property
    def drawn_count(self) -> int:
        return drawn_count(self.runs, len(self.completion))

    @property
    def turns(self) -> list[tuple[int, int]]:
        """Where each turn begins and ends in the completion."""
        return list(drawn_runs(self.runs, len(self.completion)))

    @property
    def ended_at(self) -> list[int]:
        """Which of the drawn tokens ended a turn; all of them are ended but for the last one, which may be cut off."""
        lasts = np.cumsum([end - begin for begin, end in self.turns]) - 1
        return [int(place) for place in (lasts if self.finish == "eos" else lasts[:-1])]

    @property
    def task_reward(self) -> float | None:
        """The reward without what the length adds to it."""
        return read_parts(self.parts).get("task", self.reward)


def tokens_of(ids: Sequence[int]) -> Tokens:
    """Token ids as a rollout holds them."""
    return np.array(ids, np.int32)


def logprobs_of(values: Sequence[float]) -> Logprobs:
    """Log-probs as a rollout holds them."""
    return np.array(values, np.float32)


def bare_rollout(
    prompt: Sequence[int],
    completion: Sequence[int],
    logprobs: Sequence[float] | None = None,
    finish: Literal["eos", "length"] = "eos",
    proof: bytes = b"",
) -> Rollout:
    """A sample that belongs to no file: as much of one as packing and recomputing look at."""
    claimed = logprobs_of(logprobs) if logprobs is not None else np.zeros(len(completion), np.float32)
    return Rollout(0, 0, "", 0, tokens_of(prompt), tokens_of(completion), claimed, finish, None, 0.0, "", proof)


def write_parts(parts: Mapping[str, float]) -> str:
    """A reward's parts as they stand in a file."""
    return json.dumps(dict(parts), sort_keys=True) if parts else ""


def read_parts(text: str) -> dict[str, float]:
    return {str(name): float(value) for name, value in parse_json(text).items()} if text else {}


def table_of(rollouts: Sequence[Rollout]) -> Any:
    """Samples as an Arrow table of SCHEMA."""
    columns = []
    for column in SCHEMA:
        values = [getattr(rollout, column.name) for rollout in rollouts]
        columns.append(_list_array(values, column.type) if column.name in RAGGED else pa.array(values, column.type))
    return pa.table(columns, schema=SCHEMA)


def _list_array(arrays: Sequence[npt.NDArray[Any]], kind: Any) -> Any:
    starts = np.cumsum([0, *map(len, arrays)])
    flat = np.concatenate(arrays) if arrays else np.empty(0)
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pa.array(flat, kind.value_type), type=kind)


@dataclass(frozen=True, slots=True)
class Ragged(Generic[Number]):
    """Arrays of uneven length laid end to end: array n is `values[starts[n] : starts[n + 1]]`, a view."""

    values: npt.NDArray[Number]
    """Where a value is missing, one that no rule allows."""
    starts: Places
    missing: Places
    """Where in `values` there is none."""

    @classmethod
    def of(cls, column: Any, absent: Number) -> Self:
        """A list column; its values are not copied if it is one chunk without missing values."""
        lists = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        flat, starts = lists.flatten(), lists.offsets.to_numpy().astype(np.int64)
        missing = np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False)) if flat.null_count else np.empty(0, int)
        values = flat.fill_null(absent.item()) if flat.null_count else flat
        return cls(values.to_numpy(), starts - starts[0], missing)

    @property
    def lengths(self) -> Places:
        return np.diff(self.starts)

    def __getitem__(self, n: int) -> npt.NDArray[Number]:
        return self.values[self.starts[n] : self.starts[n + 1]]

    def holding(self, places: Places) -> Places:
        """The arrays that these places of `values` are in."""
        return np.searchsorted(self.starts, places, side="right") - 1


@dataclass(frozen=True)
class Columns:
    """A table of samples, column by column: tokens and log-probs as views of it, the rest one value per sample."""

    table: Any
    prompt: Ragged[np.int32]
    completion: Ragged[np.int32]
    logprobs: Ragged[np.float32]
    runs: Ragged[np.int32]

    @classmethod
    def of(cls, table: Any) -> Self:
        none, nan = np.int32(-1), np.float32("nan")
        return cls(
            table,
            Ragged.of(table["prompt"], none),
            Ragged.of(table["completion"], none),
            Ragged.of(table["logprobs"], nan),
            Ragged.of(table["runs"], none),
        )

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def plain(self) -> dict[str, list[Any]]:
        """The columns that have one value per sample, by name."""
        return {name: self.table[name].to_pylist() for name in SCHEMA.names if name not in RAGGED}

    def rollouts(self, first_of: Sequence[int]) -> list[Rollout]:
        """The samples; each has the prompt of the sample that `first_of` names, which must be the same one."""
        prompts = {n: self.prompt[n] for n in set(first_of)}
        rows = zip(*self.plain.values(), strict=True)
        return [
            Rollout(
                **dict(zip(self.plain, row, strict=True)),
                prompt=prompts[first_of[n]],
                completion=self.completion[n],
                logprobs=self.logprobs[n],
                runs=self.runs[n],
            )
            for n, row in enumerate(rows)
        ]
