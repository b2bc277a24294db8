"""Table of contributions: who generated, earned and lost what, as the supervisor recorded it at the end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from shoal.crypto.keys import short
from shoal.telemetry.metrics import Entry, number, read_metrics
from shoal.text import one_line
from shoal.watch.history import SUPERVISOR

CONTRIBUTIONS = "contributions"  # the event


@dataclass(frozen=True, slots=True)
class Contribution:
    """A node's part in a run. Its name is what it says of itself."""

    name: str
    address: str
    role: str
    state: str
    accepted: int
    """Files."""
    rejected: int
    samples: int
    tokens: int
    earned: int
    """Credits, those that are still locked among them."""
    slashed: int


def read_contributions(run_dir: Path) -> list[Contribution]:
    """Every node, workers with the most accepted tokens first; none for a run that has not come to its end."""
    entries = [
        entry for entry in read_metrics(run_dir / "metrics" / f"{SUPERVISOR}.jsonl") if entry["event"] == CONTRIBUTIONS
    ]
    found = [_contribution(node) for node in entries[-1].get("nodes", [])] if entries else []
    return sorted(found, key=lambda one: (one.role != "worker", -one.tokens, one.rejected, one.role, one.name))


def _contribution(node: Entry) -> Contribution:
    def text(key: str) -> str:
        return str(node.get(key, ""))

    def count(key: str) -> int:
        return int(number(node, key) or 0)

    return Contribution(
        text("name"),
        text("address"),
        text("role"),
        text("state"),
        count("accepted"),
        count("rejected"),
        count("samples"),
        count("tokens"),
        count("earned"),
        count("slashed"),
    )


def contributions_table(contributions: Sequence[Contribution]) -> Table:
    """Workers with what they brought, and the others by name."""
    table = Table(title="who contributed what", title_style="bold", box=None, padding=(0, 1, 0, 0))
    total = sum(one.tokens for one in contributions) or 1
    for column in ("node", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("files", "refused", "tokens", "share", "earned", "slashed"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in contributions:
        cells: Iterable[str] = ("",) * 6
        if one.role == "worker":
            share = f"{one.tokens / total:.0%}"
            credits_ = (f"{one.earned:,}", f"{one.slashed:,}")
            cells = (f"{one.accepted:,}", f"{one.rejected:,}", f"{one.tokens:,}", share, *credits_)
        state = Text(one.state, "red" if one.state == "banned" else "")
        name = f"{one_line(one.name or one.role)[:16]} {short(one_line(one.address))}"
        table.add_row(Text(name), state, *cells)
    return table
