"""What `shoal status RUN` prints: how far, who does what, who waits on whom, the last numbers."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from shoal.telemetry.metrics import number
from shoal.telemetry.status import RoleStatus, read_status, seconds, waits
from shoal.text import one_line
from shoal.watch import panels
from shoal.watch.history import History, note_of, run_directory
from shoal.watch.view import suite_line

NOTES_SHOWN = 5


def print_status(run_dir: Path, console: Console) -> None:
    """Prints the state of a run, live or ended, from its files alone."""
    run_directory(run_dir)
    now = time.time()
    history = History(run_dir)
    notes = [text for role, entry in history.refresh() if (text := note_of(role, entry)) is not None]
    statuses = read_status(run_dir)

    console.print(Text.assemble((history.name, "bold"), f": {progress(history, now)}; {condition(statuses)}"))
    if statuses:
        console.print()
        console.print(panels.roles(statuses, history))
    if sentences := waits(statuses, now):
        console.print()
        for sentence in sentences:
            console.print(Text(one_line(sentence)), soft_wrap=True)
    if history.steps or history.evals:
        console.print()
        console.print(panels.numbers(history, console.width))
        for name, text in (*panels.drawn(history.last_step), *panels.computed(history)):
            console.print(Text.assemble((f"{name}  ", "dim"), (text, "bold")), soft_wrap=True)
        console.print()
        console.print(panels.curves(history, width=40))
    if history.suites:
        console.print()
        base, last = history.suites.get(0, {}), history.suites[max(history.suites)]
        console.print(Text(suite_line(last, base)), soft_wrap=True)
    if notes:
        console.print()
        for note in notes[-NOTES_SHOWN:]:
            console.print(Text(note, "dim"), soft_wrap=True)


def progress(history: History, now: float) -> str:
    """How many steps are done, and when the last one was."""
    total = "" if history.total_steps is None else f" of {history.total_steps}"
    when = number(history.last_step, "time")
    ago = "" if when is None else f", the last one {seconds(max(now - when, 0.0))} ago"
    return f"{history.steps_done}{total} steps done{ago}"


def condition(statuses: Sequence[RoleStatus]) -> str:
    """The run as a whole, from its roles, in words that say what to do about it.

    A run ends with its trainer. A worker that failed, such as one that was banned, ends nothing but itself.
    """
    if not statuses:
        return "no role has started"
    states = {status.state for status in statuses}
    failed = [status.role for status in statuses if status.state == "failed"]
    trainer = next((status.state for status in statuses if status.role == "trainer"), None)
    also = f"; failed: {', '.join(failed)}" if failed else ""
    if trainer == "failed" or (failed and trainer not in ("starting", "working", "waiting", "done")):
        return f"failed ({', '.join(failed)})"
    if states & {"starting", "working", "waiting"}:
        return f"running{also}"
    if states <= {"done", "failed"}:
        return f"finished{also}"
    return "stopped; `shoal run` resumes from the last whole step"
