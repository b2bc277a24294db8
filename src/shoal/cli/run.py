"""Help panel "Run": a whole run on this machine, and the roles that its owner alone starts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.app import app, console
from shoal.cli.options import ConfigFlags, Join, JoinFlags, MaybeTarget, Target, takes_options
from shoal.errors import ConfigError
from shoal.extras import require

PANEL = "Run"


@app.command(rich_help_panel=PANEL)
@takes_options
def run(
    config: Target,
    changes: ConfigFlags,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved config and stop.")] = False,
) -> None:
    """Run a whole swarm on this machine, and let other machines join it. Run it again to resume after a stop."""
    if dry_run:
        from shoal.config_io import load_config, to_toml
        from shoal.rundir import locate_run

        settings = changes.settings or []
        is_run = config.is_dir()
        resolved = (
            locate_run(config, settings, changes.out, console).config if is_run else load_config(config, settings)
        )
        typer.echo(to_toml(resolved), nl=False)
        return
    require("coordinator", "shoal run")
    from shoal.roles.supervisor import run_config

    run_config(config, changes.settings or [], changes.out, console)


@app.command(rich_help_panel=PANEL)
@takes_options
def coordinator(
    run: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A TOML file that describes the run, or the run's directory.")
    ],
    changes: ConfigFlags,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default: swarm.host.")] = None,
    port: Annotated[int | None, typer.Option(min=0, help="Port to listen on; default: swarm.port.")] = None,
) -> None:
    """Serve a run's coordinator: nodes join it, get leases, upload rollouts and ask for verdicts.

    Its state is stored in the run's directory, or in PostgreSQL if swarm.database names one. It may be killed at any
    time; start it again to resume.
    """
    require("coordinator", "shoal coordinator")
    from shoal.coordinator.command import serve_coordinator
    from shoal.rundir import locate_config, settled

    config, path = locate_config(run, changes.settings or [], changes.out)
    serve_coordinator(config if run.is_dir() else settled(config, path), path, host, port, console)


@app.command(rich_help_panel=PANEL)
@takes_options
def trainer(run: Target, changes: ConfigFlags, join: Join = None) -> None:
    """Train on accepted rollouts and publish policy versions, in this process.

    It signs with RUN/keys/trainer.key; if the coordinator runs on another machine, set swarm.trainer there to this
    key's address.
    """
    from shoal.cli.lend import lend

    located, options = lend("trainer", run, JoinFlags(join), console, changes)  # before torch: report a typo at once
    from shoal.roles.trainer import start_trainer

    start_trainer(located, options)


@app.command(rich_help_panel=PANEL)
def loosen(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory, which holds its trainer's key.")],
    rates: Annotated[Path, typer.Argument(metavar="RATES", help="A rates file that shoal calibrate wrote.")],
    join: Annotated[str, typer.Option(metavar="URL", help="The run's coordinator.")],
) -> None:
    """Add honest rates to a bfloat16 run while it goes on, as for hardware that its odds are too strict for.

    Odds become fair to these machines too. They never become stricter: validators refuse a table that lacks anything
    that it had before.
    """
    from shoal.client.honest_rates import loosen as add_rates
    from shoal.crypto.keys import Key
    from shoal.rundir import key_path, open_run

    prepared = open_run(run)
    if prepared.config.model.dtype != "bfloat16":
        raise ConfigError(f"loosen {run}: is for bfloat16 runs; a float32 run is judged by audit.thresholds")
    add_rates(join, rates, Key.load(key_path(run, "trainer")), prepared.architecture(), console)


@dataclass(frozen=True)
class PlanterFlags(JoinFlags):
    """Joins with the planter's own key, which has no default on another machine."""

    key: Annotated[
        Path | None, typer.Option("--key", help="A copy of RUN/keys/planter.key, if RUN is on another machine.")
    ] = None


@app.command(rich_help_panel=PANEL)
@takes_options
def planter(joining: PlanterFlags, run: MaybeTarget = None) -> None:
    """Submit honeypot files whose verdict is known, good and bad, to see which validators judge them correctly.

    shoal run starts a planter if ledger.plants is above 0. To run it elsewhere: shoal planter RUN --join URL. Choose a
    machine that nobody else can read, because anyone with its key can tell which files are planted.
    """
    from shoal.cli.lend import lend

    if run is None and (joining.key is None or not joining.key.is_file()):
        raise ConfigError(
            "planter: give --key with a copy of RUN/keys/planter.key; with any other key, bad files count as cheating"
        )
    located, options = lend("planter", run, joining, console)
    from shoal.roles.planter import start_planter

    start_planter(located, options)
