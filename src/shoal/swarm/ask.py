"""What people ask a coordinator: how a run is, and what became of a submission."""

import re
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from shoal.errors import SwarmError
from shoal.keys import Key, checksummed
from shoal.swarm.client import Link

ASK_S = 10.0
SUBMISSION = re.compile(r"(\d{1,9})/(\d{1,9})")


def print_why(join: str, submission: str, console: Console) -> None:
    """Prints the verdict on a submission, STEP/NUMBER, and its evidence."""
    named = SUBMISSION.fullmatch(submission)
    if named is None:
        raise SwarmError(f"submission {submission!r:.40}: must read STEP/NUMBER, as in 12/3")
    with _link(join) as link:
        told = link.get(f"/v1/submissions/{named[1]}/{named[2]}")
    for line in explanation(told, time.time()):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def explanation(told: dict[str, Any], now: float) -> list[str]:
    """What is known of a submission, a line for each thing."""
    lines = [
        f"submission {told['submission']} of step {told['step']}, handed in by {checksummed(told['node'])} "
        f"{now - told['received']:.0f} s ago, hash {told['sha256'][:12]}"
    ]
    verdict = told["verdict"]
    if verdict is None:
        return [*lines, "no verdict yet: it waits for a validator"]
    how = "computed again" if verdict["audited"] else "checked without computing it again"
    lines.append(f"{'accepted' if verdict['accept'] else 'rejected'} by {checksummed(told['judge'])}, {how}")
    if finding := verdict["finding"]:
        where = "" if finding["sample"] is None else f" in sample {finding['sample']}"
        lines.append(f"check: {finding['check']}{where}")
        lines.append(f"rule: {finding['rule']}")
        lines.append(f"claimed: {finding['claimed']}")
        lines.append(f"found: {finding['found']}")
    if verdict["evidence"]:
        lines.append(f"evidence: {verdict['evidence']}, at the validator; shoal replay computes it again")
    return lines


def print_swarm(join: str, console: Console) -> None:
    """Prints the state of a run: how far it is, its nodes, and who waits on whom."""
    with _link(join) as link:
        status = link.get("/v1/status")
    console.print(
        f"run {status['run']}: version {status['version']} of {status['steps']}; files: {status['accepted']} accepted, "
        f"{status['rejected']} rejected, {status['waiting']} wait for a verdict",
        highlight=False,
    )
    for step, count in status["counts"].items():
        console.print(
            f"step {step}: {count['signal']} of {status['needed']} groups with signal, {count['leased']} out on leases",
            highlight=False,
        )
    table = Table(box=None, pad_edge=False)
    for name in ("node", "role", "state", "heard", "leases", "accepted", "rejected", "doing", "waits on"):
        table.add_column(name)
    for node in status["nodes"]:
        table.add_row(
            f"{checksummed(node['address'])} {node['name']}".strip(),
            node["role"],
            node["state"],
            f"{node['seen_s']:.0f} s ago",
            str(node["leases"]),
            str(node["accepted"]),
            str(node["rejected"]),
            node["doing"] or node["reason"],
            node["waits_on"],
        )
    console.print(table)


def _link(join: str) -> Link:
    """For questions that anybody may ask: the key signs nothing."""
    return Link(join, Key.create(), wait_s=ASK_S)
