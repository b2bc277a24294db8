"""Follows the metrics files of all roles as they grow, for the live view and `shoal status`."""

from collections.abc import Sequence
from pathlib import Path

from shoal.errors import ShoalError
from shoal.telemetry.compute import ComputeLedger
from shoal.telemetry.metrics import Entry, Tail, number
from shoal.text import one_line

SUPERVISOR = "supervisor"
HIDDEN_ROLES = ("planter",)  # nobody may learn from what others see which files are planted


def run_directory(path: Path) -> Path:
    """The path itself, if a run lives there."""
    if not any((path / part).is_dir() for part in ("metrics", "status")):
        other = "is not a directory" if path.exists() else "does not exist"
        what = "has neither metrics/ nor status/ in it" if path.is_dir() else other
        raise ShoalError(f"{path}: not a run: it {what}; name the directory that `shoal run` wrote to")
    return path


class History:
    """What the metrics files of a run say so far. `refresh` reads only what was appended since the last time."""

    def __init__(self, run_dir: Path) -> None:
        self.name = run_dir.resolve().name
        self.total_steps: int | None = None
        self.steps: dict[int, Entry] = {}
        self.evals: dict[int, Entry] = {}
        self.suites: dict[int, Entry] = {}
        self.submissions: dict[str, Entry] = {}
        self.latencies: dict[int, Entry] = {}
        self.compute = ComputeLedger()
        self.judges: set[str] = set()
        """Validators that have judged."""
        self._began: float | None = None
        self._folder = run_dir / "metrics"
        self._tails: dict[str, Tail] = {}

    def refresh(self) -> list[tuple[str, Entry]]:
        """The entries that are new, each with its role, in the order of their times."""
        for path in self._folder.glob("*.jsonl"):
            self._tails.setdefault(path.stem, Tail(path))
        new = [(role, entry) for role, tail in self._tails.items() for entry in tail.new()]
        new.sort(key=lambda item: number(item[1], "time") or 0.0)
        for role, entry in new:
            self._take(role, entry)
        return new

    def _take(self, role: str, entry: Entry) -> None:
        if role not in HIDDEN_ROLES:
            self.compute.take(entry)
        if self._began is None:
            self._began = number(entry, "time")
        match entry:
            case {"event": "step", "step": int(step)}:
                self.steps[step] = entry
            case {"event": "eval", "version": int(version)}:
                self.evals[version] = entry
            case {"event": "suite", "version": int(version)}:
                self.suites[version] = entry
            case {"event": "submission"}:
                self.submissions[role] = entry
            case {"event": "latency", "version": int(version)}:
                self.latencies[version] = entry
            case {"event": "verdict"}:
                self.judges.add(role)
            case {"event": "start", "total_steps": int(total)}:
                self.total_steps = total

    @property
    def steps_done(self) -> int:
        return max(self.steps, default=-1) + 1

    @property
    def workers(self) -> int:
        """Workers that have handed in. The planter does not count: its work is in no figure either."""
        return sum(role not in HIDDEN_ROLES for role in self.submissions)

    @property
    def wall_s(self) -> float:
        """From the first entry of any role to the last step; the time in which a run was stopped counts."""
        ended = number(self.last_step, "time")
        return 0.0 if ended is None or self._began is None else max(0.0, ended - self._began)

    @property
    def last_step(self) -> Entry:
        return self.steps[max(self.steps)] if self.steps else {}

    @property
    def last_eval(self) -> Entry:
        return self.evals[max(self.evals)] if self.evals else {}

    @property
    def last_latency(self) -> Entry:
        return self.latencies[max(self.latencies)] if self.latencies else {}

    def rewards(self) -> list[float]:
        return _series(self.steps, "reward")

    def passes(self) -> list[float]:
        return _series(self.evals, "pass_at_1")


def _series(entries: dict[int, Entry], key: str) -> list[float]:
    values = (number(entries[index], key) for index in sorted(entries))
    return [value for value in values if value is not None]


def note_of(role: str, entry: Entry) -> str | None:
    """What an entry tells a person outside of the tables, on one line; None if nothing."""
    match entry:
        case {"event": "note", "text": text}:
            return one_line(f"{role}: {text}")
        case {"event": "banned", **rest}:
            return one_line(f"{rest.get('node', 'a node')} was banned: {rest.get('reason', 'no reason')}")
        case {"event": "refused", **rest}:
            return one_line(f"{role} refused {rest.get('file', 'a rollout file')}: {rest.get('reason', 'no reason')}")
        case {"event": "restart", **rest}:
            return one_line(f"{rest.get('role', 'a role')} ended with code {rest.get('code', '?')} and was restarted")
    return None


def seconds_per_step(times: Sequence[float], last: int = 10) -> float | None:
    """The pace of the last few steps, from when each was finished; None until two are known."""
    recent = times[-(last + 1) :]
    return (recent[-1] - recent[0]) / (len(recent) - 1) if len(recent) > 1 else None


def seconds_left(times: Sequence[float], steps: int, now: float) -> float | None:
    """How long so many more steps take at this pace; the one that is being made counts from its beginning."""
    pace = seconds_per_step(times)
    return None if pace is None else steps * pace - min(now - times[-1], pace)
