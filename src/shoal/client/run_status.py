"""What people ask a coordinator: how a run is, and what became of a submission."""

import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.client.client import CoordinatorClient
from shoal.client.known_coordinators import trusted
from shoal.crypto.keys import Key, checksummed, short
from shoal.errors import LedgerError, ShoalError, SwarmError
from shoal.extras import require
from shoal.ledger.contract_file import is_on_chain
from shoal.ledger.explain import explain as sentences
from shoal.ledger.reader import read_record
from shoal.ledger.store import LEDGER_FILE
from shoal.protocol import messages as m
from shoal.protocol.numeric_evidence import NumericEvidence, standing
from shoal.protocol.verdict import NUMBERS, ROUNDING
from shoal.rundir import RUN_FILE, open_run
from shoal.telemetry.status import seconds
from shoal.text import one_line

if TYPE_CHECKING:
    from shoal.coordinator.archive import OnRecord
    from shoal.coordinator.verdicts import Against

ASK_S = 10.0
MIN_WIDTH = 130
# What the maker of a file can do about a finding that its arithmetic, and no rule that it broke, may explain.
_LOOK = (
    "check that the worker computes as the run asks: weights in model.dtype and not quantised, nor the KV cache; the "
    "version that the lease names; sampling.temperature; no top-k, top-p or repetition penalty"
)
_CALIBRATE = (
    "if all of that is right, ask the run's owner to measure your machine: shoal calibrate RUN --answers FILES, "
    "then shoal loosen"
)
ADVICE = {
    ROUNDING: (
        "nothing, if it is rare: the file is not paid, nobody is blamed, and it happens to 1 in 1,000 honest files",
        _LOOK,
        _CALIBRATE,
    ),
    NUMBERS: (
        _LOOK,
        _CALIBRATE,
        "or challenge the verdict: shoal ledger challenge STEP/NUMBER --claim accept --join URL",
    ),
}
SUBMISSION = re.compile(r"(\d{1,9})/(\d{1,9})")


def ask_coordinator(join: str, submission: str) -> dict[str, Any]:
    """What a coordinator knows of a submission, STEP/NUMBER."""
    step, number = named_submission(submission)
    with _link(join) as link:
        return link.look(m.ExplanationOut, f"/v1/submissions/{step}/{number}").model_dump()


def ask_directory(run_dir: Path, submission: str) -> dict[str, Any]:
    """The same for a run on this machine, also after it has ended."""
    require("coordinator", f"run {run_dir}: reading its coordinator's records")
    from shoal.coordinator.archive import has_records, reading
    from shoal.coordinator.verdicts import explain

    run = open_run(run_dir)
    if not has_records(run):
        raise SwarmError(
            f"run {run_dir}: its coordinator's records are not on this machine; give its URL with --join instead"
        )
    with reading(run) as db:
        told = asdict(explain(db, *named_submission(submission)))
    told["ledger"] = _ledger_says(run_dir, told["step"], told["submission"])
    if told["verdict"] and told["verdict"]["evidence"]:
        told["verdict"]["evidence"] = str(run_dir / told["verdict"]["evidence"])
    return told


def _ledger_says(run_dir: Path, step: int, submission: int) -> list[str]:
    """What the ledger has of a submission; nothing while its step is not entered."""
    if not is_on_chain(run_dir) and not (run_dir / LEDGER_FILE).exists():
        return []
    state = read_record(run_dir).state
    try:
        return sentences(state, step, submission)[1:]
    except LedgerError:
        return ["its step is not entered yet"]


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What a coordinator has on a node and no ledger has, in words; each is empty if there is nothing."""

    profile: str = ""
    """How the node said that it computes."""
    evidence: str = ""
    """Numeric evidence against it."""
    let_go: str = ""
    """Leases that it let expire, and what follows."""
    is_enforced: bool = True
    """Whether the run bans nodes by evidence, and does not only report it."""


def coordinator_says(where: str, address: str) -> list[str]:
    """Lines on a node that no ledger has, by the coordinator's URL or the run's directory."""
    known = node_record(where, address)
    follows = "a node that reaches the limit is banned" if known.is_enforced else "it is only reported (audit.enforce)"
    return [
        *([f"declared profile {known.profile}"] if known.profile else []),
        *([f"{known.evidence}; {follows}"] if known.evidence else []),
        *([known.let_go] if known.let_go else []),
    ]


def node_record(where: str, address: str) -> NodeRecord:
    """A coordinator's record of a node, by its URL or out of its run's directory.

    A ledger is read without its run, by machines without the coordinator's packages, and after formats have changed:
    then there is no record to read beside it.
    """
    if where.startswith(("http://", "https://")):
        return _asked_record(where, address)
    if (Path(where) / RUN_FILE).is_file():
        with suppress(ShoalError):
            return _stored_record(Path(where), address)
    return NodeRecord()


def _asked_record(url: str, address: str) -> NodeRecord:
    with _link(url) as link:
        listed = link.look(m.StatusOut, "/v1/status").nodes
        # By itself: evidence outlives a node that was forgotten, and the status lists only so many nodes.
        against = link.look(m.NodeEvidenceOut, f"/v1/evidence/{address}").numbers
        audit = link.card.config.get("audit")  # as it is written: the rest may be of another release
    known = _in_words(next((node for node in listed if node.address == address), None), against)
    return replace(known, is_enforced=not isinstance(audit, dict) or audit.get("enforce") is not False)


def _stored_record(run_dir: Path, address: str) -> NodeRecord:
    require("coordinator", f"run {run_dir}: reading its coordinator's records")
    from shoal.coordinator.archive import has_records, node_of, reading
    from shoal.coordinator.verdicts import evidence_against

    run = open_run(run_dir)
    if not has_records(run):
        return NodeRecord()
    with reading(run) as db:
        known = _in_words(node_of(db, address), evidence_against(db, address))
    return replace(known, is_enforced=run.config.audit.enforce)


def _in_words(node: "m.NodeOut | OnRecord | None", against: "m.EvidenceOut | Against | None") -> NodeRecord:
    evidence = standing(against.nats, against.files, against.limit) if against else ""
    if node is None:
        return NodeRecord(evidence=evidence)
    expired = "1 lease" if node.abandoned == 1 else f"{node.abandoned} leases"
    follows = node.reason or "every draw that it let go was done since"
    return NodeRecord(node.profile, evidence, f"let {expired} expire; {follows}" if node.abandoned else "")


def named_submission(submission: str) -> tuple[int, int]:
    named = SUBMISSION.fullmatch(submission)
    if named is None:
        raise SwarmError(f"submission {submission!r:.40}: must read STEP/NUMBER, as in 12/3")
    return int(named[1]), int(named[2])


def print_why(told: dict[str, Any], console: Console) -> None:
    """Prints the verdict on a submission and its evidence."""
    for line in explanation(told, time.time()):
        console.print(one_line(line), markup=False, highlight=False, soft_wrap=True)


def explanation(told: dict[str, Any], now: float) -> list[str]:
    """What is known of a submission, a line for each thing."""
    lines = [
        f"submission {told['submission']} of step {told['step']}, handed in by {checksummed(told['node'])} "
        f"{now - told['received']:.0f} s ago, hash {told['sha256'][:12]}"
    ]
    verdict = told["verdict"]
    if verdict is None:
        return [*lines, "no verdict yet: waiting for a validator"]
    how = "recomputed" if verdict["audited"] else "checked without recomputing it"
    lines.append(f"{'accepted' if verdict['accept'] else 'rejected'} by {checksummed(told['judge'])}, {how}")
    if finding := verdict["finding"]:
        where = "" if finding["sample"] is None else f" in sample {finding['sample']}"
        lines.append(f"check: {finding['check']}{where}")
        lines.append(f"rule: {finding['rule']}")
        lines.append(f"claimed: {finding['claimed']}")
        lines.append(f"found: {finding['found']}")
    advice = ADVICE.get(str(finding["check"]), ()) if finding else ()
    if numbers := NumericEvidence.read(verdict.get("numbers")):
        lines += [] if advice else [f"numbers: {numbers}"]  # such a finding says as much
        lines.append(f"node: {standing(numbers.node_nats, numbers.node_files, numbers.limit)}")
    lines += [f"to do: {line}".replace("STEP/NUMBER", f"{told['step']}/{told['submission']}") for line in advice]
    if verdict["evidence"]:
        lines.append(f"evidence: {verdict['evidence']}, at the validator; shoal replay FILE recomputes it")
    lines += [f"ledger: {line}" for line in told.get("ledger", [])]
    return lines


def print_swarm(join: str, console: Console) -> None:
    """Prints the state of a run: how far it is, its nodes, and who waits on whom."""
    with _link(join) as link:
        status = link.look(m.StatusOut, "/v1/status").model_dump()
    version, steps = status["version"], status["steps"]
    progress = f"no version of {steps} yet" if version is None else f"version {version} of {steps}"
    console.print(
        f"run {one_line(status['run'])}: {progress}; "
        f"files: {status['accepted']} accepted, {status['rejected']} rejected, {status['waiting']} awaiting a verdict",
        highlight=False,
        soft_wrap=True,
    )
    for step, count in status["counts"].items():
        console.print(
            f"step {step} needs {status['needed']} groups: {count['seen']} arrived, {count['signal']} of them with "
            f"signal, {count['leased']} out on leases",
            highlight=False,
        )
    if took := status["latencies"]:
        console.print(latency_line(took), highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    weighs = any(node["numbers"] for node in status["nodes"])  # bfloat16 runs
    for name in ("node", "role", "state", "heard", "leases", "files", "refused", "abandoned", *["nats"] * weighs):
        table.add_column(name, no_wrap=True)
    table.add_column("doing", no_wrap=True, overflow="ellipsis")
    for node in status["nodes"]:
        name = f"{node['name']} {short(checksummed(node['address']))}".strip()
        waits = f" (waits on {node['waits_on']})" if node["waits_on"] else ""
        doing = node["reason"] if node["state"] in ("banned", "suspended") else node["doing"] + waits
        if node["owed"] and doing != node["reason"]:
            doing = f"{doing}; {node['reason']}" if doing else node["reason"]
        counted = ("leases", "accepted", "rejected", "abandoned")
        counts = (node[name] if node["role"] == "worker" else "" for name in counted)
        numbers = node["numbers"]
        against = [f"{max(0.0, numbers['nats']):.1f} of {numbers['limit']:.1f}" if numbers else ""] * weighs
        cells = (name, node["role"], node["state"], f"{node['seen_s']:.0f} s ago", *counts, *against, doing)
        table.add_row(*(Text(one_line(str(cell))) for cell in cells))
    if console.width < MIN_WIDTH:  # the terminal folds the lines; a narrower table would hide the states
        table.width = MIN_WIDTH
    console.print(table, crop=False)


def latency_line(took: dict[str, Any]) -> str:
    """How long work takes on its way, in one sentence."""
    first, batch, p50, p95 = (
        "not yet" if took[key] is None else seconds(took[key])
        for key in ("first_rollout_s", "full_batch_s", "verdict_p50_s", "verdict_p95_s")
    )
    return (
        f"version {took['version']}: first rollout after {first}, full batch after {batch}; "
        f"from upload to verdict {p50} (median), {p95} (p95)"
    )


def _link(join: str) -> CoordinatorClient:
    """For questions that anybody may ask: the key signs nothing."""
    return CoordinatorClient(trusted(join), Key.create(), wait_s=ASK_S)
