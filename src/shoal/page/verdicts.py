"""Page "verdicts": what was claimed and what was found, file by file, with the evidence token by token."""

import re
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, false, func, select, true

from shoal.client.run_status import ADVICE
from shoal.coordinator.db.schema import nodes, submissions
from shoal.coordinator.verdicts import explain
from shoal.errors import LedgerError
from shoal.ledger.explain import explain as ledger_lines
from shoal.page.evidence import evidence_document
from shoal.page.privacy import public_text
from shoal.page.source import RunFiles
from shoal.protocol.numeric_evidence import standing
from shoal.protocol.verdict import NOBODYS_FAULT, Verdict
from shoal.validate.evidence.bundle import bundle_name

PER_PAGE = 50
RESULTS: dict[str, ColumnElement[bool]] = {
    "refused": submissions.c.accept.is_(False),
    "accepted": submissions.c.accept.is_(True),
    "waiting": submissions.c.accept.is_(None),
    "all": true(),
}
CHECK = re.compile(r"[a-z_-]{1,40}")


@dataclass(frozen=True, slots=True)
class VerdictQuery:
    """Which files are listed."""

    result: str = "refused"
    check: str = ""
    node: str = ""
    step: int | None = None
    page: int = 0


def verdicts_document(db: Connection, query: VerdictQuery) -> dict[str, object]:
    """Counts, and one page of files, the newest first."""
    wanted = RESULTS.get(query.result, RESULTS["refused"])
    if query.node:
        wanted &= submissions.c.node.startswith(query.node.lower(), autoescape=True)
    if query.step is not None:
        wanted &= submissions.c.step == query.step
    if check := query.check.lower():
        named = submissions.c.verdict.contains(f'"check": "{check}"', autoescape=True)
        wanted &= named if CHECK.fullmatch(check) else false()
    found = db.execute(select(func.count()).select_from(submissions).where(wanted)).scalar_one()
    counts: dict[bool | None, int] = dict(
        db.execute(select(submissions.c.accept, func.count()).group_by(submissions.c.accept)).all()
    )
    page = min(query.page, max(0, -(-found // PER_PAGE) - 1))
    return {
        "accepted": counts.get(True, 0),
        "refused": counts.get(False, 0),
        "unjudged": counts.get(None, 0),
        "found": found,
        "page": page,
        "per_page": PER_PAGE,
        "files": listed(db, wanted, page),
    }


def listed(db: Connection, wanted: ColumnElement[bool], page: int) -> list[dict[str, object]]:
    """One page of files with what became of them."""
    rows = db.execute(
        select(submissions, nodes.c.name)
        .outerjoin(nodes, nodes.c.address == submissions.c.node)
        .where(wanted)
        .order_by(submissions.c.received.desc(), submissions.c.step.desc(), submissions.c.submission.desc())
        .limit(PER_PAGE)
        .offset(page * PER_PAGE)
    )
    found = []
    for row in rows:
        verdict = Verdict.from_json(row.verdict) if row.verdict else None
        finding = verdict.finding if verdict else None
        found.append(
            {
                "step": row.step,
                "submission": row.submission,
                "node": row.node,
                "name": public_text(row.name or ""),
                "received": row.received,
                "judged": row.judged,
                "accept": row.accept,
                "audited": verdict.audited if verdict else None,
                "tokens": row.tokens,
                "groups": row.groups,
                "check": public_text(finding.check) if finding else "",
                "claimed": public_text(finding.claimed) if finding else "",
                "found": public_text(finding.found) if finding else "",
                "blame": finding is not None and finding.check not in NOBODYS_FAULT,
            }
        )
    return found


def verdict_document(db: Connection, files: RunFiles, step: int, submission: int) -> dict[str, object]:
    """One file: its verdict, what to do about it, the votes on the ledger, and the evidence; Refusal if unknown."""
    told = explain(db, step, submission)
    verdict = told.verdict
    finding = verdict.finding if verdict else None
    numbers = verdict.numbers if verdict else None
    name = bundle_name(step, submission)
    has_bundle = verdict is not None and not verdict.accept and (files.path / "evidence" / name).is_file()
    return {
        "step": step,
        "submission": submission,
        "node": told.node,
        "sha256": told.sha256,
        "received": told.received,
        "judged": told.judged,
        "judge": told.judge,
        "accept": verdict.accept if verdict else None,
        "audited": verdict.audited if verdict else None,
        "samples": verdict.samples if verdict else 0,
        "tokens": verdict.tokens if verdict else 0,
        "finding": {
            "check": public_text(finding.check),
            "rule": public_text(finding.rule),
            "claimed": public_text(finding.claimed),
            "found": public_text(finding.found),
            "sample": finding.sample,
            "blame": finding.check not in NOBODYS_FAULT,
        }
        if finding
        else None,
        "numbers": public_text(numbers) if numbers else "",
        "against": public_text(standing(numbers.node_nats, numbers.node_files, numbers.limit)) if numbers else "",
        "advice": [
            line.replace("STEP/NUMBER", f"{step}/{submission}")
            for line in ADVICE.get(finding.check if finding else "", ())
        ],
        "ledger": _ledger(files, step, submission),
        "why": f"shoal why {step}/{submission} RUN",
        "replay": f"shoal replay RUN/evidence/{name}" if has_bundle else "",
        "evidence": evidence_document(files, step, submission) if has_bundle else None,
    }


def _ledger(files: RunFiles, step: int, submission: int) -> list[str]:
    with files.ledger.lock:
        state = files.ledger.state
        if state is None:
            return []
        try:
            return [public_text(line) for line in ledger_lines(state, step, submission)[1:]]
        except LedgerError:
            return ["its step is not entered yet"]
