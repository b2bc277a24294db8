"""Who contributed what to a run: the last thing that its supervisor wrote down."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from shoal.watch.history import SUPERVISOR, one_line
from shoal.watch.metrics import Entry, number, read_metrics

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
    )


def contributions_table(contributions: Sequence[Contribution]) -> Table:
    """Workers with what they brought, and the others by name."""
    table = Table(title="who contributed what", title_style="bold")
    total = sum(one.tokens for one in contributions) or 1
    for column in ("node", "address", "role", "state"):
        table.add_column(column)
    for column in ("files accepted", "rejected", "answers", "tokens", "share"):
        table.add_column(column, justify="right")
    for one in contributions:
        cells: Iterable[str] = ("", "", "", "", "")
        if one.role == "worker":
            share = f"{one.tokens / total:.0%}"
            cells = (f"{one.accepted:,}", f"{one.rejected:,}", f"{one.samples:,}", f"{one.tokens:,}", share)
        state = Text(one.state, "red" if one.state == "banned" else "")
        table.add_row(Text(one_line(one.name)), Text(short(one.address)), one.role, state, *cells)
    return table


def short(address: str) -> str:
    """An address as tables show it."""
    return f"{address[:6]}..{address[-4:]}" if len(address) == 42 else one_line(address)
