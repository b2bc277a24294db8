"""Help panel "Join": whether this machine is fit, and one report of what its devices compute."""

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from shoal.cli.app import app, console
from shoal.cli.options import Home, Join, takes_options

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


@app.command(rich_help_panel=PANEL)
@takes_options
def doctor(
    fit: FitFlags,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Say what this machine is, which engine it would use, and how to fix what is not fit for a run.

    The exit code is 0 unless something that is needed fails.
    """
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
