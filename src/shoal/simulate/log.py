"""What is written down while a simulation goes on: when versions and batches came, per version and per step."""

from dataclasses import dataclass, field
from math import inf, nan


@dataclass(slots=True)
class VersionTimes:
    """A version's way, in seconds of the simulation; NaN for what did not happen."""

    published: float
    everywhere: float = nan
    """When the last of the machines that were there had it."""
    half: float = nan
    """When half of them had it."""
    first_file: float = nan
    full_batch: float = nan
    """When files that were made with it held as many groups as a step needs, with a verdict."""
    groups: int = 0
    reached: int = 0
    """Machines that have it."""


@dataclass(slots=True)
class StepTimes:
    """A step of the trainer."""

    waited_from: float
    began: float = nan
    ended: float = nan
    staleness: float = 0.0
    """Steps between version and training, over the groups that it was trained on."""
    groups: int = 0


@dataclass(slots=True)
class Log:
    """All versions and steps so far."""

    versions: dict[int, VersionTimes] = field(default_factory=dict)
    steps: dict[int, StepTimes] = field(default_factory=dict)
    files: int = 0
    late_files: int = 0
    let_go: int = 0
    """Leases that workers gave up because their step was over."""
    tokens: float = 0.0
    tokens_lost: float = 0.0
    """Generated and not trained on: too late, or for a step that was over."""
    joined: int = 0
    left: int = 0
    uploaded: float = 0.0
    waiting_files: list[int] = field(default_factory=list)
    """Files before the validators, at the end of each step."""

    def arrived(self, version: int, machines: int, of: int, now: float) -> None:
        """So many more machines have a version; there are `of` in all."""
        times = self.versions.get(version)
        if times is None:
            return
        times.reached += machines
        if times.reached >= of / 2 and times.half != times.half:
            times.half = now
        if times.reached >= of and times.everywhere != times.everywhere:
            times.everywhere = now

    def filed(self, version: int, now: float) -> None:
        times = self.versions[version]
        if times.first_file != times.first_file:
            times.first_file = now
        self.files += 1

    def accepted(self, version: int, step: int, groups: int, needed: int, now: float) -> None:
        times = self.versions[version]
        times.groups += groups
        if times.groups >= needed and times.full_batch != times.full_batch:
            times.full_batch = now
        here = self.steps.setdefault(step, StepTimes(inf))
        here.staleness += groups * (step - version)
        here.groups += groups
