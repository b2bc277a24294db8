"""Help panel "Tasks and models": make, teach and measure models, and choose tasks for them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.app import app, console, errors
from shoal.cli.options import Config, Device, Settings, check_device, check_dtype, refuse_flags, with_device
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.config import RunConfig
    from shoal.rundir import RunDir

PANEL = "Tasks and models"


@app.command(rich_help_panel=PANEL)
def model(
    config: Config,
    settings: Settings = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make it again even if it is cached.")] = False,
) -> None:
    """Make the base model of a run and print its directory; it is cached for later runs."""
    from shoal.config_io import load_config
    from shoal.models.base import ensure_base_model
    from shoal.tasks.build import pinned

    resolved = load_config(config, settings or [])
    if resolved.model.source == "tiny":
        # As a run does when it is prepared: what a tiny model is made from includes what its tasks hold.
        resolved = resolved.model_copy(update={"tasks": pinned(resolved.tasks)})
    typer.echo(ensure_base_model(resolved, errors, rebuild=rebuild))


@app.command(rich_help_panel=PANEL)
def sft(
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="JSONL of conversations, or a config whose tasks give their own answers."),
    ],
    model: Annotated[Path, typer.Option(help="Directory of the model to start from.")],
    out: Annotated[Path, typer.Option(help="Directory to write the new model to.")],
    examples: Annotated[int, typer.Option(min=1, help="With a config: number of examples to draw.")] = 2048,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the examples.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Examples per step.")] = 32,
    lr: Annotated[float, typer.Option(min=0.0, help="Peak learning rate.")] = 1e-4,
    token_budget: Annotated[int, typer.Option(min=1, help="Tokens packed into one forward pass.")] = 4096,
    seed: Annotated[int, typer.Option(help="Seed for the order of the examples.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    device: Device = None,
) -> None:
    """Fine-tune a model on examples (supervised), so that a model that solves no task starts to solve some.

    A line of JSONL is {"messages": [...]} or {"prompt": ..., "completion": ...}. With a config, examples come from
    the tasks: shoal sft configs/laptop.toml --model MODEL --out warm
    """
    from shoal.config_io import load_config

    _check_model(model)
    lines = load_config(data).tasks if data.suffix == ".toml" else None
    wanted = check_device(device) or "auto"
    from shoal.devices import set_up
    from shoal.tasks.build import build_source
    from shoal.train.sft import SftConfig, fit_model, from_conversations, from_source

    place = set_up(wanted, threads, "--device")
    config = SftConfig(epochs=epochs, batch=batch, lr=lr, token_budget=token_budget, seed=seed)
    if lines is None:
        fit_model(model, out, lambda policy: from_conversations(policy, data), config, console, place)
    else:
        source = build_source(lines)
        fit_model(model, out, lambda policy: from_source(policy, source, examples), config, console, place)


@app.command("filter", rich_help_panel=PANEL)
def filter_tasks(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A config whose tasks to measure, or a source, as in file/math.jsonl."),
    ],
    model: Annotated[Path, typer.Option(help="Directory of the model that answers.")],
    out: Annotated[Path, typer.Option(help="File to write, which is then a source itself: filtered/FILE.")],
    samples: Annotated[int, typer.Option(min=1, help="Answers per task.")] = 8,
    keep: Annotated[str, typer.Option(help="Pass rates to keep.")] = "0.125..0.5",
    tasks: Annotated[int | None, typer.Option(min=1, help="Tasks to measure; default: all of a table.")] = None,
    reward: Annotated[str | None, typer.Option(help="Reward of a table: math, code, exact ...")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer; a config has its own.")] = 256,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Longest prompt; a config has its own.")] = 1024,
    seed: Annotated[int, typer.Option(min=0, help="Seed for sampling.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes that measure; the result does not change.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads per process.")] = 1,
    device: Device = None,
) -> None:
    """Measure how often a model solves each task, and keep the tasks that are worth training on.

    If it is stopped, the same command resumes, even with another number of workers.
    """
    from shoal.config import TaskConfig
    from shoal.config_io import load_config
    from shoal.evals.filter import parse_keep
    from shoal.tasks.sources.filtered import Header

    if source.endswith(".toml"):
        own = ("reward", "max_new_tokens", "max_prompt_tokens")
        refuse_flags(
            context, f"filter {source}", own, "a config has its own; only a source does, as in file/math.jsonl"
        )
        config = load_config(Path(source))
        lines = config.tasks
        max_new_tokens, max_prompt_tokens = config.sampling.max_new_tokens, config.sampling.max_prompt_tokens
    else:
        lines = [TaskConfig(source=source, reward=reward)]
    header = Header(lines, str(model), samples, parse_keep(keep), temperature, seed)
    _check_model(model)
    wanted = check_device(device) or "auto"
    from shoal.devices import set_up
    from shoal.evals.answers import Drawing
    from shoal.evals.filter import filter_source

    set_up(wanted, threads, "--device")
    drawing = Drawing(samples, temperature, max_new_tokens, max_prompt_tokens, seed=seed)
    filter_source(header, drawing, tasks, out, console, workers, wanted)


@app.command("eval", rich_help_panel=PANEL)
def evaluate(
    context: typer.Context,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A run directory or a model directory.")],
    config: Annotated[Path | None, typer.Option(help="Config with the tasks; needed for a model directory.")] = None,
    settings: Settings = None,
    version: Annotated[int | None, typer.Option(help="Policy version of a run; default: the newest.")] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Number of held-out tasks; default: the config's.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Evaluate versions as a run publishes them.")] = False,
    suite: Annotated[
        str | None,
        typer.Option(help="Tasks to measure: a name that shoal suites lists, a TOML file, or an lm-eval YAML file."),
    ] = None,
    against: Annotated[Path | None, typer.Option(help="With --suite: a second model, to compare with.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="With --suite: answers per task.")] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="With --suite: longest answer, if the suite's is more than the model takes."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="With --suite: print JSON instead of a table.")] = False,
    device: Device = None,
) -> None:
    """Measure pass@1 on held-out tasks; with --suite also pass@k, average@k and the difference between two models."""
    from shoal.rundir import open_run

    if suite is not None:
        own = ("config", "settings", "version", "follow")
        refuse_flags(context, "eval --suite", own, "only eval of a run does, or of a model directory with --config")
        changes = {"tasks": tasks, "samples": samples, "max_new_tokens": max_new_tokens}
        _evaluate_suite(target, against, suite, changes, json_, device)
        return
    refuse_flags(context, f"eval {target}", ("against", "samples", "max_new_tokens", "json_"), "only eval --suite does")
    # Before torch: a typo is reported at once.
    if follow:
        own = ("config", "settings", "version", "tasks")
        refuse_flags(context, "eval --follow", own, "the run's own config says what is measured (eval.tasks)")
        run = open_run(target)
        run = replace(run, config=with_device(run.config, "eval", device))
        from shoal.roles.evaluator import start_evaluator

        start_evaluator(run)
    else:
        measured = _run_or_config(target, config, settings or [], device)
        from shoal.roles.evaluator import evaluate_target

        evaluate_target(target, measured, version, tasks, console)


@app.command(rich_help_panel=PANEL)
def suites(
    fetch: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Download the file of a suite; may be given several times.")
    ] = None,
) -> None:
    """List the suites of shoal eval and whether their questions are on this machine; with --fetch, download them."""
    from shoal.evals.suites_command import fetch_suites, print_suites

    if fetch:
        fetch_suites(fetch, console)
    else:
        print_suites(console)


@app.command(rich_help_panel=PANEL)
def calibrate(
    context: typer.Context,
    model: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL | RUN --answers FILES... | merge FILES...",
            help="A model directory, smollm2, tiny, or a config; or merge, and rates files to add up.",
        ),
    ],
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; default: the config's, or float32.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Config whose tasks give the prompts; default: random tokens.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write: audit.thresholds of a float32 run, rates of a bfloat16 run.")
    ] = None,
    samples: Annotated[int, typer.Option(min=16, help="Answers per comparison.")] = 256,
    answers: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILES...", help="Measure files that honest machines handed in to the run RUN instead."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="With --answers: how these machines compute; default: as each has declared.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="With --answers: folder of the versions, if RUN/weights no longer has them.")
    ] = None,
    device: Device = None,
) -> None:
    """Measure how far honest workers deviate: thresholds of a float32 run, honest rates of a bfloat16 run.

    From files of other machines: shoal calibrate RUN --answers RUN/coordinator/uploads/step-000012/*.parquet --out
    A.json. Rates of several machines add up: shoal calibrate merge A.json B.json --out C.json
    """
    target, *files = model
    measured = ("dtype", "config", "samples", "device")
    if answers:
        refuse_flags(context, "calibrate --answers", measured, "the run's own config and the files say it")
        from shoal.validate.calibrate.command import calibrate_answers

        calibrate_answers(Path(target), [*answers, *map(Path, files)], profile, weights, out, console)
        return
    refuse_flags(context, f"calibrate {target}", ("profile", "weights"), "only calibrate --answers does")
    if target == "merge":
        refuse_flags(context, "calibrate merge", measured, "it only adds up what was measured")
        from shoal.validate.calibrate.command import merge

        merge([Path(file) for file in files], out, console)
        return
    if files:
        raise ConfigError(f"calibrate {target}: takes one model, and {files[0]} is a second one; leave it out")
    check_dtype(dtype)
    wanted = check_device(device)
    from shoal.validate.calibrate.command import calibrate as measure_model

    measure_model(target, config, dtype, out, samples, console, wanted)


def _evaluate_suite(
    target: Path,
    against: Path | None,
    name: str,
    changes: dict[str, int | None],
    as_json: bool,
    device: str | None,
) -> None:
    from shoal.evals.suite_catalogue import find_suite

    suite = find_suite(name)
    suite = suite.model_copy(update={key: value for key, value in changes.items() if value is not None})
    models = [target] if against is None else [target, against]
    for number, model in enumerate(models):
        # A finished run has its model in a subdirectory.
        models[number] = model / "model" if (model / "model" / "config.json").is_file() else model
        if not (models[number] / "config.json").is_file():
            raise ConfigError(f"eval {model}: neither a model directory nor a finished run")
    wanted = check_device(device) or "auto"
    from shoal.devices import resolve
    from shoal.evals.suite import evaluate_suite

    evaluate_suite(models, suite, "float32", as_json, console, resolve(wanted, what="--device"))


def _check_model(model: Path) -> None:
    if not model.is_dir():
        raise ConfigError(f"--model {model}: no such directory; shoal model CONFIG makes one and prints its path")


def _run_or_config(target: Path, config: Path | None, settings: list[str], device: str | None) -> "RunDir | RunConfig":
    """What `shoal eval` measures: a run, or the config that goes with a model directory."""
    from shoal.config_io import load_config
    from shoal.rundir import RUN_FILE, open_run

    if not target.is_dir():
        raise ConfigError(f"eval {target}: no such directory; give a run directory, or a model directory and --config")
    if (target / RUN_FILE).is_file():
        if config or settings:
            raise ConfigError(f"eval {target}: --config and --set go with a model directory; a run has its own config")
        run = open_run(target)
        return replace(run, config=with_device(run.config, "eval", device))
    if config is None:
        raise ConfigError(f"eval {target}: not a run directory; for a model directory give --config with its tasks")
    return with_device(load_config(config, settings), "eval", device)
