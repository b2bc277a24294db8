"""A directory as RolloutStore: leases and files of a step side by side, each appearing whole or not at all.

`step-000012/0003.lease.json` is created by exactly one node, which makes submission 3 of step 12 its own;
`0003.parquet` is written once. Nothing is locked, so nothing stays locked when a process is killed.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from shoal.errors import BannedError, RolloutError, UnreadError
from shoal.files import numbered, parse_json, read_regular, set_aside, sha256_file, write_whole
from shoal.protocol.lease import NODE_NAME, Lease
from shoal.protocol.pacing import StepCount, next_grant
from shoal.protocol.size_limits import MAX_BYTES
from shoal.protocol.stores import Upload
from shoal.protocol.submission import Limits, Submission, Summary, read_rollouts, read_summary
from shoal.protocol.verdict import Finding, Verdict
from shoal.tasks.difficulty import Table

NUMBERED = re.compile(r"\d{4,9}")
# Signal rates are judged by this many steps before the newest version's.
MEMORY = 4


@dataclass(frozen=True, slots=True)
class Rules:
    """What the store hands out leases by."""

    run: str
    beacon: int
    steps: int
    async_level: int
    groups_per_step: int
    most_groups: int
    groups_per_submission: int
    lease_s: float
    weighted: bool = False
    """Whether tasks are drawn by tables of weights."""
    online_filter: bool = True


class DirectoryStore:
    """Leases, submissions and verdicts of a run in one directory.

    `root_of` names the content of a version: a file made with anything else under that number is refused. `refused` is
    told of each file that is turned away. `table_of` gives the weights that came with a version.
    """

    def __init__(
        self,
        path: Path,
        rules: Rules,
        limits: Limits | None = None,
        root_of: Callable[[int], str | None] = lambda _: None,
        refused: Callable[[str, str], None] = lambda _file, _reason: None,
        table_of: Callable[[int], Table | None] = lambda _: None,
    ) -> None:
        self._path = path
        self._rules = rules
        self._limits = limits
        self._root_of = root_of
        self._refused = refused
        self._table_of = table_of
        self._summaries: dict[Path, Summary] = {}
        self._judged: set[Path] = set()

    def lease(self, node: str, version: int) -> Lease | None:
        """The node's own unfinished lease if it has one, so that a restarted node goes on; a new one otherwise."""
        rules = self._rules
        if not NODE_NAME.fullmatch(node):
            raise RolloutError(f"node name {node!r:.80}: must be letters, digits, dots and dashes, 64 at most")
        with suppress(OSError, ValueError):
            ban = parse_json(read_regular(self._ban(node)))
            raise BannedError(f"{node}: gets no more leases in this run: {ban.get('reason')}")
        serves = range(version, min(version + rules.async_level, rules.steps - 1) + 1)
        for step in serves:
            for lease in self._open_leases(step):
                if lease.node == node:
                    return lease
        while True:
            # Before counting: a lease that appears while we count takes our number, and we count again.
            numbers = {step: self._next_number(step) for step in serves}
            counts = {step: self.count(step) for step in range(max(0, version - MEMORY), version + len(serves))}
            grant = next_grant(
                counts,
                version=version,
                async_level=rules.async_level,
                steps=rules.steps,
                needed=rules.groups_per_step,
                most_seen=rules.most_groups,
                submission_groups=rules.groups_per_submission,
                online_filter=rules.online_filter,
            )
            if grant is None:
                return None
            lease = Lease(
                run=rules.run,
                node=node,
                step=grant.step,
                submission=numbers[grant.step],
                oldest=max(0, grant.step - rules.async_level),
                newest=grant.step,
                groups=grant.groups,
                beacon=rules.beacon,
                deadline=time.time() + rules.lease_s,
            )
            folder = self._folder(lease.step)
            if os.path.lexists(folder) and not folder.is_dir():
                set_aside(folder)
            try:
                write_whole(self._lease_path(lease), lease.to_json().encode(), once=True)
            except FileExistsError:
                continue  # another node was faster; count again
            return lease

    def table(self, lease: Lease) -> Table | None:
        if not self._rules.weighted:
            return None
        table = self._table_of(lease.oldest)
        if table is None:
            raise RolloutError(f"{lease}: the table of weights of version {lease.oldest} is not here (any more)")
        return table

    def put(self, lease: Lease, data: bytes) -> None:
        if self._read_lease(lease.step, lease.submission) != lease:
            raise RolloutError(f"{lease}: never issued, or to another node")
        if time.time() > lease.deadline:
            raise RolloutError(f"{lease}: expired {time.time() - lease.deadline:.0f} s ago; its work went elsewhere")
        try:
            write_whole(self._folder(lease.step) / f"{lease.submission:04d}.parquet", data, once=True)
        except FileExistsError:
            raise RolloutError(f"{lease}: was already submitted; a lease is good for one file") from None

    def count(self, step: int) -> StepCount:
        # Leases first: one that is handed in meanwhile counts twice for a moment, rather than not at all.
        leased = sum(lease.groups for lease in self._open_leases(step))
        seen = signal = 0
        for path in self._files(step):
            if (number := _number(path, ".parquet")) is None:
                continue
            summary = self._summary(path, step, number)
            seen += summary.groups
            signal += summary.signal
        return StepCount(seen, signal, leased)

    def is_out(self, version: int) -> bool:
        return self._root_of(version) is not None

    def waiting(self, first: int, last: int) -> list[Upload]:
        found = []
        for step in range(first, last + 1):
            for path in self._files(step):
                number = _number(path, ".parquet")
                if number is None or path in self._judged or self._read_verdict(path) is not None:
                    continue
                found.append(Upload(step, number, self._read_lease(step, number), path))
        return found

    def read(self, upload: Upload) -> tuple[Submission, str]:
        before = _hash(upload.path)
        submission = self._read(upload.path, upload.step)
        if _hash(upload.path) != before:
            raise RolloutError(f"{upload.path.name}: was changed while it was read")
        return submission, before

    def judge(self, upload: Upload, verdict: Verdict) -> None:
        if not upload.path.parent.is_dir():
            return  # its step is forgotten
        target = upload.path.with_suffix(".verdict.json")
        if target.is_dir():
            set_aside(target)
        write_whole(target, verdict.to_json().encode())

    def ban(self, node: str, reason: str) -> None:
        write_whole(self._ban(node), json.dumps({"reason": reason}).encode())

    def accepted(self, step: int) -> Iterator[Submission]:
        for path in self._files(step):
            if path in self._judged:
                continue
            number = _number(path, ".parquet")
            if number is None:
                self._judged.add(path)
                self._refused(f"{path.parent.name}/{path.name}", f"{path.name}: no submission has that name")
                continue
            verdict = self._read_verdict(path)
            if verdict is None:
                continue
            self._judged.add(path)
            reason = verdict.reason
            if verdict.accept:
                try:
                    yield self._confirmed(path, step, verdict)
                    continue
                except (RolloutError, UnreadError) as error:
                    self.turn_down(step, number, str(error))
                    continue
            self._refused(f"{path.parent.name}/{path.name}", reason)

    def turn_down(self, step: int, submission: int, reason: str) -> None:
        path = self._folder(step) / f"{submission:04d}.parquet"
        finding = Finding("trainer", "what is trained on is what was accepted", "accepted", reason)
        verdict = self._read_verdict(path)
        self.judge(
            Upload(step, submission, None, path),
            Verdict(False, verdict.sha256 if verdict else "", bool(verdict and verdict.audited), finding),
        )
        self._refused(f"{path.parent.name}/{path.name}", reason)

    def _confirmed(self, path: Path, step: int, verdict: Verdict) -> Submission:
        """An accepted file's content, if it still is that file and still fits the run."""
        submission, found = self.read(Upload(step, 0, None, path))
        if found != verdict.sha256:
            raise RolloutError(f"{path.name}: was changed after it was accepted ({found[:12]})")
        root = self._root_of(submission.version)
        if submission.weights != root:  # a trainer that was killed takes back versions that no checkpoint backs
            raise RolloutError(
                f"{path.name}: made with weights {submission.weights[:12]!r} as version {submission.version}, "
                f"which is {root[:12] if root else 'not here any more'!r}"
            )
        return submission

    def forget(self, before: int) -> None:
        """Removes the rollouts of steps that are long trained."""
        for folder in self._path.glob("step-*"):
            step = numbered(folder.name, "step-")
            if step is not None and step < before:
                shutil.rmtree(folder, ignore_errors=True)

    def _read(self, path: Path, step: int) -> Submission:
        number = _number(path, ".parquet")
        if number is None:
            raise RolloutError(f"{path.name}: no submission has that name")
        lease = self._read_lease(step, number)
        if lease is None:
            raise RolloutError(f"{path.name}: no lease was issued for submission {number} of step {step}")
        if self._limits is None:
            raise ValueError("this store was opened without limits and cannot judge")
        self._check_lease(path, lease)
        return read_rollouts(path, lease, self._limits)

    def _check_lease(self, path: Path, lease: Lease) -> None:
        """The lease must be one that this run gives: a file in the directory is no proof of it."""
        rules = self._rules
        given = (rules.run, rules.beacon, max(0, lease.step - rules.async_level), lease.step)
        right = (lease.run, lease.beacon, lease.oldest, lease.newest) == given
        if not right or not 1 <= lease.groups <= rules.most_groups:
            raise RolloutError(
                f"{path.name}: {lease} is not one that this run gives: versions {lease.oldest}..{lease.newest}, "
                f"expected {given[2]}..{given[3]}; {lease.groups} groups, allowed 1..{rules.most_groups}"
            )

    def _read_verdict(self, path: Path) -> Verdict | None:
        """A damaged verdict is as good as none."""
        try:
            return Verdict.from_json(read_regular(path.with_suffix(".verdict.json")))
        except (OSError, ValueError, RecursionError):
            return None

    def _ban(self, node: str) -> Path:
        return self._path / "banned" / f"{node}.json"

    def _summary(self, path: Path, step: int, number: int) -> Summary:
        """Counts of a file; one that was refused, cannot be read or claims other groups than its lease's counts for
        nothing.

        A file is written once, so it is read once. The verdict is read every time: one that was accepted is refused
        later if a resumed trainer has retracted the weights it was made with.
        """
        verdict = self._read_verdict(path)
        refused = verdict is not None and not verdict.accept
        if not refused and path not in self._summaries:
            try:
                summary = read_summary(path)
            except (RolloutError, UnreadError):
                return Summary(0, 0)
            lease = self._read_lease(step, number)
            if lease is None or summary.groups != lease.groups:
                return Summary(0, 0)
            self._summaries[path] = summary
        return Summary(0, 0) if refused else self._summaries[path]

    def _open_leases(self, step: int) -> Iterator[Lease]:
        """Leases that are still out. One that this run does not give, or not for so long, holds nothing up."""
        now = time.time()
        folder = self._folder(step)
        for path in sorted(folder.glob("*.lease.json")):
            number = _number(path, ".lease.json")
            if number is None or os.path.lexists(folder / f"{number:04d}.parquet"):
                continue
            lease = self._read_lease(step, number)
            try:
                if lease is not None and now <= lease.deadline <= now + self._rules.lease_s:
                    self._check_lease(path, lease)
                    yield lease
            except RolloutError:
                continue

    def _next_number(self, step: int) -> int:
        """The smallest number that nothing in the folder bears, be it a lease or not."""
        taken = {path.name.split(".")[0] for path in self._folder(step).glob("*.*")}
        return next(number for number in count() if f"{number:04d}" not in taken)

    def _read_lease(self, step: int, submission: int) -> Lease | None:
        try:
            lease = Lease.from_json(read_regular(self._folder(step) / f"{submission:04d}.lease.json"))
        except (OSError, RolloutError):
            return None
        right = (lease.step, lease.submission) == (step, submission) and NODE_NAME.fullmatch(lease.node)
        return lease if right else None

    def _lease_path(self, lease: Lease) -> Path:
        return self._folder(lease.step) / f"{lease.submission:04d}.lease.json"

    def _files(self, step: int) -> list[Path]:
        return sorted(self._folder(step).glob("*.parquet"))

    def _folder(self, step: int) -> Path:
        return self._path / f"step-{step:06d}"


def _number(path: Path, suffix: str) -> int | None:
    """The submission a file's name stands for; None for any other name, so that no file counts under two names."""
    text = path.name.removesuffix(suffix)
    return int(text) if NUMBERED.fullmatch(text) and f"{int(text):04d}" == text else None


def _hash(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RolloutError(f"{path.name}: more than {MAX_BYTES} bytes")
        return sha256_file(path)
    except OSError as error:
        raise RolloutError(f"{path.name}: not a readable Parquet file ({error})") from error
