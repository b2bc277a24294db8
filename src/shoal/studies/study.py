"""What a study is: settings, seeds, what one run does, and what all runs together show."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shoal.studies.claims import Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Said = Callable[[str], None]
Outcome = dict[str, Any]
"""What a finished run says, as JSON."""
Found = Mapping[str, Sequence[Outcome]]
"""Finished runs by the name of their setting, each list in the order of its seeds."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of a study: a name that is part of a file's name, and the config keys that it changes."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    lag: int = 0
    """In-process loop: how many versions old each rollout is."""
    times: int = 1
    """How many times the study's steps: a policy that moves slowly gets more of them."""
    swarm: bool = False
    """Whether it runs as processes that meet over the network, as `shoal run` starts them, instead of in process."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything a run does."""

    steps: int
    seeds: int
    groups: int
    heldout: int
    every: int
    """Steps between measurements on held-out tasks; the first and the last version are always measured."""
    first_seed: int = 1
    """Above 1 where a study was widened after a look at its result: the seeds that were looked at are left out."""
    smoke: bool = False
    """Whether this only shows that the study works: a base model that is made in a second will do."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a setting with a seed, its size, and a directory for what it needs on the way."""

    setting: Setting
    seed: int
    size: Size
    scratch: Path
    """Empty, and removed after the run."""
    shared: Path
    """For what all runs of the study need, made by the first of them."""
    said: Said


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Claims with verdicts, and figures by name for the table."""

    claims: Sequence[Claim]
    figures: Mapping[str, float | str]


class Study(Protocol):
    """One experiment. `run` may be called in any order, and its outcome depends on nothing but its job."""

    name: str
    summary: str
    paper: str
    """What the paper says."""
    loop: str
    """Which loop its runs use, and why that is honest."""
    full: Size
    quick: Size

    def settings(self) -> Sequence[Setting]: ...

    def run(self, job: Job) -> Outcome: ...

    def conclude(self, found: Found) -> Conclusion: ...

    def draw(self, found: Found, figure: "Figure") -> None: ...
