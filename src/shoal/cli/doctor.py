"""Help panel "Join": whether this machine is fit, and one report of what its devices compute."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.app import app, console
from shoal.cli.options import Device, Home, Join, check_device, refuse_flags, takes_options

PANEL = "Join"


@dataclass(frozen=True)
class FitFlags:
    """What the machine is to be fit for."""

    join: Join = None
    ports: Annotated[
        list[int] | None,
        typer.Option("--port", min=1, max=65535, help="A port that should be free, as swarm.port; repeatable."),
    ] = None
    home: Home = None


@dataclass(frozen=True)
class ReportFlags:
    """What a report runs, and on what."""

    report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="FILE", help="Run everything that needs this machine's devices, and write it."
        ),
    ] = None
    model: Annotated[
        str, typer.Option(help='With --report: "tiny" (random weights), "smollm2", or a transformers model directory.')
    ] = "tiny"
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="STEP", help="With --report: this step only; repeatable.")
    ] = None
    log: Annotated[Path | None, typer.Option(help="With --report: file for what the steps themselves print.")] = None
    device: Device = None


@app.command(rich_help_panel=PANEL)
@takes_options
def doctor(
    context: typer.Context,
    fit: FitFlags,
    reporting: ReportFlags,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Say what this machine is, which engine it would use, and how to fix what is not fit for a run.

    The exit code is 0 unless something that is needed fails. With --report FILE every step that needs a GPU runs on
    what is here, in a process of its own; send the file to the project: it has no host name, user name, path or
    address.
    """
    if reporting.report is not None:
        refuse_flags(context, "doctor --report", ("join", "ports", "home", "json_"), "it looks at devices alone")
        from shoal.doctor.report.command import make_report

        wanted = check_device(reporting.device) or "auto"
        made = make_report(reporting.report, reporting.model, wanted, reporting.only or [], reporting.log, console)
        sys.exit(1 if any(step.status == "failed" for step in made.steps) else 0)
    refuse_flags(context, "doctor", ("model", "only", "log", "device"), "only doctor --report FILE does")
    from shoal.doctor.checks import check_all, is_fit
    from shoal.doctor.probe import look
    from shoal.doctor.show import print_checks, to_json

    facts = look(fit.join, fit.ports or [], fit.home)
    checks = check_all(facts)
    if json_:
        console.print(to_json(facts, checks), markup=False, highlight=False, soft_wrap=True)
    else:
        print_checks(checks, console)
    sys.exit(0 if is_fit(checks) else 1)
