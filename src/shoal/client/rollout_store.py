"""`RolloutStore` over HTTP: leases, idempotent uploads, downloads checked by hash, verdicts.

One class serves worker, validator and trainer; what each may do is decided by its key. A file is fetched once, checked
against the hash that the coordinator gave for it, and read from a directory of the node's own.
"""

import io
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pyarrow.parquet as pq

from shoal.client.client import CoordinatorClient
from shoal.config import RunConfig
from shoal.errors import RolloutError, SwarmError, UnreadError, WaitError
from shoal.files import make_directory, numbered, remove, sha256_file
from shoal.protocol import messages as m
from shoal.protocol.judge_note import JudgeNote
from shoal.protocol.lease import Lease
from shoal.protocol.pacing import StepCount
from shoal.protocol.refusal import Refusal
from shoal.protocol.rollout_rules import Limits
from shoal.protocol.signed_lease import SignedLease
from shoal.protocol.spans import SpanLease
from shoal.protocol.stores import Upload
from shoal.protocol.submission import Submission, read_rollouts
from shoal.protocol.task_weights import SignedTable
from shoal.protocol.verdict import Finding, Value, Verdict
from shoal.tasks.difficulty import Table

# How long the coordinator holds a question for files that are not there yet: its answer comes when they do.
LONG_POLL_S = 0.5
SUSPENDED_RETRY_S = 5.0
LONGEST_RETRY_S = 60.0
# Tables of weights at hand: those of all leases that can be out, at the largest async level.
KEPT_TABLES = 64
# How long one file is fetched before others have their turn, and how often that is tried before it is given up.
FETCH_S = 60.0
MAX_FETCHES = 5


class SwarmStore:
    """Leases, submissions and verdicts of a run, through its coordinator."""

    def __init__(
        self,
        link: CoordinatorClient,
        cache: Path,
        limits: Limits | None = None,
        root_of: Callable[[int], str | None] = lambda _: None,
        refused: Callable[[str, str], None] = lambda _file, _reason: None,
    ) -> None:
        """`cache` is for fetched files; `limits` and `root_of` are what they are judged by."""
        self._link = link
        self._cache = cache
        self._limits = limits
        self._root_of = root_of
        self._refused = refused
        self._yielded: set[tuple[int, int]] = set()
        self._failed: Counter[tuple[int, int]] = Counter()
        self._known: dict[tuple[int, int], tuple[str, int]] = {}
        self._next_ask: tuple[object, float] = ((), 0.0)
        self._config: RunConfig | None = None
        self._roots: dict[int, str] = {}
        self._tables: dict[int, SignedTable] = {}

    @property
    def signer(self) -> str:
        return self._link.card.coordinator

    def lease(self, node: str, version: int, holding: Collection[tuple[int, int]] = ()) -> Lease | None:
        """Asks no more often than the coordinator wishes while it has no work for this version beside these leases."""
        if node != self._link.key.address:
            raise RolloutError(
                f"node {node!r:.80}: a lease is granted only to the node that signs, {self._link.key.address}"
            )
        question = (version, *sorted(holding))
        asked, after = self._next_ask
        if question == asked and time.monotonic() < after:
            return None
        try:
            answer = self._link.ask(m.LeaseOut, "POST", "/v1/leases", {"version": version, "holding": list(holding)})
        except Refusal as refusal:
            if refusal.code != "suspended":
                raise
            answer = m.LeaseOut(lease=None, retry_s=SUSPENDED_RETRY_S)  # it passes
        if answer.lease is None:
            self._next_ask = (question, time.monotonic() + min(max(0.0, answer.retry_s), LONGEST_RETRY_S))
            return None
        signed = SignedLease.from_tree(answer.lease)
        signed.check(self._link.card.coordinator)
        signed.check_fits(self._run_config())
        lease = signed.lease
        if (lease.run, lease.node) != (self._link.card.run, node):
            raise RolloutError(f"{lease}: is for run {lease.run} and {lease.node}, this is {node}")
        self._next_ask = ((), 0.0)
        kept = {number: root for number, root in self._roots.items() if number > lease.version - KEPT_TABLES}
        self._roots = kept | {lease.version: signed.root}
        return lease

    def span(self, lease: Lease, first: int, version: int) -> SpanLease:
        target = f"/v1/leases/{lease.step}/{lease.submission}/spans/{first}"
        try:
            answer = self._link.ask(m.SpanOut, "PUT", target, {"version": version})
        except Refusal as refusal:
            raise RolloutError(f"{lease}: {refusal.reason}") from None
        span = SpanLease(**answer.model_dump())
        span.check(lease, self._link.card.coordinator)
        if span.first != first or not lease.version <= span.version <= lease.step:
            raise RolloutError(f"{lease}: asked for the span from {first} on, and got {span}")
        return span

    def table(self, lease: Lease) -> Table | None:
        """That of the version as the lease names it, or, for a validator, as it is known here: after one was taken
        back, another may have its number."""
        if self._run_config().sampler.kind == "uniform":
            return None
        number = lease.version
        root = self._roots.get(number) or self._root_of(number)
        if (kept := self._tables.get(number)) is None or kept.root != root:
            try:
                kept = self._link.table(number)
            except Refusal as refusal:
                raise RolloutError(f"{lease}: {refusal.reason}") from None
            self._tables = {n: table for n, table in self._tables.items() if n > number - KEPT_TABLES} | {number: kept}
        if root is not None and kept.root != root:
            raise RolloutError(f"{lease}: version {number} is {kept.root[:12]} by now, and was {root[:12]}")
        return kept.table

    def _run_config(self) -> RunConfig:
        self._config = self._config or self._link.card.run_config()
        return self._config

    def put(self, lease: Lease, data: bytes) -> None:
        max_size = self._link.card.max_upload
        if len(data) > max_size:
            raise RolloutError(f"{lease}: a file of {len(data)} bytes, the run accepts at most {max_size}")
        try:
            if self._link.card.direct_uploads:
                self._link.put_direct(f"/v1/uploads/{lease.step}/{lease.submission}", data, _signal(data))
            else:
                self._link.put_file(f"/v1/files/{lease.step}/{lease.submission}?signal={_signal(data)}", data)
        except Refusal as refusal:
            raise RolloutError(f"{lease}: {refusal.reason}") from None

    def count(self, step: int) -> StepCount:
        return StepCount(**self._link.look(m.CountOut, f"/v1/steps/{step}").model_dump())

    def is_out(self, version: int) -> bool:
        newest = self._link.look(m.NewestOut, "/v1/versions").newest
        return newest is not None and version <= newest

    def waiting(self, first: int, last: int, hand: int = 0) -> list[Upload]:
        return self._filed(first, last, accepted=False, hand=hand)

    def read(self, upload: Upload) -> tuple[Submission, str]:
        place = (upload.step, upload.submission)
        sha256, size = self._known[place]
        if self._limits is None:
            raise ValueError("this store was opened without limits and cannot judge")
        self._fetch(upload, sha256, size)
        submission = read_rollouts(upload.path, upload.lease, self._limits)
        for span in submission.later:
            span.check(upload.lease, self.signer)
        return submission, sha256

    def judge(self, upload: Upload, verdict: Verdict, note: JudgeNote | None = None) -> None:
        """Enters a verdict. If another validator was faster its verdict stands."""
        self._enter(upload.step, upload.submission, verdict, note)

    def _enter(self, step: int, submission: int, verdict: Verdict, note: JudgeNote | None = None) -> None:
        path, finding = self._path_of(step, submission), verdict.finding
        body = {
            "accept": verdict.accept,
            "sha256": verdict.sha256,
            "audited": verdict.audited,
            "finding": None if finding is None else _trimmed(finding),
            "evidence": verdict.evidence[:500],
            "samples": verdict.samples,
            "tokens": verdict.tokens,
            "numbers": None if verdict.numbers is None else asdict(verdict.numbers),
            "note": None if note is None else note.model_dump(),
        }
        try:
            self._link.send("PUT", f"/v1/verdicts/{step}/{submission}", body)
        except RolloutError as error:
            self._refused(f"step-{step:06d}/{path.name}", str(error))
        finally:
            remove(path)

    def ban(self, node: str, reason: str, rates: int | None = None) -> None:
        """A node that left and was forgotten is nobody to ban: should it come back, it is a newcomer."""
        try:
            self._link.send("PUT", f"/v1/bans/{node}", {"reason": _clean(reason, 4000), "rates": rates})
        except Refusal as refusal:
            if refusal.code != "unknown":
                raise

    def accepted(self, step: int) -> Iterator[Submission]:
        for upload in self._filed(step, step, accepted=True):
            place = (upload.step, upload.submission)
            if place in self._yielded:
                continue
            self._yielded.add(place)
            try:
                submission, _ = self.read(upload)
                if (moved := self._taken_back(submission)) is None:
                    yield submission
                else:
                    self._turn_down(*place, moved, str(moved))
            except UnreadError as error:
                self._failed[place] += 1
                if error.again and self._failed[place] < MAX_FETCHES:
                    self._yielded.discard(place)  # the next call tries it again
                    continue
                self.turn_down(*place, str(error))
            except RolloutError as error:
                self.turn_down(*place, str(error))
            finally:
                remove(upload.path)

    def turn_down(self, step: int, submission: int, reason: str) -> None:
        finding = Finding("trainer", "what is trained on is what was accepted", "accepted", reason)
        self._turn_down(step, submission, finding, reason)

    def _turn_down(self, step: int, submission: int, finding: Finding, reason: str) -> None:
        sha256, _ = self._known[step, submission]
        self._enter(step, submission, Verdict(False, sha256, False, finding))
        self._refused(f"step-{step:06d}/{self._path_of(step, submission).name}", reason)

    def _taken_back(self, submission: Submission) -> Finding | None:
        """Names the version of an accepted file that was taken back and published again since."""
        for span in submission.spans:
            root = self._root_of(span.version)
            if span.weights != root:
                rule = f"version {span.version} is what is published under that number when it is trained on"
                return Finding("version", rule, span.weights[:64], root)
        return None

    def forget(self, before: int) -> None:
        self._link.send("DELETE", f"/v1/files?before={before}")
        self._yielded = {place for place in self._yielded if place[0] >= before}
        self._known = {place: known for place, known in self._known.items() if place[0] >= before}
        for folder in self._cache.glob("step-*"):
            step = numbered(folder.name, "step-")
            if step is not None and step < before:
                remove(folder)

    def _filed(self, first: int, last: int, accepted: bool, hand: int = 0) -> list[Upload]:
        had = sum(first <= step <= last for step, _ in self._yielded) if accepted else 0
        which = f"first={first}&last={last}&accepted={str(accepted).lower()}"
        target = f"/v1/files?{which}&beyond={had}&wait={LONG_POLL_S}&hand={hand}"
        uploads = []
        for file in self._link.ask(m.FiledList, "GET", target).files:
            lease = Lease.from_json(json.dumps(file.lease))
            self._known[lease.step, lease.submission] = (file.sha256, file.size)
            path = self._path_of(lease.step, lease.submission)
            place = lease.step, lease.submission
            uploads.append(Upload(*place, lease, path, file.record, file.ordinal))
        return uploads

    def _path_of(self, step: int, submission: int) -> Path:
        return self._cache / f"step-{step:06d}" / f"{submission:04d}.parquet"

    def _fetch(self, upload: Upload, sha256: str, size: int) -> None:
        """The upload's bytes in its path; those that are there already are taken if their hash is right.

        Whatever keeps them from coming, a coordinator that removed them included, is an UnreadError: the bytes that
        would show a fault are not here.
        """
        with suppress(OSError):
            if sha256_file(upload.path) == sha256:
                return
        make_directory(upload.path.parent)
        target = f"/v1/files/{upload.step}/{upload.submission}"
        try:
            self._link.fetch(target, upload.path, size, sha256, wait_s=FETCH_S)
        except (RolloutError, SwarmError, WaitError) as error:
            raise UnreadError(f"{upload.path.name}: could not be fetched ({error})", again=True) from error


def _signal(data: bytes) -> int:
    """Groups with signal that a file of our own claims in its footer."""
    footer = pq.read_metadata(io.BytesIO(data)).metadata or {}
    return int(json.loads(footer[b"shoal.summary"])["signal"])


def _trimmed(finding: Finding) -> dict[str, object]:
    """A finding as the coordinator takes it: a value from a stranger's file may be long or not a number."""
    return {
        "check": _clean(finding.check, 100),
        "rule": _clean(finding.rule, 2000),
        "claimed": _value(finding.claimed),
        "found": _value(finding.found),
        "sample": finding.sample,
    }


def _value(value: Value) -> Value:
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _clean(str(value), 4000)


def _clean(text: str, max_size: int) -> str:
    plain = text.encode(errors="backslashreplace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in plain)[:max_size]
