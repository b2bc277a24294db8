"""Help panel "Look", continued: talk to what a run has trained, over HTTP or at the terminal."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import typer

from shoal.cli.app import app, console, errors
from shoal.cli.look import PANEL
from shoal.cli.options import Device, Run, takes_options, with_device
from shoal.errors import ConfigError
from shoal.extras import require

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.config import EngineName
    from shoal.roles.model_server import ServeOptions
    from shoal.rundir import RunDir

API_KEY = "SHOAL_API_KEY"


@dataclass(frozen=True)
class ModelFlags:
    """Which version answers, and on what."""

    version: Annotated[int | None, typer.Option(min=0, help="Only this version; default: the newest, as it comes.")] = (
        None
    )
    engine: Annotated[str, typer.Option(help="What generates: auto, torch or vllm.")] = "auto"
    device: Device = None
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: the run's.")] = None
    context: Annotated[
        int | None, typer.Option(min=2, help="Longest prompt and answer in tokens; default: 2048, if the model can.")
    ] = None


@app.command(rich_help_panel=PANEL)
@takes_options
def serve(
    run: Run,
    model: ModelFlags,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    public: Annotated[
        bool, typer.Option("--public", help=f"Serve other machines too; clients send the key in {API_KEY}.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="Answers generated at once.")] = 16,
    queue: Annotated[int, typer.Option(min=1, help="Answers that may run or wait; more are refused with 429.")] = 256,
) -> None:
    """Serve a run's versions through an OpenAI-compatible API: one that goes on, has ended or was copied here."""
    require("coordinator", "shoal serve")
    located, options = _located(run, model, batch, queue)
    from shoal.roles.model_server import ListenOptions, serve_run

    serve_run(located, options, ListenOptions(host, port, public, os.environ.get(API_KEY) or None), console)


@app.command(rich_help_panel=PANEL)
@takes_options
def chat(
    run: Run,
    model: ModelFlags,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0 takes the likeliest tokens.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0.001, max=1.0, help="Probability of the tokens to draw from.")] = 1.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer; default: what fits.")] = None,
    system: Annotated[str, typer.Option(help="A system message, for models with a chat template.")] = "",
    seed: Annotated[int | None, typer.Option(min=0, help="The same answers each time.")] = None,
) -> None:
    """Talk to a run's newest version at this terminal; /help lists what you can type."""
    located, options = _located(run, model, 1, 1)
    from shoal.generate.decoding import Decoding
    from shoal.roles.model_server import chat_with
    from shoal.serve.requests import MIN_TEMPERATURE

    decoding = Decoding(temperature if temperature >= MIN_TEMPERATURE else 0.0, top_p)
    chat_with(located, options, decoding, console, max_tokens=max_tokens, system=system, seed=seed)


def _located(run: "Path", model: ModelFlags, batch: int, queue: int) -> "tuple[RunDir, ServeOptions]":
    from typing import get_args

    from shoal.config import EngineName as Engines
    from shoal.rundir import RunDir, open_run

    if model.engine not in get_args(Engines) or model.engine == "vllm-server":
        raise ConfigError(f"--engine {model.engine}: give auto, torch or vllm")
    config = with_device(open_run(run).config, "workers", model.device)
    errors.print(f"loading a version of {run}", style="dim", markup=False, highlight=False)
    if model.threads is not None:
        config = config.model_copy(update={"workers": config.workers.model_copy(update={"threads": model.threads})})
    from shoal.roles.model_server import ServeOptions

    engine = cast("EngineName", model.engine)
    return RunDir(run, config), ServeOptions(model.version, engine, model.context, batch, queue)
