"""The interfaces that roles work against: `WeightChannel` for versions and `RolloutStore` for submissions.

Roles work through them, so that a test can put memory in the place of the network.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shoal.errors import WeightsError
from shoal.protocol.judge_note import JudgeNote
from shoal.protocol.lease import Lease
from shoal.protocol.pacing import StepCount
from shoal.protocol.spans import SpanLease
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Verdict
from shoal.tasks.difficulty import Table


@dataclass(frozen=True, slots=True)
class Version:
    """A policy version: its number and the root hash of its content."""

    number: int
    root: str


class WeightSource(Protocol):
    """Where policy versions come from. What is fetched is what was published, or an error."""

    def latest(self) -> Version | None:
        """The newest version that can be fetched without waiting."""
        ...

    def offered(self) -> Version | None:
        """The newest version that is published, whether it is here or has to be waited for."""
        ...

    def version(self, number: int) -> Version | None:
        """What is known of a version, or None if it is missing."""
        ...

    def was_retracted(self, version: Version) -> bool:
        """Whether it was published once and taken back."""
        ...

    def fetch(self, version: Version) -> Path:
        """A directory with the version's files, checked against its root hash."""
        ...


def newest_of(source: WeightSource) -> Version:
    """The newest version that is here.

    Where all that were here have been taken back, as after a crash of the trainer, the one that is offered in their
    place is waited for.
    """
    while (version := source.latest()) is None:
        if (offered := source.offered()) is None:
            raise WeightsError("no policy version is published; prepare the run with shoal run")
        try:
            source.fetch(offered)
        except WeightsError:
            if source.offered() == offered:  # otherwise it was taken back, too
                raise
    return version


def roots_of(source: WeightSource) -> Callable[[int], str | None]:
    """Which content a source has under a version's number."""

    def root_of(number: int) -> str | None:
        version = source.version(number)
        return version.root if version else None

    return root_of


class WeightChannel(WeightSource, Protocol):
    """Moves policy versions from the trainer outwards."""

    def publish(self, number: int) -> AbstractContextManager[Path]:
        """A directory to write the version's files into; it is published when the block ends well."""
        ...

    def is_whole(self, number: int) -> bool:
        """Whether a version is there, and what was published."""
        ...

    def retract(self, after: int) -> list[int]:
        """Takes back versions above `after`, which no checkpoint backs; says which."""
        ...


PROVEN = 2  # the record of a node that has had files accepted


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that was handed in for a step and waits for judgement."""

    step: int
    submission: int
    lease: Lease
    path: Path
    record: int = 1
    """What its maker has shown: 2 accepted files, 1 nothing yet, 0 leases that it let expire."""
    ordinal: int = 0
    """Which of its maker's files this is, from 1 on; 0 where it is not known."""

    @property
    def node(self) -> str:
        return self.lease.node


class LeaseStore(Protocol):
    """A worker's side of a store: leases, and the files for them."""

    def lease(self, node: str, version: int, holding: Collection[tuple[int, int]] = ()) -> Lease | None:
        """Permission to work with `version`, or None while everything it may serve is provided for. Of its own leases
        the node gets again those that it does not name as held, by step and number."""
        ...

    def span(self, lease: Lease, first: int, version: int) -> SpanLease:
        """What the answers of a lease go on with from token `first` on: `version`, or what was given before. A
        RolloutError if the lease is over."""
        ...

    def table(self, lease: Lease) -> Table | None:
        """What a lease draws its tasks by, None where all are asked alike; a RolloutError if it was taken back."""
        ...

    def put(self, lease: Lease, data: bytes) -> None:
        """Hands in a lease's file, once."""
        ...


class RolloutStore(LeaseStore, Protocol):
    """Moves submissions from workers through judgement to the trainer, under leases."""

    @property
    def signer(self) -> str:
        """The address whose key signs leases and span leases."""
        ...

    def count(self, step: int) -> StepCount: ...

    def is_out(self, version: int) -> bool:
        """Whether the trainer has published a version of this number, also if it has not come here yet."""
        ...

    def forget(self, before: int) -> None:
        """Removes the rollouts of steps before this one."""
        ...

    def waiting(self, first: int, last: int, hand: int = 0) -> list[Upload]:
        """Uploads for steps first .. last that nobody has judged; with a `hand`, about so many of them that it is this
        validator's turn to judge, which no other one is given meanwhile."""
        ...

    def read(self, upload: Upload) -> tuple[Submission, str]:
        """The upload's content and the hash of its bytes; a RolloutError says which rule of format they break, an
        UnreadError why they could not be fetched or read here."""
        ...

    def judge(self, upload: Upload, verdict: Verdict, note: JudgeNote | None = None) -> None:
        """Enters the verdict on an upload, with a note for the validators that share the files."""
        ...

    def ban(self, node: str, reason: str, rates: int | None = None) -> None:
        """Gives a node no more leases; where numbers are the reason, until the run's honest rates, of which `rates` is
        the version that speaks against it, are loosened."""
        ...

    def accepted(self, step: int) -> Iterator[Submission]:
        """Submissions of a step that were judged good, each at most once in the life of this store object."""
        ...

    def turn_down(self, step: int, submission: int, reason: str) -> None:
        """The trainer's word that an accepted submission is not trained on. It is void, and nobody is blamed."""
        ...
