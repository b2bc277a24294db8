"""The doctor's verdicts for readers: a table with the fix below what needs one, or one JSON object."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.doctor.checks import Check, engine_of, is_fit
from shoal.doctor.facts import Facts
from shoal.text import one_line

STYLE = {"ok": "green", "note": "dim", "warning": "yellow", "failed": "bold red"}


def to_json(facts: Facts, checks: list[Check]) -> str:
    """The facts and every verdict."""
    tree = {
        "fit": is_fit(checks),
        "engine": engine_of(facts),
        "checks": [asdict(check) for check in checks],
        "facts": asdict(facts),
    }
    return json.dumps(tree)


def print_checks(checks: list[Check], console: Console) -> None:
    console.print(_table(checks))
    failed = [check.name for check in checks if check.status == "failed"]
    warned = [check.name for check in checks if check.status == "warning"]
    if failed:
        line = f"not fit yet: {', '.join(failed)}"
    else:
        line = "fit for a run" + (f"; to improve: {', '.join(warned)}" if warned else "")
    console.print(line, style="bold red" if failed else "green", highlight=False)


def _table(checks: Sequence[Check]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("what", "verdict", "found"):
        table.add_column(name, overflow="fold", no_wrap=name != "found")
    for check in checks:
        found = Text(one_line(check.found))
        if check.fix:
            found.append(f"\nfix: {one_line(check.fix)}", style=STYLE[check.status])
        table.add_row(check.name, Text(check.status, STYLE[check.status]), found)
    return table
