"""What `shoal suites` does: lists suites, and fetches the files of those that have one."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from shoal.errors import ConfigError
from shoal.evals.fetch_suite import fetch_suite
from shoal.evals.paper_suites import PAPER_SUITES
from shoal.evals.suite_catalogue import BUILT_IN


def print_suites(console: Console) -> None:
    """One line for each: what it asks, and where its questions come from."""
    table = Table("suite", "sources", "questions")
    for name, suite in BUILT_IN.items():
        table.add_row(name, ", ".join(dict.fromkeys(line.source for line in suite.sources)), "made here")
    for name, exam in PAPER_SUITES.items():
        there = str(exam.path) if exam.path.is_file() else f"not here: shoal suites --fetch {name}"
        table.add_row(name, f"{exam.kind}/{exam.file}", there)
    console.print(table)


def fetch_suites(names: Sequence[str], console: Console) -> None:
    """Downloads the files of these suites, one after the other."""
    if unknown := [name for name in names if name not in PAPER_SUITES]:
        raise ConfigError(f"suites --fetch {unknown[0]}: has no file to fetch; those that have one: {_known()}")
    for name in names:
        path = _fetched(name)
        console.print(f"{path}: shoal eval MODEL --suite {name}", markup=False, highlight=False, soft_wrap=True)


def _fetched(name: str) -> Path:
    """Fetches one suite, with a bar that shows what of which file is there."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(name, total=None)

        def heard(url: str, size: int) -> None:
            bar.update(row, description=url.rpartition("/")[2], completed=size)

        return fetch_suite(PAPER_SUITES[name], heard)


def _known() -> str:
    return ", ".join(PAPER_SUITES)
