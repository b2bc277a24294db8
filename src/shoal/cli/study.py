"""Help panel "Studies": the paper's claims, each tested by one command."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.app import app, console

PANEL = "Studies"


@app.command(rich_help_panel=PANEL)
def study(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The study; without it they are listed.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of its files; default: studies/NAME.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run briefly to see that it works; the figures mean nothing.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds per setting; default: the study's.")] = None,
) -> None:
    """Test a claim of INTELLECT-2 at small scale: runs, intervals, a figure and a verdict; needs a checkout.

    It says first what it will cost. If it is stopped or killed, the same command goes on with the next run; started
    twice at once, it shares the runs.
    """
    from shoal.studies.catalogue import STUDIES, find_study

    if name is None:
        for one in STUDIES.values():
            console.print(f"{one.name:<12} {one.summary}", highlight=False, soft_wrap=True)
        return
    found = find_study(name)
    directory = (out or Path("studies") / (f"{name}-quick" if quick else name)).absolute()
    from shoal.devices import set_up
    from shoal.studies.configs import enter_checkout
    from shoal.studies.runner import run_study

    enter_checkout(f"study {name}")
    set_up("cpu", 1, "shoal study")
    run_study(found, directory, console, quick=quick, seeds=seeds)


@app.command(rich_help_panel=PANEL)
def findings(
    page: Annotated[Path, typer.Argument(metavar="PAGE", help="The page to fill: docs/findings.md.")],
    results: Annotated[
        list[Path] | None, typer.Argument(metavar="[STUDY]...", help="Directories of finished studies to take in.")
    ] = None,
) -> None:
    """Write what studies found into a page, from their JSON alone; a study that was not run says so."""
    from shoal.studies.findings import fill_findings

    taken = fill_findings(page, results or [])
    console.print(f"{page}: results of {', '.join(taken) or 'no study'}", highlight=False, soft_wrap=True)
