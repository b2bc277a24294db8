"""Verdicts in the database: who may give one, which bytes it is bound to, and what the trainer may read.

A file is in quarantine until a validator's verdict. A verdict names the hash of the bytes it judged and is final, but
for one thing: the trainer may turn down what was accepted, and then it is never read. The bytes of what is rejected
stay until the verdict can no longer be challenged (`keeping`): an arbiter judges them again.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, case, exists, func, select, true
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from shoal.coordinator import draws
from shoal.coordinator.db import queries
from shoal.coordinator.db.schema import WITH_FILE, evidence, leases, nodes, notes, submissions, votes
from shoal.coordinator.judging_turns import Turns, mixed
from shoal.coordinator.leases import lease_of
from shoal.coordinator.nodes import Node, must_judge, validators_at_work
from shoal.coordinator.policy import Terms
from shoal.coordinator.uploads import object_name
from shoal.protocol.judge_note import FiledNote, JudgeNote
from shoal.protocol.lease import Lease
from shoal.protocol.numeric_evidence import NumericEvidence
from shoal.protocol.refusal import Refusal
from shoal.protocol.stores import PROVEN
from shoal.protocol.verdict import NUMBERS, ROUNDING, Verdict

MAX_LISTED = 1000
MAX_NOTES = 500
MAX_WHY = 500  # characters
_LISTED = [submissions.c[name] for name in ("step", "submission", "sha256", "size", "received", "ordinal")]


@dataclass(frozen=True, slots=True)
class Filed:
    """A file that was handed in, and the lease that it was handed in under."""

    lease: Lease
    sha256: str
    size: int
    record: int
    """What its node has shown (`leases.record_of`)."""
    ordinal: int
    """Which of its node's files this is, from 1 on."""
    received: float


@dataclass(frozen=True, slots=True)
class Against:
    """Numeric evidence against a node."""

    nats: float
    files: int
    limit: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """What became of a submission."""

    step: int
    submission: int
    node: str
    sha256: str
    received: float
    verdict: Verdict | None
    judge: str
    judged: float | None


def filed(
    db: Connection, terms: Terms, who: str, first: int, last: int, accept: bool | None, most: int = MAX_LISTED
) -> list[Filed]:
    """Files of steps first .. last that are accepted, rejected, or (None) wait for a verdict, in the order in which
    they are to be judged.

    Where several decide, a file waits for `who` until it has voted: the others may have been faster. What is known to
    be bad is not shown to the trainer, even if it was accepted.
    """
    own = (votes.c.step == submissions.c.step) & (votes.c.submission == submissions.c.submission)
    voted = exists().where(own, votes.c.judge == who)
    waits = ~voted if terms.quorum > 1 else submissions.c.accept.is_(None)
    found = (
        select(*_LISTED, queries.RECORD.label("record"), queries.QUEUE.label("queue"), queries.TURN.label("turn"))
        .outerjoin(nodes, nodes.c.address == submissions.c.node)
        .where(submissions.c.step.between(first, last), submissions.c.kept)
        .where(waits if accept is None else submissions.c.accept.is_(accept))
        .where(~queries.PLANTED_BAD if who == terms.trainer else true())
        .subquery()
    ).c
    rows = db.execute(
        select(leases, found.sha256, found.size, found.record, found.ordinal, found.received)
        .join(leases, (found.step == leases.c.step) & (found.submission == leases.c.submission))
        .order_by(*(_judging_order(found, leases.c.version) if accept is None else ()), found.step, found.submission)
        .limit(most)
    )
    return [
        Filed(lease_of(terms.run, row), row.sha256, row.size, row.record, row.ordinal, row.received) for row in rows
    ]


def filed_for(
    db: Connection, terms: Terms, who: str, first: int, last: int, turns: Turns, hand: int, now: float
) -> list[Filed]:
    """Files that wait for a verdict and that it is this validator's turn to judge; all of them, where all validators
    judge each file."""
    there = {who, *validators_at_work(db)}
    if len(there) <= terms.seats:
        return filed(db, terms, who, first, last, None)
    waiting = filed(db, terms, who, first, last, None, MAX_LISTED * len(there))
    proven, others = [f for f in waiting if f.record >= PROVEN], [f for f in waiting if f.record < PROVEN]
    by_place = {(file.lease.step, file.lease.submission): file for file in mixed(proven, others)}
    return [by_place[place] for place in turns.deal(who, list(by_place), there, hand, now)]


def _judging_order(
    found: ReadOnlyColumnCollection[str, Any], version: ColumnElement[int]
) -> tuple[ColumnElement[Any], ...]:
    """Files of nodes that have shown that they work come first, step by step and version by version. After them
    newcomers take turns, network by network, and within one node by node: a thousand rubbish files of a thousand keys
    in one place keep a newcomer elsewhere waiting for one of them."""
    turn = func.row_number().over(partition_by=found.queue, order_by=(found.turn, found.received))
    by_step, by_version = (case((found.record == PROVEN, column), else_=0) for column in (found.step, version))
    return found.record.desc(), by_step, by_version, turn


def place_of(db: Connection, step: int, submission: int) -> tuple[str, int]:
    """An upload's name in the object store, and its size."""
    row = _find(db, step, submission)
    if not row.kept:
        raise Refusal(
            "expired", f"submission {submission} of step {step}: its bytes were removed after its verdict or training"
        )
    return object_name(step, submission, row.sha256), row.size


def judge(
    db: Connection,
    terms: Terms,
    node: Node,
    step: int,
    submission: int,
    verdict: Verdict,
    now: float,
    note: JudgeNote | None = None,
    rates: int = 0,
) -> bool:
    """Enters a verdict; False if the same one was there already.

    `rates` is the newest version of the honest rates. What numbers show by an earlier one is held against nobody: a
    validator may be at a file while they are loosened.
    """
    row = _find(db, step, submission)
    name = f"submission {submission} of step {step}"
    revokes = row.accept is True and not verdict.accept and node.address == terms.trainer
    if verdict.accept or row.accept is None or node.address != terms.trainer:
        must_judge(terms, node.address)
    if (verdict.accept or verdict.sha256) and verdict.sha256 != row.sha256:
        raise Refusal("taken", f"{name}: has hash {row.sha256[:12]}, the verdict is on {verdict.sha256[:12] or 'none'}")
    if row.accept is not None and not revokes:
        if terms.quorum > 1:
            return _votes_late(db, terms, node.address, row, verdict)
        if row.accept == verdict.accept:
            return False
        said = "accepted" if row.accept else "rejected"
        raise Refusal("taken", f"{name}: was {said} by {row.judge}; a verdict is final")
    if not revokes and not _decides(db, terms, node.address, step, submission, verdict):
        return True
    found: dict[str, object] = {"accept": verdict.accept, "verdict": verdict.to_json(), "judge": node.address}
    counted: dict[str, object] = {} if revokes else {"judged": now, "tokens": _tokens(db, row, verdict)}
    db.execute(
        submissions.update()
        .where(submissions.c.step == step, submissions.c.submission == submission)
        .values(**found, **counted)
    )
    if note is not None and not revokes:  # in the same transaction: who reads the verdict finds the note
        place = {"step": step, "submission": submission, "judge": node.address}
        db.execute(queries.ADD_NOTE, {**place, "body": note.model_dump_json()})
    by_numbers = verdict.finding is not None and verdict.finding.check in (NUMBERS, ROUNDING)
    said_by = verdict.numbers.rates if verdict.numbers is not None else None
    is_outdated = said_by is not None and said_by < rates
    if verdict.numbers is not None and not is_outdated:
        _weigh(db, row.node, verdict.numbers)
    if not revokes:  # what the trainer turns down is not the node's fault
        lease = db.execute(queries.LEASE, {"at_step": step, "at_submission": submission}).one()
        if verdict.accept:
            took = {"more_busy_s": _busy_s(db, terms, row, lease)}
            more = {"more_samples": verdict.samples, "more_tokens": verdict.tokens, **took}
            db.execute(queries.ACCEPTED, {"who": row.node, **more})
            draws.accepted(db, lease)
        elif not (is_outdated and by_numbers):
            why = f"{step}/{submission}: {verdict.reason[:MAX_WHY]}"
            db.execute(queries.REJECTED, {"who": row.node, "why": why})
            draws.refused(db, lease, verdict.finding)
    return True


def _busy_s(db: Connection, terms: Terms, row: Row[Any], lease: Row[Any]) -> float:
    """Seconds that a node took for a file: from its lease, or from the file before where it held several leases at
    once, to its arrival. So the times of all its files together are the time in which it had work."""
    beside = {"who": row.node, "first": row.step - terms.async_level, "received": row.received}
    before = db.execute(queries.ARRIVED_BEFORE, beside).scalar()
    return max(0.0, float(row.received - max(lease.issued, before or 0.0)))


def notes_after(db: Connection, number: int) -> list[FiledNote]:
    """What validators said of files after the note of that number, in the order of their verdicts."""
    same = (notes.c.step == submissions.c.step) & (notes.c.submission == submissions.c.submission)
    file = [submissions.c[name] for name in ("node", "ordinal", "sha256")]
    rows = db.execute(
        select(notes, *file)
        .join(submissions, same)
        .where(notes.c.number > number)
        .order_by(notes.c.number)
        .limit(MAX_NOTES)
    )
    return [
        FiledNote(
            number=row.number,
            judge=row.judge,
            step=row.step,
            submission=row.submission,
            node=row.node,
            ordinal=row.ordinal,
            sha256=row.sha256,
            note=JudgeNote.model_validate_json(row.body),
        )
        for row in rows
    ]


def received(db: Connection, step: int, submission: int) -> float:
    """When a file came."""
    found: float = _find(db, step, submission).received
    return found


def _weigh(db: Connection, node: str, numbers: NumericEvidence) -> None:
    """Notes what there is against a node by now, in the words of the validator whose verdict it is."""
    found = {"nats": numbers.node_nats, "files": numbers.node_files, "limit_nats": numbers.limit}
    if not db.execute(evidence.update().where(evidence.c.node == node).values(**found)).rowcount:
        db.execute(evidence.insert().values(node=node, **found))


def forget_evidence(db: Connection) -> None:
    """Holds nothing against anybody that odds had won which were too strict, as validators do (`Account.forget`)."""
    db.execute(evidence.update().values(nats=0.0))


def evidence_against(db: Connection, node: str) -> Against | None:
    """Numeric evidence against a node; None if none of its files was weighed."""
    row = db.execute(select(evidence).where(evidence.c.node == node)).first()
    return Against(row.nats, row.files, row.limit_nats) if row is not None else None


def _decides(db: Connection, terms: Terms, judge: str, step: int, submission: int, verdict: Verdict) -> bool:
    """Notes a validator's vote; whether there are enough equal ones now. Nobody is shown votes before that.

    Those who accept must have counted the same tokens: the node is paid by them.
    """
    if terms.quorum == 1 or judge == terms.trainer:
        return True
    said, vote = _votes(db, step, submission), (verdict.accept, verdict.tokens)
    if judge in said and said[judge][0] != verdict.accept:
        raise Refusal("taken", f"submission {submission} of step {step}: {judge} has voted otherwise; a vote is final")
    if judge not in said:
        _add_vote(db, judge, step, submission, *vote)
    alike = [v for v in {**said, judge: vote}.values() if v == vote or not (v[0] or verdict.accept)]
    return len(alike) >= terms.quorum


def _votes_late(db: Connection, terms: Terms, judge: str, row: Row[tuple[object, ...]], verdict: Verdict) -> bool:
    """Notes the vote of a validator that others were faster than. It decides nothing, and says that it was at work."""
    if judge not in terms.validators or judge in _votes(db, row.step, row.submission):
        return False
    _add_vote(db, judge, row.step, row.submission, verdict.accept, verdict.tokens)
    return True


def _tokens(db: Connection, row: Row[tuple[object, ...]], verdict: Verdict) -> int:
    """What a file is entered with: as it was counted, and of a rejected one, which costs by them, the least count."""
    if verdict.accept:
        return verdict.tokens
    others = [tokens for accept, tokens in _votes(db, row.step, row.submission).values() if not accept]
    return min([verdict.tokens, *others])


def _votes(db: Connection, step: int, submission: int) -> dict[str, tuple[bool, int]]:
    rows = db.execute(queries.VOTES, {"at_step": step, "at_submission": submission})
    return {row.judge: (row.accept, row.tokens) for row in rows}


def _add_vote(db: Connection, judge: str, step: int, submission: int, accept: bool, tokens: int) -> None:
    vote = {"step": step, "submission": submission, "judge": judge, "accept": accept, "tokens": tokens}
    db.execute(queries.ADD_VOTE, vote)


def explain(db: Connection, step: int, submission: int) -> Explanation:
    """What became of a submission; a Refusal says what became of a lease without one."""
    place = {"at_step": step, "at_submission": submission}
    lease = db.execute(queries.LEASE, place).first()
    if lease is not None and lease.status not in WITH_FILE:
        raise Refusal("unknown", draws.became_of(db, lease))
    row = _find(db, step, submission)
    verdict = Verdict.from_json(row.verdict) if row.verdict else None
    return Explanation(step, submission, row.node, row.sha256, row.received, verdict, row.judge or "", row.judged)


def forget(db: Connection, before: int) -> list[str]:
    """Marks the files of steps before this one as removed; gives their names. What was said of them stays."""
    old = (submissions.c.step < before) & submissions.c.kept
    rows = db.execute(select(submissions.c.step, submissions.c.submission, submissions.c.sha256).where(old)).all()
    if rows:
        db.execute(submissions.update().where(old).values(kept=False))
    return [object_name(*row) for row in rows]


def _find(db: Connection, step: int, submission: int) -> Row[tuple[object, ...]]:
    row = db.execute(queries.FILE, {"at_step": step, "at_submission": submission}).first()
    if row is None:
        raise Refusal("unknown", f"submission {submission} of step {step}: no file was submitted under that number")
    return row
