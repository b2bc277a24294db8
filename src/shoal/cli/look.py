"""Help panel "Look": what a run is doing, what became of a submission, and whether a rejection holds."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import shoal
from shoal.cli.app import app, console
from shoal.cli.options import AskUrl, MaybeRun, Run, Settings
from shoal.errors import BenchError, ConfigError
from shoal.extras import require

PANEL = "Look"


@app.command(rich_help_panel=PANEL)
def status(run: MaybeRun = None, join: AskUrl = None) -> None:
    """Show how far a run has got, what each role is doing and what it is waiting for."""
    if (run is None) == (join is None):
        raise ConfigError("status: give a run directory, or --join URL with a coordinator's URL")
    if join is not None:
        from shoal.client.run_status import print_swarm

        print_swarm(join, console)
        return
    from shoal.watch.show import print_status

    assert run is not None
    print_status(run, console)


@app.command(rich_help_panel=PANEL)
def why(
    submission: Annotated[str, typer.Argument(metavar="STEP/NUMBER", help="A submission, as in 12/3.")],
    run: MaybeRun = None,
    join: AskUrl = None,
) -> None:
    """Explain a submission's verdict: the rule that was broken, what was claimed and what was found."""
    if (run is None) == (join is None):
        raise ConfigError(f"why {submission}: give the run's directory, or --join URL with its coordinator's URL")
    from shoal.client.run_status import ask_coordinator, ask_directory, print_why

    print_why(ask_directory(run, submission) if run else ask_coordinator(str(join), submission), console)


@app.command(rich_help_panel=PANEL)
def rollouts(
    run: Run,
    step: Annotated[int | None, typer.Option(help="Training step; default: the newest with rollouts.")] = None,
    count: Annotated[int, typer.Option("-n", min=1, help="Groups to show.")] = 3,
) -> None:
    """Print some finished rollouts: the prompt, the answers and each answer's reward."""
    require("coordinator", "shoal rollouts")
    from shoal.watch.rollouts import print_rollouts

    print_rollouts(run, step, count, console)


@app.command(rich_help_panel=PANEL)
def page(
    run: Run,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    public: Annotated[
        bool, typer.Option("--public", help="Serve other machines too; docs/page.md lists what they see.")
    ] = False,
) -> None:
    """Serve web pages of a run that goes on, has ended, crashed or was copied here, from its files alone."""
    require("coordinator", "shoal page")
    from shoal.page.serve import serve_page

    serve_page(run, host, port, console, public=public)


@app.command(rich_help_panel=PANEL)
def feed(
    run: Run,
    sink: Annotated[str, typer.Argument(metavar="SINK", help="tensorboard, trackio or wandb.")],
    settings: Settings = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is written later, until stopped.")] = False,
) -> None:
    """Send the curves of a run, finished or not, to a logging sink. Rows that the sink has already are not sent again.

    shoal run does this by itself for the sinks that its config names under log.

    --set log.wandb.project=NAME changes a setting for this time.
    """
    from shoal.sinks.feed import feed_run

    feed_run(run, sink, settings or [], console, follow=follow)


@app.command(rich_help_panel=PANEL)
def metrics(
    run: Run,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve /metrics at this port; 0 picks a free one.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Show what all roles of a run measure in Prometheus' text format: print it once, or serve it at a port.

    A machine that joined has its own directory, which shoal worker names at its start.
    """
    if port is None:
        from shoal.sinks.prometheus import once
        from shoal.watch.history import run_directory

        typer.echo(once(run_directory(run)), nl=False)
        return
    from shoal.sinks.exporter import serve_metrics

    serve_metrics(run, host, port, console)


@app.command(rich_help_panel=PANEL)
def replay(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="An evidence file: RUN/evidence/step-....json.")],
    weights: Annotated[
        list[Path] | None,
        typer.Option(
            help="Directory with a version's files, fetched again; repeatable. Default: those that evidence keeps."
        ),
    ] = None,
) -> None:
    """Recompute a rejection from its evidence, and say whether it holds and what ties it to a run.

    Inside a run's directory, a bundle whose config, lease or file differs from the run's is refused.
    """
    if not bundle.is_file():
        raise ConfigError(f"replay {bundle}: no such file; give a bundle from a run's evidence directory")
    from shoal.validate.evidence.replay import replay_bundle

    sys.exit(0 if replay_bundle(bundle, console, weights or ()) else 1)


@app.command(rich_help_panel=PANEL)
def attacks() -> None:
    """List the ways in which a worker of a run can be told to cheat."""
    from shoal.attacks import ATTACKS, EPISODE_ATTACKS

    for name, kind in (ATTACKS | EPISODE_ATTACKS).items():
        console.print(f"{name:20} {(kind.__doc__ or '').strip()}", highlight=False)


@app.command(rich_help_panel=PANEL)
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The benchmark; `python -m benchmarks` lists them.")],
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run briefly to see that it works; the figures mean little.")
    ] = False,
) -> None:
    """Compare a hot path with what you would otherwise use; needs a checkout of the repository."""
    root = Path(shoal.__file__).parents[2]
    if not (root / "benchmarks" / "__main__.py").is_file():
        raise BenchError(
            "benchmarks are not part of the installed package, they are in the repository: "
            "clone it and run `python -m benchmarks` there"
        )
    flags = [flag for flag, given in (("--json", json_), ("--quick", quick)) if given]
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    # -P: a folder `benchmarks` of the current directory is not ours.
    command = [sys.executable, "-P", "-m", "benchmarks", name, *flags]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})
