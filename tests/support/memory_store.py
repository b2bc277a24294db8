"""Fake `RolloutStore`: leases by the real pacing rules, one file per lease, verdicts and bans in memory.

It stands for a coordinator in tests of a role, which are about what the role does with its store. What the store itself
promises is tested on the coordinator's (`tests/coordinator`); `tests/client/test_store_contract.py` holds both to it.
"""

import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from shoal.client.rollout_store import _signal
from shoal.config import RunConfig
from shoal.errors import BannedError, RolloutError, UnreadError
from shoal.files import sha256_file
from shoal.protocol.judge_note import JudgeNote
from shoal.protocol.lease import Lease
from shoal.protocol.pacing import StepCount, next_grant
from shoal.protocol.rollout_rules import Limits
from shoal.protocol.spans import SpanLease
from shoal.protocol.stores import Upload, roots_of
from shoal.protocol.submission import Submission, read_rollouts
from shoal.protocol.verdict import Finding, Verdict
from shoal.protocol.version_directory import DirectoryChannel
from shoal.rundir import RunDir
from shoal.tasks.difficulty import Table
from shoal.tasks.source import draw

Place = tuple[int, int]


@dataclass(slots=True)
class Records:
    """What all roles of a run see; files are beside it on disk, because their readers open a path."""

    folder: Path
    leases: dict[Place, Lease] = field(default_factory=dict)
    signal: dict[Place, int] = field(default_factory=dict)
    """Groups with signal that a file claims; a place is here once its file was handed in."""
    spans: dict[tuple[int, int, int], SpanLease] = field(default_factory=dict)
    verdicts: dict[Place, Verdict] = field(default_factory=dict)
    bans: dict[str, str] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def file(self, lease: Lease) -> Path:
        return self.folder / f"step-{lease.step:06d}" / f"{lease.submission:04d}.parquet"


@cache
def records_of(path: Path) -> Records:
    """Those of the run in this directory, for whichever role opens them, also after a restart."""
    return Records(path / "uploads")


class MemoryStore:
    """One role's view of a run's records."""

    def __init__(
        self,
        records: Records,
        config: RunConfig,
        channel: DirectoryChannel,
        limits: Limits | None = None,
        refused: Callable[[str, str], None] = lambda _file, _reason: None,
        root_of: Callable[[int], str | None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.records = records
        self._config = config
        self._channel = channel
        self._limits = limits
        self._refused = refused
        self._root_of = root_of or roots_of(channel)
        self._clock = clock
        self._yielded: set[Place] = set()

    @property
    def signer(self) -> str:
        return ""  # in memory nothing is signed

    def lease(self, node: str, version: int, holding: Collection[Place] = ()) -> Lease | None:
        with self.records.lock:
            return self._lease(node, version, holding)

    def _lease(self, node: str, version: int, holding: Collection[Place]) -> Lease | None:
        records, config = self.records, self._config
        if node in records.bans:
            raise BannedError(f"{node}: gets no more leases in this run: {records.bans[node]}")
        for lease in self._open():
            if lease.node == node and lease.step >= version and (lease.step, lease.submission) not in holding:
                return lease
        grant = next_grant(
            {step: self.count(step) for step in range(max(0, version - 4), version + config.async_level + 1)},
            version=version,
            async_level=config.async_level,
            steps=config.steps,
            needed=config.train.groups_per_step,
            max_seen=config.train.max_groups,
            submission_groups=config.workers.groups_per_submission,
            online_filter=config.train.online_filter,
        )
        if grant is None:
            return None
        lease = Lease(
            run=config.name,
            node=node,
            step=grant.step,
            submission=sum(step == grant.step for step, _ in records.leases),
            version=version,
            groups=grant.groups,
            beacon=draw("beacon", config.name, config.seed),
            deadline=self._clock() + config.new_lease_s,
        )
        records.leases[lease.step, lease.submission] = lease
        return lease

    def _open(self) -> Iterator[Lease]:
        for place, lease in self.records.leases.items():
            if place not in self.records.signal and self._clock() <= lease.deadline:
                yield lease

    def span(self, lease: Lease, first: int, version: int) -> SpanLease:
        with self.records.lock:
            root = self._root_of(version)
            if root is None or not lease.version <= version <= lease.step:
                raise RolloutError(f"{lease}: version {version} cannot draw a span")
            given = SpanLease(first, version, root, draw("span beacon", lease.seed, first) >> 1)
            return self.records.spans.setdefault((lease.step, lease.submission, first), given)

    def table(self, lease: Lease) -> Table | None:
        if self._config.sampler.kind == "uniform":
            return None
        table = self._channel.table(lease.version)
        if table is None:
            raise RolloutError(f"{lease}: the task weights of version {lease.version} are gone")
        return table

    def put(self, lease: Lease, data: bytes) -> None:
        records, place = self.records, (lease.step, lease.submission)
        with records.lock:
            if records.leases.get(place) != lease:
                raise RolloutError(f"{lease}: never issued, or to another node")
            if self._clock() > lease.deadline:
                raise RolloutError(f"{lease}: expired {self._clock() - lease.deadline:.0f} s ago")
            path = records.file(lease)
            if place in records.signal:
                if path.read_bytes() == data:
                    return
                raise RolloutError(f"{lease}: already submitted with other bytes; a lease is good for one file")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            claimed = 0
            with suppress(Exception):  # whatever stands in the footer of a stranger's file
                claimed = _signal(data)
            records.signal[place] = min(max(0, claimed), lease.groups)

    def count(self, step: int) -> StepCount:
        records = self.records
        with records.lock:
            verdicts = records.verdicts
            counted = [p for p in records.signal if p[0] == step and (p not in verdicts or verdicts[p].accept)]
            return StepCount(
                seen=sum(records.leases[place].groups for place in counted),
                signal=sum(records.signal[place] for place in counted),
                leased=sum(lease.groups for lease in self._open() if lease.step == step),
            )

    def is_out(self, version: int) -> bool:
        return self._root_of(version) is not None

    def waiting(self, first: int, last: int, hand: int = 0) -> list[Upload]:
        del hand
        return [upload for upload in self._uploads(first, last) if self._verdict(upload) is None]

    def _uploads(self, first: int, last: int) -> list[Upload]:
        with self.records.lock:
            places = sorted(place for place in self.records.signal if first <= place[0] <= last)
            leases = [self.records.leases[place] for place in places]
        found = [Upload(lease.step, lease.submission, lease, self.records.file(lease)) for lease in leases]
        return [upload for upload in found if upload.path.exists()]

    def _verdict(self, upload: Upload) -> Verdict | None:
        return self.records.verdicts.get((upload.step, upload.submission))

    def read(self, upload: Upload) -> tuple[Submission, str]:
        if self._limits is None:
            raise ValueError("this store was opened without limits and cannot judge")
        return read_rollouts(upload.path, upload.lease, self._limits), sha256_file(upload.path)

    def judge(self, upload: Upload, verdict: Verdict, note: JudgeNote | None = None) -> None:
        del note
        self.records.verdicts[upload.step, upload.submission] = verdict

    def ban(self, node: str, reason: str, rates: int | None = None) -> None:
        self.records.bans[node] = reason

    def accepted(self, step: int) -> Iterator[Submission]:
        for upload in self._uploads(step, step):
            place, verdict = (upload.step, upload.submission), self._verdict(upload)
            if verdict is None or not verdict.accept or place in self._yielded:
                continue
            self._yielded.add(place)
            try:
                submission, _ = self.read(upload)
            except (RolloutError, UnreadError) as error:
                self.turn_down(*place, str(error))
                continue
            root = self._root_of(submission.version)
            if submission.weights != root:
                made, now = submission.weights[:12], root[:12] if root else None
                self.turn_down(*place, f"made with weights {made!r} as version {submission.version}, now {now!r}")
                continue
            yield submission

    def turn_down(self, step: int, submission: int, reason: str) -> None:
        finding = Finding("trainer", "what is trained on is what was accepted", "accepted", reason)
        before = self.records.verdicts[step, submission]
        self.records.verdicts[step, submission] = Verdict(False, before.sha256, before.audited, finding)
        self._refused(f"step-{step:06d}/{submission:04d}.parquet", reason)

    def forget(self, before: int) -> None:
        for step in {step for step, _ in self.records.signal if step < before}:
            shutil.rmtree(self.records.folder / f"step-{step:06d}", ignore_errors=True)


def memory_store(
    run: RunDir, limits: Limits | None = None, refused: Callable[[str, str], None] = lambda _file, _reason: None
) -> MemoryStore:
    """A role's store in a run of this process."""
    return MemoryStore(records_of(run.path), run.config, run.channel(), limits, refused)
