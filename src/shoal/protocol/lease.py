"""A lease: permission to submit once, and the seed of everything that the submission contains.

Tasks and sampling noise are drawn from H(run, beacon, step, submission), and the lease names the one version that
answers: a worker chooses nothing, and no key has a better draw than another. Two leases share a draw only if the second
gives the first one's again, which was let go (`draw_of`).
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
PLACE = re.compile(r"([0-9]{1,10})/([0-9]{1,10})")
MAX_TIME = 1e18  # of a deadline, in seconds; neither NaN nor infinity is below it


@dataclass(frozen=True, slots=True)
class Lease:
    """Permission for `node` to submit `groups` groups for `step`, made with `version`, by `deadline`."""

    run: str
    node: str
    step: int
    submission: int
    version: int
    groups: int
    beacon: int
    deadline: float
    draw_of: str = ""
    """The lease that had this draw first, as STEP/NUMBER, if it was let go; empty if this one is the first."""

    @property
    def seed(self) -> int:
        """Key of all noise under this lease."""
        step, submission = self.drawn_at
        return draw("lease", self.run, self.beacon, step, submission)

    @property
    def drawn_at(self) -> tuple[int, int]:
        """Step and number of the lease that had this draw first."""
        if (first := PLACE.fullmatch(self.draw_of)) is None:
            return self.step, self.submission
        return int(first[1]), int(first[2])

    def task_index(self, group: int) -> int:
        """Index of the train task that a group answers."""
        return draw("task", self.seed, group) >> 32

    def check_version(self, version: int) -> None:
        if version != self.version:
            raise RolloutError(f"{self}: used version {version}, it is for version {self.version}")

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
        whole = (lease.step, lease.submission, lease.version, lease.groups, lease.beacon)
        texts = (lease.run, lease.node, lease.draw_of)
        if not (
            all(type(value) is int for value in whole)
            and all(isinstance(value, str) for value in texts)
            and isinstance(lease.deadline, int | float)
            and abs(lease.deadline) < MAX_TIME
        ):
            raise RolloutError(f"not a lease: {str(text)[:80]!r} (a field has the wrong type)")
        if lease.draw_of and not PLACE.fullmatch(lease.draw_of):
            raise RolloutError(f"not a lease: {str(text)[:80]!r} (draw_of must read STEP/NUMBER, as in 12/3)")
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

    Where tasks are drawn by weight, the table is that of the version that the lease names.
    """
    index = lease.task_index(group)
    task = tasks.task("train", index) if table is None else pick(tasks, table, lease.seed, group, index)
    return budgeted(task, target_of(length, lease.seed, group), length)
