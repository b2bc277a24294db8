"""The command line. Nothing heavy is imported until a command needs it: `shoal --help` answers at once."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

import shoal
from shoal.errors import BannedError, BenchError, ConfigError, ShoalError, StorageError
from shoal.process import EXIT_BANNED, EXIT_REFUSED, die_with_parent, say_last_words, set_defaults

if TYPE_CHECKING:
    from shoal.client.credits import Teller
    from shoal.config import RunConfig
    from shoal.ledger.reader import Record
    from shoal.rundir import RunDir

app = typer.Typer(
    help="Asynchronous reinforcement learning of language models over machines that nobody has to trust.\n\n"
    "Start with: shoal run configs/laptop.toml",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
errors = Console(stderr=True)

Target = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or a config file whose run to use.")]
MaybeTarget = Annotated[
    Path | None, typer.Argument(metavar="[RUN]", help="A run directory, or a config file whose run to use.")
]
Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file that describes the run.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting, as in --set train.lr=1e-4.")
]
Out = Annotated[Path | None, typer.Option(help="Directory of the run; runs/NAME if not given.")]
Join = Annotated[
    str | None,
    typer.Option("--join", metavar="URL", help="The run's coordinator; URL#0xADDRESS trusts no other than this one."),
]
Home = Annotated[
    Path | None, typer.Option(help="Where a machine that joins keeps what it needs; else in your state directory.")
]
NodeKey = Annotated[Path | None, typer.Option("--key", help="Key to sign requests with; made if it is not there.")]
Relays = Annotated[
    list[str] | None,
    typer.Option("--relay", metavar="URL", help="Fetch versions from here, whatever the run says; repeatable."),
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Run Python that a joined run's tasks call for; it can do what you can.")
]


@app.command()
def run(
    config: Target,
    settings: Settings = None,
    out: Out = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved config and stop.")] = False,
) -> None:
    """Run a whole swarm on this machine, and let others join it. Run it again to go on after a stop."""
    if dry_run:
        from shoal.config import load_config, to_toml
        from shoal.rundir import locate_run

        changes = settings or []
        is_run = config.is_dir()
        resolved = locate_run(config, changes, out, console).config if is_run else load_config(config, changes)
        typer.echo(to_toml(resolved), nl=False)
        return
    from shoal.roles.supervisor import run_config

    run_config(config, settings or [], out, console)


@app.command()
def trainer(run: Target, join: Join = None, settings: Settings = None, out: Out = None) -> None:
    """Train on accepted rollouts and publish policy versions, in this process.

    It signs with RUN/keys/trainer.key; swarm.trainer names its address if the coordinator is elsewhere.
    """
    from shoal.roles.join import lend

    located, reach = lend("trainer", run, join, None, None, [], settings or [], out, console)
    from shoal.roles.trainer import start_trainer

    start_trainer(located, reach)


@app.command()
def worker(
    run: MaybeTarget = None,
    join: Join = None,
    name: Annotated[str, typer.Option(help="What to be called in tables and in the run's directory.")] = "worker",
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences side by side; the run's if not given.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; the run's if not given.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32 computes a bfloat16 run more exactly; the run's if not given.")
    ] = None,
    attack: Annotated[str | None, typer.Option(help="Cheat in this way; shoal attacks lists them.")] = None,
    key: NodeKey = None,
    home: Home = None,
    relays: Relays = None,
    allow_code: AllowCode = False,
    settings: Settings = None,
    out: Out = None,
) -> None:
    """Generate rollouts with the newest policy version, in this process.

    To lend this machine to a run: shoal worker --join URL. All else comes from the run card.
    """
    from shoal.roles.join import lend, machine

    located, reach = lend("worker", run, join, key, home, relays or [], settings or [], out, console, allow_code)
    located = machine(located, batch, threads, dtype)
    from shoal.roles.worker import start_worker

    start_worker(located, name, reach, attack)


@app.command()
def validator(
    run: MaybeTarget = None,
    join: Join = None,
    key: NodeKey = None,
    home: Home = None,
    relays: Relays = None,
    allow_code: AllowCode = False,
    settings: Settings = None,
    out: Out = None,
) -> None:
    """Judge rollouts before the trainer may use them, in this process.

    With --join from anywhere, if the run's owner has your address (shoal identity show) in swarm.validators.
    """
    from shoal.roles.join import lend

    located, reach = lend("validator", run, join, key, home, relays or [], settings or [], out, console, allow_code)
    from shoal.roles.validator import start_validator

    start_validator(located, reach)


@app.command()
def planter(
    run: MaybeTarget = None,
    join: Join = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="A copy of RUN/keys/planter.key, where RUN is on another machine.")
    ] = None,
    home: Home = None,
    relays: Relays = None,
) -> None:
    """Hand in files whose verdict is known, good and bad, to see which validators judge them right; for a run's owner.

    shoal run starts one if ledger.plants is above 0. Elsewhere: shoal planter RUN --join URL, on a machine that nobody
    else can read: whoever has its key knows what is planted.
    """
    from shoal.roles.join import lend

    if run is None and (key is None or not key.is_file()):
        raise ConfigError("planter: give --key with a copy of RUN/keys/planter.key; with another, bad files are cheats")
    located, reach = lend("planter", run, join, key, home, relays or [], [], None, console)
    from shoal.roles.planter import start_planter

    start_planter(located, reach)


@app.command()
def replay(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="An evidence file: RUN/evidence/step-....json.")],
) -> None:
    """Compute a rejection again from its evidence, and say whether it holds and what binds it to a run.

    Beside a run, a bundle with another config, lease or file than the run's is refused.
    """
    if not bundle.is_file():
        raise ConfigError(f"replay {bundle}: no such file; give a bundle out of a run's evidence directory")
    from shoal.validate.replay import replay_bundle

    sys.exit(0 if replay_bundle(bundle, console) else 1)


@app.command()
def attacks() -> None:
    """List the ways in which a worker of a run can be told to cheat."""
    from shoal.attacks import ATTACKS

    for name, kind in ATTACKS.items():
        console.print(f"{name:20} {(kind.__doc__ or '').strip()}", highlight=False)


@app.command()
def model(
    config: Config,
    settings: Settings = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make it again even if it is there.")] = False,
) -> None:
    """Make the base model of a run and print its directory; it is cached for later runs."""
    from shoal.config import load_config
    from shoal.models.base import ensure_base_model

    typer.echo(ensure_base_model(load_config(config, settings or []), errors, rebuild=rebuild))


@app.command("eval")
def evaluate(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A run directory or a model directory.")],
    config: Annotated[Path | None, typer.Option(help="Config with the tasks; needed for a model directory.")] = None,
    settings: Settings = None,
    version: Annotated[int | None, typer.Option(help="Policy version of a run; the newest if not given.")] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Number of held-out tasks; the config's if not given.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Evaluate versions as a run publishes them.")] = False,
    suite: Annotated[
        str | None,
        typer.Option(help="Tasks to ask: words, arithmetic, reasoning, a TOML file, or lm-eval's YAML."),
    ] = None,
    against: Annotated[Path | None, typer.Option(help="With --suite: a second model, to compare with.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="With --suite: answers to each task.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="With --suite: print JSON instead of a table.")] = False,
) -> None:
    """Measure pass@1 on held-out tasks; with --suite also pass@k, average@k and the difference of two models."""
    from shoal.rundir import open_run

    if suite is not None:
        _evaluate_suite(target, against, suite, tasks, samples, json_)
        return

    # Before torch: a typo is told at once.
    if follow:
        run = open_run(target)
        from shoal.roles.evaluator import start_evaluator

        start_evaluator(run)
    else:
        measured = _run_or_config(target, config, settings or [])
        from shoal.roles.evaluator import evaluate_target

        evaluate_target(target, measured, version, tasks, console)


def _evaluate_suite(
    target: Path, against: Path | None, name: str, tasks: int | None, samples: int | None, as_json: bool
) -> None:
    from shoal.evals.suites import find_suite

    suite = find_suite(name)
    changes = {"tasks": tasks, "samples": samples}
    suite = suite.model_copy(update={key: value for key, value in changes.items() if value is not None})
    models = [target] if against is None else [target, against]
    for number, model in enumerate(models):
        # A run that is done has its model in a directory of its own.
        models[number] = model / "model" if (model / "model" / "config.json").is_file() else model
        if not (models[number] / "config.json").is_file():
            raise ConfigError(f"eval {model}: no model directory, and no run that is done")
    from shoal.evals.suite import evaluate_suite

    evaluate_suite(models, suite, "float32", as_json, console)


def _check_model(model: Path) -> None:
    if not model.is_dir():
        raise ConfigError(f"--model {model}: no such directory; shoal model CONFIG makes one and prints its place")


@app.command("filter")
def filter_tasks(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A config whose tasks to measure, or a source, as in file/math.jsonl."),
    ],
    model: Annotated[Path, typer.Option(help="Directory of the model that is asked.")],
    out: Annotated[Path, typer.Option(help="File to write; a source of its own then: filtered/FILE.")],
    samples: Annotated[int, typer.Option(min=1, help="Answers to each task.")] = 8,
    keep: Annotated[str, typer.Option(help="Pass rates to keep.")] = "0.125..0.5",
    tasks: Annotated[int | None, typer.Option(min=1, help="Tasks to measure; all of a table if not given.")] = None,
    reward: Annotated[str | None, typer.Option(help="Reward of a table: math, code, exact ...")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="Temperature of the answers.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer; a config's own if one is given.")] = 256,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Longest prompt; a config's own likewise.")] = 1024,
    seed: Annotated[int, typer.Option(min=0, help="The answers' noise follows from it.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes that measure; the result is the same.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each of them.")] = 1,
) -> None:
    """Measure how often a model solves each task, and keep those that are worth training on.

    Stopped half-way, the same command goes on from there, also with another number of workers.
    """
    from shoal.config import TaskConfig, load_config
    from shoal.evals.filter import parse_keep
    from shoal.tasks.sources.filtered import Header

    lines = [TaskConfig(source=source, reward=reward)] if not source.endswith(".toml") else []
    if not lines:
        config = load_config(Path(source))
        lines = config.tasks
        max_new_tokens, max_prompt_tokens = config.sampling.max_new_tokens, config.sampling.max_prompt_tokens
    header = Header(lines, str(model), samples, parse_keep(keep), temperature, seed)
    _check_model(model)
    import torch

    from shoal.evals.answers import Drawing
    from shoal.evals.filter import filter_source

    torch.set_num_threads(threads)
    drawing = Drawing(samples, temperature, max_new_tokens, max_prompt_tokens, seed=seed)
    filter_source(header, drawing, tasks, out, console, workers)


@app.command()
def sft(
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="JSONL of conversations, or a config whose tasks' own answers to learn."),
    ],
    model: Annotated[Path, typer.Option(help="Directory of the model to begin with.")],
    out: Annotated[Path, typer.Option(help="Directory to write the new model to.")],
    examples: Annotated[int, typer.Option(min=1, help="With a config: examples to draw.")] = 2048,
    epochs: Annotated[int, typer.Option(min=1, help="Times each example is learnt.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Examples in a step.")] = 32,
    lr: Annotated[float, typer.Option(min=0.0, help="Peak learning rate.")] = 1e-4,
    token_budget: Annotated[int, typer.Option(min=1, help="Tokens packed into one forward pass.")] = 4096,
    seed: Annotated[int, typer.Option(help="Order of the examples.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
) -> None:
    """Show a model how to answer: supervised learning, so that one that never scores begins to score sometimes.

    A line of JSONL is {"messages": [...]} or {"prompt": ..., "completion": ...}. With a config, examples come from
    the tasks: shoal sft configs/laptop.toml --model MODEL --out warm
    """
    from shoal.config import load_config

    _check_model(model)
    lines = load_config(data).tasks if data.suffix == ".toml" else None
    import torch

    from shoal.tasks.build import build_source
    from shoal.train.sft import SftConfig, fit_model, from_conversations, from_source

    torch.set_num_threads(threads)
    config = SftConfig(epochs=epochs, batch=batch, lr=lr, token_budget=token_budget, seed=seed)
    if lines is None:
        fit_model(model, out, lambda policy: from_conversations(policy, data), config, console)
    else:
        source = build_source(lines)
        fit_model(model, out, lambda policy: from_source(policy, source, examples), config, console)


def _run_or_config(target: Path, config: Path | None, settings: list[str]) -> "RunDir | RunConfig":
    """What `shoal eval` is to measure: a run, or the config that goes with a model directory."""
    from shoal.config import load_config
    from shoal.rundir import RUN_FILE, open_run

    if not target.is_dir():
        raise ConfigError(f"eval {target}: no such directory; give a run directory, or a model directory and --config")
    if (target / RUN_FILE).is_file():
        if config or settings:
            raise ConfigError(f"eval {target}: --config and --set go with a model directory; a run has its own config")
        return open_run(target)
    if config is None:
        raise ConfigError(f"eval {target}: not a run directory; for a model directory give --config with its tasks")
    return load_config(config, settings)


@app.command()
def status(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run directory.")] = None,
    join: Annotated[str | None, typer.Option(metavar="URL", help="A coordinator, in place of a directory.")] = None,
) -> None:
    """Say how far a run is, what each role is doing and who waits on whom."""
    if (run is None) == (join is None):
        raise ConfigError("status: give a run directory, or --join URL with a coordinator's URL")
    if join is not None:
        from shoal.client.ask import print_swarm

        print_swarm(join, console)
        return
    from shoal.watch.show import print_status

    assert run is not None
    print_status(run, console)


@app.command()
def why(
    submission: Annotated[str, typer.Argument(metavar="STEP/NUMBER", help="A submission, as in 12/3.")],
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run directory.")] = None,
    join: Annotated[str | None, typer.Option(metavar="URL", help="A coordinator, in place of a directory.")] = None,
) -> None:
    """Say what became of a submission: the verdict, the rule that was broken, what was claimed and what was found."""
    if (run is None) == (join is None):
        raise ConfigError(f"why {submission}: give the run's directory, or --join URL with its coordinator's URL")
    from shoal.client.ask import ask_coordinator, ask_directory, print_why

    print_why(ask_directory(run, submission) if run else ask_coordinator(str(join), submission), console)


@app.command()
def rollouts(
    run: Run,
    step: Annotated[int | None, typer.Option(help="Training step; the newest with rollouts if not given.")] = None,
    count: Annotated[int, typer.Option("-n", min=1, help="Groups to show.")] = 3,
) -> None:
    """Read some finished rollouts: the prompt, the answers and what each earned."""
    from shoal.watch.rollouts import print_rollouts

    print_rollouts(run, step, count, console)


@app.command()
def calibrate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model directory, smollm2, tiny, or a config whose model to use.")
    ],
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; the config's, or float32.")] = None,
    config: Annotated[Path | None, typer.Option(help="Config with the tasks to ask; else random tokens.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write the [audit.thresholds] table to.")] = None,
    samples: Annotated[int, typer.Option(min=16, help="Answers to compare in every way.")] = 256,
) -> None:
    """Measure how far honest workers are off, and the thresholds that follow for a validator."""
    if dtype not in (None, "float32", "bfloat16"):
        raise ConfigError(f"--dtype {dtype}: give float32 or bfloat16")
    from shoal.validate.calibrate import calibrate as measure_model

    measure_model(model, config, dtype, out, samples, console)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of those that `python -m benchmarks` lists.")],
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A short run that shows it works; its figures mean little.")
    ] = False,
) -> None:
    """Measure a hot path side by side with what you would otherwise use; in a checkout of the repository."""
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


Sources = Annotated[
    list[str],
    typer.Argument(metavar="URL...", help="Relays or origins, as http://HOST:PORT or https://HOST:PORT#0xADDRESS."),
]
CastRun = Annotated[str | None, typer.Option("--run", help="Name of the run; the first head decides if not given.")]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Allow = Annotated[
    Path | None, typer.Option(help="File with the addresses of nodes that may ask, one a line; else anybody may.")
]


Tls = Annotated[
    bool | None,
    typer.Option(
        "--tls/--no-tls", help="Serve https; else so unless it listens on loopback alone or --url begins with http:."
    ),
]


@app.command()
def origin(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Versions appear here: files or directories named v000012 or 12. Or a run's directory."
        ),
    ],
    store: Annotated[Path | None, typer.Option(help="Where packages stand; DIR/.store if not given.")] = None,
    key: Annotated[Path | None, typer.Option(help="The origin's key; made at first use. STORE/../origin.key.")] = None,
    run_name: Annotated[str, typer.Option("--run", help="Name of the run, part of everything signed.")] = "run",
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 7100,
    url: Annotated[str | None, typer.Option(help="URL under which others reach this origin, if another.")] = None,
    keep: Annotated[int, typer.Option(min=1, help="Versions to keep.")] = 5,
    allow: Allow = None,
    tls: Tls = None,
) -> None:
    """Publish versions of weights that appear in a directory, signed, and serve them.

    Put a version there in one move (write it under another name, such as v000012.partial, then rename it): its files
    are linked, not copied, and can be fetched from the first piece on.
    """
    from shoal.rundir import RUN_FILE, open_run

    if (directory / RUN_FILE).is_file():
        from shoal.roles.origin import start_origin

        start_origin(open_run(directory), port)
        return
    from shoal.shardcast.commands import serve_origin

    place = store or directory / ".store"
    serve_origin(
        directory, place, key or place.parent / "origin.key", run_name, host, port, url, allow, keep, console, tls
    )


@app.command()
def relay(
    run_directory: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run's directory, whose relay this is then.")
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="URL", help="Relay or origin to fetch from; may be given again."),
    ] = None,
    store: Annotated[Path, typer.Option(help="Where packages stand.")] = Path("relay"),
    origin_address: Annotated[str, typer.Option("--origin", help="The origin's address, 0x...")] = "",
    run_name: CastRun = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 7200,
    name: Annotated[str, typer.Option(help="What to be called in the tree.")] = "relay",
    url: Annotated[str | None, typer.Option(help="URL under which others reach this relay, if another.")] = None,
    key: NodeKey = None,
    join: Join = None,
    home: Home = None,
    allow: Allow = None,
    nginx: Annotated[Path | None, typer.Option(help="Write an nginx configuration that serves the store.")] = None,
    serve: Annotated[bool, typer.Option(help="--no-serve leaves serving to nginx.")] = True,
    tls: Tls = None,
) -> None:
    """Pass versions on: fetch from relays or the origin, check, and serve each piece as soon as it is here.

    A relay can withhold, and nothing else: whoever fetches from it checks the origin's signature.

    To lend this machine's line to a run: shoal relay --join URL --host 0.0.0.0 --url https://THIS-MACHINE:7200.
    """
    if join is not None or (run_directory is not None and sources):
        loose = {
            "--origin": origin_address,
            "--run": run_name,
            "--allow": allow,
            "--nginx": nginx,
            "--no-serve": not serve,
        }
        if given := [option for option, value in loose.items() if value]:
            raise ConfigError(
                f"relay: {', '.join(given)}: not for the relay of a run, which goes by the run's own rules"
            )
        if host in ("0.0.0.0", "::") and join is not None and url is None:
            raise ConfigError(f"relay: --host {host} listens everywhere; give --url with the URL that others reach")
        from shoal.roles.join import lend
        from shoal.roles.relay import start_relay

        located, reach = lend("relay", run_directory, join, key, home, [], [], None, console)
        start_relay(located, sources or [], host, port, reach, url, tls)
        return
    if not sources or not origin_address:
        raise ConfigError(
            "relay: give --join URL (a run's coordinator), or --from URL (an origin or a relay) and --origin ADDRESS "
            "(what the origin prints)"
        )
    if nginx is not None and allow is not None:
        raise ConfigError("relay: --nginx with --allow: nginx cannot check who signed a request; give only one of them")
    from shoal.shardcast.commands import serve_relay

    serve_relay(sources, store, origin_address, run_name, host, port, name, url, key, allow, nginx, serve, console, tls)


@app.command()
def fetch(
    sources: Sources,
    to: Annotated[Path, typer.Option(help="Where packages stand; DIR/latest leads to the files.")],
    origin_address: Annotated[str, typer.Option("--origin", help="The origin's address; only what it signed counts.")],
    version: Annotated[int | None, typer.Option(help="Version to fetch; the newest if not given.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with each new version.")] = False,
    run_name: CastRun = None,
    wait: Annotated[float, typer.Option(help="Seconds in which nothing at all may arrive.")] = 60.0,
    name: Annotated[str, typer.Option(help="What to be called in the tree.")] = "",
    key: NodeKey = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Fetch weights from several relays at once and print where they are. Stopped half-way, it goes on from there."""
    from shoal.shardcast.commands import fetch_version

    fetch_version(sources, to, origin_address, run_name, version, follow, wait, name, key, console, quiet)


@app.command()
def tree(url: Annotated[str, typer.Argument(metavar="URL", help="An origin or a relay.")]) -> None:
    """Show who has how much of which version, from a node downwards."""
    from shoal.shardcast.commands import show_tree

    show_tree(url, console)


@app.command()
def coordinator(
    run: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A TOML file that describes the run, or its directory.")
    ],
    host: Annotated[str | None, typer.Option(help="Address to listen on; swarm.host if not given.")] = None,
    port: Annotated[int | None, typer.Option(min=0, help="Port to listen on; swarm.port if not given.")] = None,
    settings: Settings = None,
    out: Out = None,
) -> None:
    """Serve the front door of a run: nodes join here, get leases, hand in files and ask what became of them.

    Its state lies in the run's directory, or in PostgreSQL if swarm.database says so; it may be killed at any time.
    """
    from shoal.config import load_config
    from shoal.coordinator.command import serve_coordinator
    from shoal.rundir import default_path, open_run, settled

    if run.is_dir():
        if settings or out:
            raise ConfigError(f"run {run}: --set and --out go with a config file; a prepared run has its own config")
        serve_coordinator(open_run(run).config, run, host, port, console)
        return
    config = load_config(run, settings or [])
    path = out or default_path(config)
    serve_coordinator(settled(config, path), path, host, port, console)


identity = typer.Typer(help="This machine's key, which is its name in every run, and the coordinators that it knows.")
app.add_typer(identity, name="identity", no_args_is_help=True)
OwnKey = Annotated[
    Path | None, typer.Option("--key", help="The key's file; shoal/node.key in your config directory if not given.")
]


@identity.command("show")
def identity_show(key: OwnKey = None) -> None:
    """Print this machine's address; a key is made at first use."""
    from shoal.client.identity import default_key, show

    show(key or default_key(), console)


@identity.command("export")
def identity_export(
    key: OwnKey = None, to: Annotated[Path | None, typer.Option(help="File to write; else it is printed.")] = None
) -> None:
    """Give out the private key, to keep it elsewhere or to take it to another machine. Whoever has it is you."""
    from shoal.client.identity import default_key, export

    export(key or default_key(), to, console)


@identity.command("import")
def identity_import(
    source: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="File with the private key; standard input if not given.")
    ] = None,
    key: OwnKey = None,
    replace: Annotated[bool, typer.Option("--replace", help="Put a key that is there aside.")] = False,
) -> None:
    """Make a private key this machine's own."""
    from shoal.client.identity import bring_in, default_key

    try:
        text = source.read_text() if source else sys.stdin.read(200)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"identity import {source}: cannot be read ({error}); give a file with a key") from error
    bring_in(key or default_key(), text, replace, console)


@identity.command("forget")
def identity_forget(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where another coordinator is to be joined now.")],
) -> None:
    """Forget which coordinator was found at a URL, when the run's owner says that it is another one now."""
    from shoal.client.identity import forget_coordinator

    forget_coordinator(url, console)


ledger = typer.Typer(help="A run's ledger: check or read it, object to a verdict, pay credits in and take them out.")
app.add_typer(ledger, name="ledger", no_args_is_help=True)
LedgerOf = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, a ledger.db or an export.")]
AnyLedger = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, a ledger.db, an export, or a coordinator's URL.")
]

Amount = Annotated[int, typer.Argument(metavar="AMOUNT", min=1, help="Credits; on a chain, wei.")]
LedgerJoin = Annotated[
    str | None, typer.Option("--join", metavar="URL", help="The run's coordinator, which says where the ledger is.")
]
LedgerRun = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="DIR|NAME",
        help="Without the coordinator: the directory of the run, or of this machine's part in it; with --contract, "
        "the run's name.",
    ),
]
Rpc = Annotated[str | None, typer.Option("--rpc", metavar="URL", help="Without the coordinator: a node of the chain.")]
Contract = Annotated[
    str | None, typer.Option("--contract", metavar="0x...", help="Without the coordinator: the contract's address.")
]
Created = Annotated[
    str | None, typer.Option("--created", metavar="0x...", help="With --contract: the transaction that created it.")
]
CreditsKey = Annotated[
    Path | None, typer.Option("--key", help="Key to sign with; this machine's own (shoal identity) if not given.")
]


def _record(where: str) -> "Record":
    """A ledger, checked from its first entry to its last."""
    with console.status(f"verifying the ledger of {where}"):
        if where.startswith(("http://", "https://")):
            from shoal.client.ledger import record_at

            return record_at(where)
        from shoal.ledger.reader import read_record

        return read_record(Path(where))


@ledger.command("verify")
def ledger_verify(
    path: LedgerOf,
    coordinator: Annotated[str | None, typer.Option(help="The address that must have opened and sealed it.")] = None,
    heads: Annotated[
        Path | None, typer.Option(help="Heads that a validator signed and kept, a line each: none may be missing.")
    ] = None,
    against: Annotated[Path | None, typer.Option(help="Another copy: a fork is shown with both signatures.")] = None,
) -> None:
    """Check every link, signature and rule from the first entry to the last; the first bad entry is named.

    A file verifies with nothing beside it, on any machine: shoal ledger verify run.jsonl. Of a run whose ledger is a
    contract, the contract's log is folded by the rules and compared with every balance that it has.
    """
    from shoal.ledger.commands import verify_ledger

    verify_ledger(path, coordinator, heads, against, console)


@ledger.command("show")
def ledger_show(
    run: AnyLedger, count: Annotated[int, typer.Option("-n", min=1, help="How many of the last entries.")] = 20
) -> None:
    """Show the last entries."""
    from shoal.ledger.commands import show_ledger

    show_ledger(_record(run), count, console)


@ledger.command("export")
def ledger_export(
    path: LedgerOf, to: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, an entry a line.")]
) -> None:
    """Write a copy as lines of JSON that anybody can check."""
    from shoal.ledger.commands import export_ledger

    export_ledger(path, to, console)


@ledger.command("gas")
def ledger_gas(
    run: Target,
    dev: Annotated[
        bool, typer.Option("--dev", help="Give each some, from the first account of a development chain (anvil).")
    ] = False,
    settings: Settings = None,
    out: Out = None,
) -> None:
    """Show what coordinator and validators have on the run's chain to pay for transactions; before a run, too.

    Whoever sends a transaction pays its gas: the coordinator for joining, work and settling, a validator for its votes,
    which ledger.gas gives it, a node for taking out what it earned, a challenger and the arbiter for theirs.
    """
    from shoal.client.gas import show_gas
    from shoal.config import load_config
    from shoal.rundir import default_path, open_run

    if run.is_dir():
        show_gas(open_run(run).config, run, dev, console)
        return
    config = load_config(run, settings or [])
    show_gas(config, out or default_path(config), dev, console)


@ledger.command("challenge")
def ledger_challenge(
    submission: Annotated[str, typer.Argument(metavar="STEP/NUMBER", help="A submission, as in 12/3.")],
    claim: Annotated[str, typer.Option(help="What its verdict should have been: accept or reject.")],
    join: Annotated[str, typer.Option(metavar="URL", help="The run's coordinator.")],
    evidence: Annotated[
        Path | None, typer.Option(help="A bundle whose hash is entered with it, for people; the arbiter needs none.")
    ] = None,
    key: NodeKey = None,
) -> None:
    """Object to a verdict within its window. You must have joined; the arbiter judges the file itself, and rules."""
    from shoal.client.challenge import challenge
    from shoal.client.identity import default_key
    from shoal.keys import Key

    challenge(join, submission, claim, evidence, Key.load(key or default_key()), console)


@contextmanager
def _teller(
    join: str | None, run: str | None, rpc: str | None, contract: str | None, created: str | None, key: Path | None
) -> "Iterator[Teller]":
    """A person's hand on the ledger that these options name."""
    from shoal.client.credits import teller
    from shoal.client.identity import default_key
    from shoal.client.ledger_access import Where
    from shoal.keys import Key

    with teller(Where(join, run, rpc, contract, created), Key.load(key or default_key()), console) as found:
        yield found


@ledger.command("stake")
def ledger_stake(
    amount: Amount,
    join: LedgerJoin = None,
    run: LedgerRun = None,
    rpc: Rpc = None,
    contract: Contract = None,
    created: Created = None,
    key: CreditsKey = None,
) -> None:
    """Pay in what this machine has earned, as stake: for each ledger.stake_per_lease of it, one more lease."""
    with _teller(join, run, rpc, contract, created, key) as own:
        own.stake(amount)


@ledger.command("deposit")
def ledger_deposit(
    amount: Amount,
    join: LedgerJoin = None,
    run: LedgerRun = None,
    rpc: Rpc = None,
    contract: Contract = None,
    created: Created = None,
    key: CreditsKey = None,
    node: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Whose stake it is; the key's own if not given.")
    ] = None,
) -> None:
    """Pay in stake: into a contract wei of the key's address.

    In a ledger that is a file only the coordinator says what was paid in: pay the run's owner, who then runs
    shoal ledger deposit AMOUNT --node ADDRESS --join URL --key RUN/keys/coordinator.key.
    """
    with _teller(join, run, rpc, contract, created, key) as own:
        own.deposit(amount, node)


@ledger.command("unbond")
def ledger_unbond(
    amount: Annotated[
        int | None, typer.Argument(metavar="AMOUNT", min=1, help="Credits, or wei; all stake if not given.")
    ] = None,
    join: LedgerJoin = None,
    run: LedgerRun = None,
    rpc: Rpc = None,
    contract: Contract = None,
    created: Created = None,
    key: CreditsKey = None,
) -> None:
    """Let stake leave. It can be withdrawn once all that the node handed in before is beyond challenge."""
    with _teller(join, run, rpc, contract, created, key) as own:
        own.unbond(amount)


@ledger.command("withdraw")
def ledger_withdraw(
    join: LedgerJoin = None,
    run: LedgerRun = None,
    rpc: Rpc = None,
    contract: Contract = None,
    created: Created = None,
    key: CreditsKey = None,
) -> None:
    """Take out what this machine has earned and no challenge can void any more, and what of its stake has left.

    A contract pays it to the key's address, which pays the gas. From a file, it is noted as paid out, and the run's
    owner pays.
    """
    with _teller(join, run, rpc, contract, created, key) as own:
        own.withdraw()


@ledger.command("advance")
def ledger_advance(
    join: LedgerJoin = None,
    run: LedgerRun = None,
    rpc: Rpc = None,
    contract: Contract = None,
    created: Created = None,
    key: CreditsKey = None,
) -> None:
    """Move the clock of a contract on by a step, whose coordinator did not for ledger.stall seconds; for anybody.

    Settles what validators had long enough for, too. Locks and stake that leaves are counted in steps: come again
    until they are over. Of a ledger that is a file, the coordinator alone moves the clock.
    """
    with _teller(join, run, rpc, contract, created, key) as own:
        own.advance()


@ledger.command("close")
def ledger_close(
    join: LedgerJoin = None,
    run: LedgerRun = None,
    rpc: Rpc = None,
    contract: Contract = None,
    created: Created = None,
    key: CreditsKey = None,
) -> None:
    """End a ledger, so that what is left of its treasury can be refunded.

    For the coordinator, which does it by itself at the end of a run; for anybody once others have moved a contract's
    clock for as many steps as stake takes to leave.
    """
    with _teller(join, run, rpc, contract, created, key) as own:
        own.close()


@ledger.command("refund")
def ledger_refund(
    join: LedgerJoin = None,
    run: LedgerRun = None,
    rpc: Rpc = None,
    contract: Contract = None,
    created: Created = None,
    key: CreditsKey = None,
) -> None:
    """Take out this key's share of what is left of the treasury, if it funded it and the ledger is over."""
    with _teller(join, run, rpc, contract, created, key) as own:
        own.refund()


@ledger.command("arbitrate")
def ledger_arbitrate(
    run: Run,
    join: Annotated[str, typer.Option(metavar="URL", help="The run's coordinator.")],
    key: Annotated[Path | None, typer.Option(help="The arbiter's key; the coordinator's if not given.")] = None,
) -> None:
    """Judge the file of every open challenge again, all of it, and rule; for the run's arbiter.

    The bytes and the signed lease come from the coordinator, the config and the versions from RUN. A challenge whose
    bytes, lease or version are gone is left open.
    """
    from shoal.client.challenge import arbitrate
    from shoal.keys import Key
    from shoal.rundir import key_path, open_run
    from shoal.validate.arbiter import open_arbiter

    own = Key.load(key or key_path(run, "coordinator"))
    with open_arbiter(open_run(run)) as arbiter:
        found = arbitrate(join, arbiter.run, own, arbiter.judge, console)
    console.print(
        f"{found.upheld} challenges upheld, {found.refuted} refuted, {found.left_open} left open", highlight=False
    )


@app.command()
def earnings(run: AnyLedger) -> None:
    """Show who contributed how many tokens, what was accepted, earned and slashed."""
    from shoal.ledger.commands import show_earnings

    show_earnings(_record(run), console)


@app.command()
def node(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="A node's address, or how it begins.")],
    run: AnyLedger,
) -> None:
    """Show one contributor's history: stake, work, verdicts, earnings."""
    from shoal.ledger.commands import show_node

    show_node(_record(run), address, console)


def main() -> None:
    """Entry point: errors meant for people are printed without a traceback."""
    set_defaults()
    die_with_parent()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except BannedError as error:
        _refuse(error, EXIT_BANNED)
    except ShoalError as error:
        _refuse(error)
    except OSError as error:
        said = error.__context__  # why it ends must not be lost because nothing more can be written
        error = said if isinstance(said, OSError) else error
        if error.filename is not None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise  # it is about a file, and a defect of ours
        _mute(1)
        why = f"standard output: cannot be written ({error.strerror}); send it elsewhere"
        if error.filename is not None:
            why = f"{error.filename}: the disk is full; free some space"
        _refuse(said if isinstance(said, ShoalError) else StorageError(why))


def _mute(descriptor: int) -> None:
    """What is still to be written must not fail again on the way out: that would change the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _refuse(error: ShoalError, code: int = EXIT_REFUSED) -> NoReturn:
    # A stranger's run card may be quoted: no terminal escapes.
    said = "".join(char if char.isprintable() or char == "\n" else " " for char in str(error))
    say_last_words(said)
    try:
        errors.print(f"error: {said}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        sys.stderr.flush()
    except OSError:
        _mute(2)
    sys.exit(code)
