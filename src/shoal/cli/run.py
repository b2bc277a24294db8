"""Help panel "Run": a whole run on this machine, and the roles that its owner alone starts."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.app import app, console, errors
from shoal.cli.options import (
    Config,
    ConfigFlags,
    Device,
    Join,
    JoinFlags,
    MaybeTarget,
    Settings,
    Target,
    takes_options,
)
from shoal.errors import ConfigError
from shoal.extras import require

PANEL = "Run"


@app.command(rich_help_panel=PANEL)
@takes_options
def run(
    config: Target,
    changes: ConfigFlags,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved config, check what can be checked, and stop.")
    ] = False,
) -> None:
    """Run a whole swarm on this machine, and let other machines join it. Run it again to resume after a stop."""
    if dry_run:
        from shoal.config_io import to_toml
        from shoal.rundir import locate_config

        resolved, path = locate_config(config, changes.settings or [], changes.out)
        typer.echo(to_toml(resolved), nl=False)
        from shoal.plan.dry_run import check_run

        for note in check_run(resolved, path):
            errors.print(note, markup=False, highlight=False, soft_wrap=True)
        return
    require("coordinator", "shoal run")
    from shoal.roles.supervisor import run_config

    run_config(config, changes.settings or [], changes.out, console)


@dataclass(frozen=True)
class AssumptionFlags:
    """What a plan takes for granted; each has a default that follows from the config."""

    gpu: Annotated[
        str | None,
        typer.Option(help="Device of all roles: b200, h200, h100, a100, l40s, 4090 or cpu. Default: h100 if bfloat16."),
    ] = None
    worker_gpu: Annotated[
        str | None, typer.Option(help="Device of workers, validator and evaluator; default: that of the trainer.")
    ] = None
    mbit: Annotated[float | None, typer.Option(min=0.001, help="Link of each machine, Mbit/s; default: 1000.")] = None
    prompt_tokens: Annotated[
        float | None, typer.Option(min=1, help="Mean prompt length; default: half of the longest.")
    ] = None
    answer_tokens: Annotated[
        float | None,
        typer.Option(min=1, help="Mean answer length; default: mean of length.targets, or half of the longest."),
    ] = None
    signal: Annotated[
        float | None, typer.Option(min=0.001, max=1, help="Share of groups whose rewards differ; default: 0.5.")
    ] = None
    delta_share: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Size of a delta as a share of a full version; default: 0.02 if bfloat16."),
    ] = None
    train_use: Annotated[
        float | None, typer.Option(min=0.001, max=1, help="Share of peak FLOP/s reached in training; default: 0.4.")
    ] = None


@app.command(rich_help_panel=PANEL)
@takes_options
def plan(
    config: Config,
    assuming: AssumptionFlags,
    settings: Settings = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Say what a run needs on each kind of machine, before it starts: memory, disk, traffic, and time per step.

    The model need not be here: its config.json is enough.
    """
    from shoal.config_io import load_config

    resolved = load_config(config, settings or [])
    from shoal.plan.assumptions import assumptions
    from shoal.plan.plan import plan_run
    from shoal.plan.show import print_plan, to_json

    made = plan_run(resolved, assumptions(resolved, **asdict(assuming)))
    if json_:
        typer.echo(to_json(made))
    else:
        print_plan(made, console)


@dataclass(frozen=True)
class SimulationFlags:
    """What a simulation is told beside a config; each has a default."""

    nodes: Annotated[int | None, typer.Option(help="Workers; default: workers.count.")] = None
    churn: Annotated[float, typer.Option(help="Workers that leave per hour, in percent; others join instead.")] = 0.0
    uplink: Annotated[float, typer.Option(help="What a worker sends, Mbit/s, on average.")] = 100.0
    downlink: Annotated[
        float | None, typer.Option(help="What a worker receives, Mbit/s, on average; default: --mbit.")
    ] = None
    spread: Annotated[
        float,
        typer.Option(
            help="How unlike workers are: standard deviation of the log of their links; half of it for their speeds."
        ),
    ] = 0.5
    relays: Annotated[int, typer.Option(help="Relays between origin and workers.")] = 4
    relay_link: Annotated[float, typer.Option(help="Link of origin, relays and coordinator, Mbit/s.")] = 10_000.0
    validators: Annotated[int | None, typer.Option(help="Validators; default: as many as keep up.")] = None
    trainer_gpus: Annotated[int | None, typer.Option(help="Devices of the trainer; default: train.ranks.")] = None
    versions: Annotated[
        str | None, typer.Option(help="How versions travel: full, delta or lora. Default: the config's way.")
    ] = None
    model: Annotated[
        str | None, typer.Option(help="Size of the model: 7b, 32b, 70b or 405b. Default: the config's own.")
    ] = None
    steps: Annotated[int | None, typer.Option(help="Training steps; default: the config's.")] = None
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 0


@app.command(rich_help_panel=PANEL)
@takes_options
def simulate(
    config: Config,
    simulating: SimulationFlags,
    assuming: AssumptionFlags,
    settings: Settings = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a picture (PNG).")] = None,
) -> None:
    """Simulate a run over up to 100,000 machines in minutes: times, what everybody waits for, and what limits it.

    Pacing, leases, node states and the choice of relays are decided by the code that decides them in a real run.
    """
    from shoal.config_io import load_config

    resolved = load_config(config, settings or [])
    require("coordinator", "shoal simulate")
    from shoal.plan.assumptions import assumptions
    from shoal.simulate import command
    from shoal.simulate.from_config import Chosen

    chosen = Chosen(**asdict(simulating))
    command.simulate(resolved, assumptions(resolved, **asdict(assuming)), chosen, console, json_=json_, plot=plot)


@app.command(rich_help_panel=PANEL)
@takes_options
def coordinator(
    run: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A TOML file that describes the run, or the run's directory.")
    ],
    changes: ConfigFlags,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default: swarm.host.")] = None,
    port: Annotated[int | None, typer.Option(min=0, help="Port to listen on; default: swarm.port.")] = None,
    page: Annotated[
        str | None, typer.Option(metavar="URL", help="Where shoal page serves this run; browsers are sent there.")
    ] = None,
) -> None:
    """Serve a run's coordinator: nodes join it, get leases, upload rollouts and ask for verdicts.

    Its state is stored in the run's directory, or in PostgreSQL if swarm.database names one. It may be killed at any
    time; start it again to resume.
    """
    require("coordinator", "shoal coordinator")
    from shoal.coordinator.command import serve_coordinator
    from shoal.rundir import locate_config, settled

    config, path = locate_config(run, changes.settings or [], changes.out)
    serve_coordinator(config if run.is_dir() else settled(config, path), path, host, port, console, page)


@app.command(rich_help_panel=PANEL)
@takes_options
def trainer(run: Target, changes: ConfigFlags, join: Join = None, device: Device = None) -> None:
    """Train on accepted rollouts and publish policy versions, in this process or as one rank of several.

    Several: torchrun --nproc-per-node N -m shoal trainer RUN --join URL shards the model over N processes.

    It signs with RUN/keys/trainer.key; if the coordinator runs on another machine, set swarm.trainer there to this
    key's address.
    """
    from shoal.cli.lend import lend, on_device

    located, options = lend("trainer", run, JoinFlags(join), console, changes)  # before torch: report a typo at once
    located = on_device(located, "train", device)
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
