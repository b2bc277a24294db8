"""Metrics for Prometheus from what a run's files say: every role, from its status and its metrics.

Counters are counted from the files' beginning, so an exporter that is started again shows the same numbers. Figures
have the names that other sinks give them: `train/reward` is `shoal_train_reward`.
"""

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from shoal.errors import ShoalError
from shoal.extras import is_installed
from shoal.rundir import open_run
from shoal.sinks.rows import GROUPS, Rows
from shoal.telemetry.metrics import Entry, number
from shoal.telemetry.prometheus_text import Labels, MetricsPage
from shoal.telemetry.status import ENDED, RoleStatus, read_status
from shoal.watch.history import HIDDEN_ROLES, History

NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]+")
# Summed over a worker's submissions.
WORKER_SUMS = ("tokens", "samples", "scorer_errors")


class RunFigures:
    """What a run's files say, for a page of metrics; `refresh` reads only what was appended since the last time."""

    def __init__(self, run: Path) -> None:
        self._path = run
        self._history = History(run)
        self._rows = Rows()
        self._newest: dict[str, tuple[int, dict[str, float]]] = {}
        self._counts: Counter[tuple[str, Labels]] = Counter()
        self._last: dict[str, Entry] = {}

    def refresh(self) -> None:
        new = self._history.refresh()
        for row in self._rows.take(new):
            if row.number >= self._newest.get(row.group, (-1, {}))[0]:
                self._newest[row.group] = row.number, row.values
        for role, entry in new:
            if role not in HIDDEN_ROLES:
                self._count(role, entry)

    def _count(self, role: str, entry: Entry) -> None:
        own = (("role", role),)
        match entry:
            case {"event": "submission"}:
                self._last[role] = entry
                self._counts["worker_files", own] += 1
                for key in WORKER_SUMS:
                    self._counts[f"worker_{key}", own] += int(number(entry, key) or 0)
            case {"event": "verdict", **rest}:
                is_accepted = rest.get("accept") is True
                result = "accepted" if is_accepted else "refused"
                labels = (*own, ("result", result), ("check", str(rest.get("check") or "")))
                self._counts["validator_verdicts", labels] += 1
            case {"event": "banned"}:
                self._counts["validator_bans", own] += 1
            case {"event": "restart", **rest} if rest.get("role") not in HIDDEN_ROLES:
                self._counts["role_restarts", (("role", str(rest.get("role", ""))),)] += 1
            case {"event": "note"}:
                self._counts["role_notes", own] += 1

    def page(self, now: float) -> str:
        """All of it as text."""
        page = MetricsPage()
        total = self._history.total_steps
        if total is not None:
            page.add("shoal_run_steps_wanted", "gauge", "Training steps of the whole run.", total)
        page.add("shoal_run_steps_done", "gauge", "Training steps that are done.", self._history.steps_done)
        _add_roles(page, read_status(self._path), now)
        for group in GROUPS:
            if (newest := self._newest.get(group)) is not None:
                _add_figures(page, group, *newest)
        for role, entry in sorted(self._last.items()):
            for key, text in (("tokens_per_s", "Tokens per second of"), ("wait_share", "Share of time waited before")):
                if (value := number(entry, key)) is not None:
                    page.add(f"shoal_worker_{key}", "gauge", f"{text} a worker's last file.", value, role=role)
        for (name, labels), count in sorted(self._counts.items()):
            page.add(f"shoal_{name}_total", "counter", COUNTED[name], count, **dict(labels))
        _add_records(page, self._path)
        return page.text()


COUNTED = {
    "worker_files": "Files that a worker handed in.",
    "worker_tokens": "Tokens that a worker handed in.",
    "worker_samples": "Answers that a worker handed in.",
    "worker_scorer_errors": "Answers that could not be scored.",
    "validator_verdicts": "Verdicts by result and, if refused, by the check that failed.",
    "validator_bans": "Nodes that a validator banned.",
    "role_restarts": "How often a role ended and was started again.",
    "role_notes": "Notes that a role wrote.",
}


def _add_roles(page: MetricsPage, statuses: Iterable[RoleStatus], now: float) -> None:
    for status in statuses:
        role = status.role
        if role in HIDDEN_ROLES:
            continue
        is_up, waited = status.state not in ENDED, now - status.since if status.state == "waiting" else 0.0
        page.add("shoal_role_up", "gauge", "Whether a role's process is at work.", int(is_up), role=role)
        page.add("shoal_role_state", "gauge", "The state that a role is in.", 1, role=role, state=status.state)
        page.add("shoal_role_beat_timestamp_seconds", "gauge", "When a role last said so.", status.beat, role=role)
        page.add(
            "shoal_role_waiting_seconds",
            "gauge",
            "How long a role has been waiting, and on whom.",
            max(0.0, round(waited, 3)),
            role=role,
            on=status.on if status.state == "waiting" else "",
        )


def _add_figures(page: MetricsPage, group: str, at: int, values: Mapping[str, float]) -> None:
    what = "training step" if group == "train" else "policy version"
    page.add(f"shoal_{group}_{'step' if group == 'train' else 'version'}", "gauge", f"The newest {what} of these.", at)
    for name, value in values.items():
        labels = {}
        head, _, rest = name.partition("/")
        first, _, part = rest.partition("/")
        if part:  # of a table, as in train/waits/worker: one metric with the part as its label
            labels["part"] = part
        metric = NOT_IN_NAMES.sub("_", f"shoal_{head}_{first}")
        page.add(metric, "gauge", f"{head} {first} of the newest {what}.", value, **labels)


def _add_records(page: MetricsPage, path: Path) -> None:
    """The coordinator's part, where its records are and can be read."""
    if not is_installed("sqlalchemy"):
        return
    try:
        run = open_run(path)
        from shoal.coordinator.archive import sums_of
        from shoal.coordinator.prometheus import add_coordinator

        found = sums_of(run)
    except ShoalError:  # a database that cannot be read now may be readable later
        return
    if found is None:
        return
    add_coordinator(page, *found)


def once(run: Path) -> str:
    """A page of metrics as of now, for `shoal metrics RUN` without a port (node_exporter's textfile collector)."""
    figures = RunFigures(run)
    figures.refresh()
    return figures.page(time.time())
