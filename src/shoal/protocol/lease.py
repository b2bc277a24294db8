"""A lease: permission to submit once, and the seed of everything that the submission contains.

Tasks and sampling noise are drawn from H(beacon, node, step, submission, ...): a worker chooses nothing, and two leases
never share a draw because the submission number is issued, not chosen.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from shoal.config import LengthConfig, SamplerConfig
from shoal.errors import RolloutError
from shoal.files import parse_json
from shoal.tasks.difficulty import Table, pick
from shoal.tasks.length import budgeted, target_of
from shoal.tasks.source import Task, TaskSource, draw

# Nodes name themselves, and files are named after them.
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")
MAX_TIME = 1e18  # of a deadline, in seconds; neither NaN nor infinity is below it


@dataclass(frozen=True, slots=True)
class Lease:
    """Permission for `node` to submit `groups` groups for `step`, made with a version in oldest .. newest, by
    `deadline`."""

    run: str
    node: str
    step: int
    submission: int
    oldest: int
    newest: int
    groups: int
    beacon: int
    deadline: float

    @property
    def seed(self) -> int:
        """Key of all noise under this lease."""
        return draw("lease", self.run, self.beacon, self.node, self.step, self.submission)

    def task_index(self, group: int) -> int:
        """Index of the train task that a group answers."""
        return draw("task", self.seed, group) >> 32

    def check_version(self, version: int) -> None:
        if not self.oldest <= version <= self.newest:
            raise RolloutError(f"{self}: used version {version}, allowed {self.oldest}..{self.newest}")

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """A lease out of its JSON; anything else is a RolloutError."""
        try:
            fields: Mapping[str, Any] = parse_json(text)
            lease = cls(**fields)
        except (ValueError, TypeError, RecursionError) as error:
            raise RolloutError(f"not a lease: {str(text)[:80]!r} ({error})") from error
        whole = (lease.step, lease.submission, lease.oldest, lease.newest, lease.groups, lease.beacon)
        texts = (lease.run, lease.node)
        if not (
            all(type(value) is int for value in whole)
            and all(isinstance(value, str) for value in texts)
            and isinstance(lease.deadline, int | float)
            and abs(lease.deadline) < MAX_TIME
        ):
            raise RolloutError(f"not a lease: {str(text)[:80]!r} (a field has the wrong type)")
        return lease

    def __str__(self) -> str:
        return f"lease step {self.step} submission {self.submission} of {self.node}"


def no_table(_lease: Lease) -> Table | None:
    """For runs in which all tasks are asked alike."""
    return None


def checked_table(lease: Lease, table: Table | None, config: SamplerConfig) -> Table | None:
    """The table that a lease draws by, which must be there where the run draws by one: another draw is another task."""
    if (table is None) != (config.kind == "uniform"):
        raise RolloutError(
            f"{lease}: sampler.kind is {config.kind!r}, and there is {'no' if table is None else 'a'} table of weights"
        )
    return table


def asked(tasks: TaskSource, lease: Lease, group: int, length: LengthConfig, table: Table | None = None) -> Task:
    """The task of a group: which one, in what words and with what length budget follows from the lease.

    Where tasks are drawn by weight, the table is that of the oldest version that the lease allows: the lease fixes it,
    whichever version its holder works with.
    """
    index = lease.task_index(group)
    task = tasks.task("train", index) if table is None else pick(tasks, table, lease.seed, group, index)
    return budgeted(task, target_of(length, lease.seed, group), length)
