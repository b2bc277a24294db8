"""Page "run": how far it is, what it learns, how it behaves while it learns, and who waits on whom."""

import time

from shoal.page.privacy import public_text
from shoal.page.series import columns, short
from shoal.page.source import RunFiles
from shoal.telemetry.metrics import Entry, number
from shoal.telemetry.status import RoleStatus, waits
from shoal.watch import panels
from shoal.watch.history import seconds_left, seconds_per_step
from shoal.watch.show import condition
from shoal.watch.view import suite_line

CURVES = (
    "reward",
    "solve_rate",
    "completion_tokens_mean",
    "entropy",
    "grad_norm",
    "clip_low",
    "clip_high",
    "kl",
    "drift",
    "staleness_mean",
    "staleness_max",
    "tokens_per_s",
    "wait_share",
    "workers_wait",
)
MAX_EVALS = 400
NOTES_SHOWN = 20
Document = dict[str, object]


def run_document(files: RunFiles) -> Document:
    """All that the page shows; the same figures as `shoal status`, from the same functions."""
    history = files.history
    steps = [history.steps[number] for number in sorted(history.steps)]
    last_suite = history.suites[max(history.suites)] if history.suites else None
    return {
        **live_document(files),
        "cells": [[name, text] for name, text in panels.latest(history)] if history.steps else [],
        "drawn": [[name, text] for name, text in panels.drawn(history.last_step)],
        "compute": [[name, text] for name, text in panels.computed(history)],
        "suite": public_text(suite_line(last_suite, history.suites.get(0, {}))) if last_suite else "",
        "last": {key: number(history.last_step, key) for key in ("step", "time", "reward", "tokens_per_s")},
        "held_out": _held_out(history.evals),
        "series": columns([_with_waits(files, entry) for entry in steps], CURVES),
        "notes": [[when, text] for when, text in list(files.notes)[-NOTES_SHOWN:]],
    }


def live_document(files: RunFiles) -> Document:
    """The part that changes between steps: small enough to be sent to every open page once per second."""
    history, now = files.history, time.time()
    total, done = history.total_steps, history.steps_done
    is_live = state_of(files.statuses) == "running"
    pace = seconds_per_step(files.step_times)
    left = seconds_left(files.step_times, total - done, now) if total is not None and files.step_times else None
    return {
        "name": files.name,
        "state": state_of(files.statuses),
        "condition": public_text(condition(files.statuses)),
        "done": done,
        "total": total,
        "started": files.started,
        "pace_s": short(pace) if pace is not None else None,
        "left_s": max(0.0, round(left, 1)) if left is not None and is_live else None,
        "waiting": [public_text(said) for said in waits(files.statuses, now)] if is_live else [],
        "roles": [_role(status, files) for status in files.statuses],
    }


def state_of(statuses: list[RoleStatus]) -> str:
    """The run as a whole in one word, for a badge."""
    said = condition(statuses)
    words = {"no role": "unstarted", "failed": "failed", "running": "running", "finished": "finished"}
    return next((word for begins, word in words.items() if said.startswith(begins)), "stopped")


def _role(status: RoleStatus, files: RunFiles) -> Document:
    history = files.history
    entry = history.last_step if status.role == "trainer" else history.submissions.get(status.role, {})
    return {
        "role": public_text(status.role),
        "state": status.state,
        "doing": public_text(status.doing),
        "on": public_text(status.on),
        "tokens_per_s": number(entry, "tokens_per_s"),
        "wait_share": number(entry, "wait_share"),
    }


def _held_out(evals: dict[int, Entry]) -> list[list[float | None]]:
    """(version, pass@1, low, high, tasks); of very many evaluations every n-th, and always the last."""
    versions = sorted(evals)
    every = -(-len(versions) // MAX_EVALS) if versions else 1
    chosen = sorted({*versions[::every], *versions[-1:]})
    keys = ("pass_at_1", "low", "high", "tasks")
    return [[version, *(number(evals[version], key) for key in keys)] for version in chosen]


def _with_waits(files: RunFiles, entry: Entry) -> Entry:
    waited = files.waits.get(entry["step"])
    return entry if waited is None or not waited.count else {**entry, "workers_wait": waited.total / waited.count}
