"""Live terminal view of a run: a page for people, plain lines for logs."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from shoal.telemetry.metrics import Entry, number
from shoal.telemetry.status import RoleStatus, read_status, waits
from shoal.text import one_line
from shoal.watch import panels
from shoal.watch.history import SUPERVISOR, History, note_of, seconds_left
from shoal.watch.panels import clock, figure

NOTES_SHOWN = 3
QUIET_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How many rows of each part a page has."""

    rules: bool
    numbers: int
    curves: int
    roles: int
    notes: int


def plan(room: int, *, numbers: int, roles: int, notes: int) -> Plan:
    """What of a page fits into so many rows: the rules go first, then what a reader misses least."""
    rows = {"rules": 3 + (notes > 0), "numbers": numbers, "curves": 2, "roles": roles, "notes": notes}
    shrink = ("rules", 0), ("numbers", 3), ("notes", 1), ("curves", 0), ("numbers", 1), ("notes", 0), ("roles", 1)
    for name, least in (*shrink, ("numbers", 0), ("roles", 0)):
        over = 1 + sum(rows.values()) + (rows["roles"] > 0) - room  # a row for progress, and one for the roles' heads
        if over > 0:
            rows[name] = least if name == "rules" else max(min(rows[name], least), rows[name] - over)
    return Plan(rows["rules"] > 0, rows["numbers"], rows["curves"], rows["roles"], rows["notes"])


class LiveView:
    """Shows a run as it goes. `update` is cheap: it reads only what was appended since the last call.

    On a terminal it is one page that redraws itself. Elsewhere it is a line for each training step, evaluation and note
    of this session, and after `quiet_s` without any a line that says what is being waited for, so that a silent log
    never leaves the reader guessing. What the supervisor has to say comes through `note`, not through its metrics file.
    """

    def __init__(self, run_dir: Path, total_steps: int, console: Console, quiet_s: float = QUIET_S) -> None:
        self._run_dir = run_dir
        self._total = total_steps
        self._console = console
        self._quiet_s = quiet_s
        self._history = History(run_dir)
        self._notes: deque[str] = deque(maxlen=NOTES_SHOWN)
        self._step_times: list[float] = []
        self._began = self._spoke = time.time()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self.update()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.update()
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Tells the reader of something that happened, such as a worker that was restarted."""
        text = one_line(text)
        self._notes.append(f"{time.strftime('%H:%M:%S')}  {text}")
        self._say(f"note: {text}")

    def update(self) -> None:
        for role, entry in self._history.refresh():
            when = number(entry, "time") or 0.0
            if when >= self._began:  # earlier ones belong to a session before this one
                self._tell(role, entry, when)
        if self._live is not None:
            self._live.update(self._page(read_status(self._run_dir), time.time()), refresh=True)
        elif time.time() - self._spoke >= self._quiet_s:
            self._say(no_news(read_status(self._run_dir), time.time()))

    def _tell(self, role: str, entry: Entry, when: float) -> None:
        match entry:
            case {"event": "step"}:
                self._step_times.append(when)
                self._say(step_line(entry, self._total, time.time() - self._began))
            case {"event": "eval"}:
                self._say(eval_line(entry, self._history.evals.get(0, {})))
            case {"event": "suite"}:
                self._say(suite_line(entry, self._history.suites.get(0, {})))
        text = note_of(role, entry)
        if text is not None and role != SUPERVISOR:
            self.note(text)

    def _say(self, line: str) -> None:
        self._spoke = time.time()
        if self._live is None:
            self._console.print(line, soft_wrap=True, markup=False, highlight=False, emoji=False)

    def _page(self, statuses: list[RoleStatus], now: float) -> RenderableType:
        width, height = self._console.size
        width -= 4
        rows = -(-panels.NUMBERS // panels.numbers_across(width))
        fits = plan(height - 3, numbers=rows, roles=len(statuses), notes=len(self._notes))
        notes = list(self._notes)[len(self._notes) - fits.notes :]
        sections: list[list[RenderableType]] = [
            [self._header(now)],
            [panels.numbers(self._history, width, fits.numbers)] if fits.numbers else [],
            [panels.curves(self._history, max(10, width - 46), fits.curves)] if fits.curves else [],
            [panels.roles(statuses[: fits.roles], self._history, width)] if fits.roles else [],
            [Text(note, "dim", no_wrap=True, overflow="ellipsis") for note in notes],
        ]
        parts: list[RenderableType] = []
        for section in sections:
            if section and parts and fits.rules:
                parts.append(Rule(style="dim"))
            parts += section
        return Panel(Group(*parts), title=Text(self._history.name, "bold"), border_style="cyan", padding=(0, 1))

    def _header(self, now: float) -> Table:
        done = self._history.steps_done
        left = seconds_left(self._step_times, self._total - done, now)
        row = Table.grid(padding=(0, 2, 0, 0), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True)
        row.add_row(
            Text.assemble("step ", (f"{done}/{self._total}", "bold")),
            ProgressBar(total=max(self._total, 1), completed=done),
            Text(f"{clock(now - self._began)} elapsed, {clock(left)} left"),
        )
        return row


def step_line(entry: Entry, total_steps: int, elapsed_s: float) -> str:
    """A training step on one line of plain ASCII."""
    step = entry.get("step")
    done = step + 1 if isinstance(step, int) else "?"
    cells = [
        ("reward", figure(entry, "reward")),
        ("solved", figure(entry, "solve_rate")),
        ("length", figure(entry, "completion_tokens_mean", ".1f")),
        ("entropy", figure(entry, "entropy")),
        ("grad", figure(entry, "grad_norm", ".3g")),
        ("clip", f"{figure(entry, 'clip_low', '.4f')}/{figure(entry, 'clip_high', '.4f')}"),
        ("kl", figure(entry, "kl", ".3g")),
        ("drift", figure(entry, "drift", ".2g")),
        ("mismatch", figure(entry, "mismatch", ".2g")),
        ("stale", figure(entry, "staleness_mean", ".2f")),
        ("tokens/s", figure(entry, "tokens_per_s", ".0f")),
    ]
    numbers = "  ".join(f"{name} {value}" for name, value in cells).replace(panels.NONE, "-")
    return f"step {step} ({done}/{total_steps})  {numbers}  at {clock(elapsed_s)}"


def eval_line(entry: Entry, base: Entry) -> str:
    """An evaluation on held-out tasks on one line of plain ASCII, beside that of the base model."""
    return _measured(f"eval version {entry.get('version', '?')}", entry, base, f"  greedy {figure(entry, 'greedy')}")


def suite_line(entry: Entry, base: Entry) -> str:
    """The same for a suite."""
    name = one_line(str(entry.get("suite", "?")))
    return _measured(f"suite {name} version {entry.get('version', '?')}", entry, base)


def _measured(what: str, entry: Entry, base: Entry, more: str = "") -> str:
    others = entry.get("pass_at")
    ks = "".join(f"  pass@{k} {figure(others, k)}" for k in list(others)[-1:]) if isinstance(others, dict) else ""
    line = f"{what}  pass@1 {figure(entry, 'pass_at_1')}{panels.interval(entry)}{ks}{more}"
    line += f"  tasks {figure(entry, 'tasks', '.0f')}"
    if base and base is not entry:
        line += f"  base {figure(base, 'pass_at_1')}"
    return line.replace(panels.NONE, "-")


def no_news(statuses: list[RoleStatus], now: float) -> str:
    """What a silent run is waiting for, or at least what each of its roles is doing."""

    def others() -> Iterator[str]:
        for status in statuses:
            if status.state != "waiting":
                yield (
                    f"{status.role} {status.state}: {status.doing}" if status.doing else f"{status.role} {status.state}"
                )

    return one_line("; ".join([*waits(statuses, now), *others()]) or "waiting for the roles to start")
