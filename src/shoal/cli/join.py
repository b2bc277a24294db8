"""Help panel "Join": lend this machine to a run, and the key that is its identity there."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.app import app, console
from shoal.cli.options import ConfigFlags, Device, JoinFlags, LimitFlags, MaybeTarget, takes_options
from shoal.errors import ConfigError

PANEL = "Join"
AllowCode = Annotated[
    bool,
    typer.Option("--allow-code", help="Let the tasks of a joined run execute Python on this machine, unconfined."),
]


@app.command(rich_help_panel=PANEL)
@takes_options
def worker(
    joining: JoinFlags,
    changes: ConfigFlags,
    limiting: LimitFlags,
    run: MaybeTarget = None,
    allow_code: AllowCode = False,
    name: Annotated[str, typer.Option(help="This worker's name in tables and in the run's directory.")] = "worker",
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences generated at once; default: the run's.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Number format; float32 computes a bfloat16 run more exactly. Default: the run's."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="What generates: auto, torch or vllm. Default: the config's; auto on a machine that joins."),
    ] = None,
    tensor_parallel: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Devices that vLLM splits the model over. Default: the config's; 1 on a machine that joins.",
        ),
    ] = None,
    kv_cache_gb: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="GiB per device for vLLM's KV cache. Default: the config's; on a machine that joins, what is free on "
            "a CUDA device and 1 on a CPU.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="How this machine computes, if it is not as it looks: hardware/engine/attention/dtype/tpN."),
    ] = None,
    device: Device = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Generate with this stock vLLM server, in a run without proofs."),
    ] = None,
    attack: Annotated[str | None, typer.Option(help="Cheat in this way, for tests; shoal attacks lists them.")] = None,
) -> None:
    """Generate rollouts with the newest policy version, in this process.

    To lend this machine to a run: shoal worker --join URL. Everything else comes from the run card, but for what
    describes the owner's machines: --device, --engine, --tensor-parallel, --kv-cache-gb and --server are this one's.
    With pauses, hours and a supervisor that keeps the limits: shoal lend start URL.
    """
    from shoal.bandwidth import limit_line
    from shoal.cli.lend import lend, machine, on_device

    limits = limiting.limits()
    limit_line(limits.download, limits.upload)  # before the first request: joining may fetch gigabytes of task files
    located, options = lend("worker", run, joining, console, changes, allow_code)
    options = replace(options, limits=limits)
    machined = machine(located, batch, limits.threads, dtype, engine, tensor_parallel, server, kv_cache_gb)
    located = on_device(machined, "workers", device)
    if profile is not None:
        from shoal.protocol.profile import Profile

        options = replace(options, profile=Profile.parse(profile).name)
    from shoal.roles.finish_signal import came_early

    if came_early():  # before an engine is imported and a model loaded, of which nothing would be used
        options.say("told to finish before it had begun")
        return
    from shoal.roles.worker import start_worker

    start_worker(located, name, options, attack)


@app.command(rich_help_panel=PANEL)
@takes_options
def validator(
    joining: JoinFlags,
    changes: ConfigFlags,
    run: MaybeTarget = None,
    allow_code: AllowCode = False,
    name: Annotated[
        str, typer.Option(help="This validator's name in tables and in the run's directory, if there are several.")
    ] = "validator",
    engine: Annotated[
        str | None,
        typer.Option(
            help="What computes states: auto, torch or vllm. Default: the config's; auto on a machine that joins."
        ),
    ] = None,
    device: Device = None,
) -> None:
    """Check rollouts before the trainer may use them, in this process.

    With --join, any machine can validate once the run's owner has added its address (shoal identity show) to
    swarm.validators.
    """
    from shoal.cli.lend import judging, lend, on_device

    located, options = lend("validator", run, joining, console, changes, allow_code)
    located = on_device(judging(located, engine), "audit", device)
    from shoal.roles.validator_process import start_validator

    start_validator(located, options, name)


identity = typer.Typer(help="This machine's key, which is its identity in every run, and the coordinators it trusts.")
app.add_typer(identity, name="identity", no_args_is_help=True, rich_help_panel=PANEL)
OwnKey = Annotated[
    Path | None, typer.Option("--key", help="The key file; default: shoal/node.key in your config directory.")
]


@identity.command("show")
def identity_show(key: OwnKey = None) -> None:
    """Print this machine's address; the key is created at first use."""
    from shoal.client.identity import default_key, show

    show(key or default_key(), console)


@identity.command("export")
def identity_export(
    key: OwnKey = None, to: Annotated[Path | None, typer.Option(help="File to write; default: print it.")] = None
) -> None:
    """Print or save the private key, as a backup or for another machine. Anyone who has it can act as this node."""
    from shoal.client.identity import default_key, export

    export(key or default_key(), to, console)


@identity.command("import")
def identity_import(
    source: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="File with the private key; default: standard input.")
    ] = None,
    key: OwnKey = None,
    replace: Annotated[bool, typer.Option("--replace", help="Rename an existing key and use the new one.")] = False,
) -> None:
    """Use an existing private key as this machine's key."""
    from shoal.client.identity import bring_in, default_key

    try:
        text = source.read_text() if source else sys.stdin.read(200)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"identity import {source}: cannot be read ({error}); give a file with a key") from error
    bring_in(key or default_key(), text, replace, console)


@identity.command("forget")
def identity_forget(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL whose remembered coordinator to forget.")],
) -> None:
    """Forget which coordinator was seen at a URL, after the run's owner has confirmed that it changed."""
    from shoal.client.identity import forget_coordinator

    forget_coordinator(url, console)
