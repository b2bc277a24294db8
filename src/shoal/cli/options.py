"""Options objects: a command takes a dataclass of flags as one parameter, and typer sees each field as a flag.

    @app.command()
    @takes_options
    def worker(run: MaybeTarget = None, *, joining: JoinFlags) -> None: ...

Flags that several commands share are declared here once, with their help.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Annotated

import typer

from shoal.errors import ConfigError

if typing.TYPE_CHECKING:
    from shoal.config import DeviceName, DeviceTable, RunConfig
    from shoal.limits import MachineLimits

Target = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or the config file of a run.")]
MaybeTarget = Annotated[
    Path | None, typer.Argument(metavar="[RUN]", help="A run directory, or the config file of a run.")
]
Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file that describes the run.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
MaybeRun = Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run directory.")]
AskUrl = Annotated[
    str | None, typer.Option("--join", metavar="URL", help="A coordinator to ask, instead of a run directory.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting, as in --set train.lr=1e-4."),
]
Join = Annotated[
    str | None,
    typer.Option("--join", metavar="URL", help="The run's coordinator. URL#0xADDRESS accepts only that coordinator."),
]
NodeKey = Annotated[
    Path | None, typer.Option("--key", help="Key file that signs this node's requests; created if missing.")
]
Home = Annotated[
    Path | None, typer.Option(help="Where a machine that joins keeps its files; default: your state directory.")
]


Device = Annotated[
    str | None,
    typer.Option("--device", help="Compute on auto, cpu, cuda or mps; default: the config's, or auto."),
]


@dataclasses.dataclass(frozen=True)
class ConfigFlags:
    """Changes to a config file, and where its run is stored."""

    settings: Settings = None
    out: Annotated[Path | None, typer.Option(help="Directory of the run; default: runs/NAME.")] = None


@dataclasses.dataclass(frozen=True)
class JoinFlags:
    """How a machine joins a run: where, as which node, and where it fetches weights."""

    join: Join = None
    key: NodeKey = None
    home: Home = None
    relays: Annotated[
        list[str] | None,
        typer.Option("--relay", metavar="URL", help="Fetch weights from this relay instead of the run's; repeatable."),
    ] = None


@dataclasses.dataclass(frozen=True)
class LimitFlags:
    """What a worker may use of this machine."""

    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads, and CPUs if there are as many; default: the run's.")
    ] = None
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory, such as 8G or 1.5GiB; default: no limit.")
    ] = None
    disk: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Disk for versions and files; default: two versions.")
    ] = None
    upload: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Bytes sent per second, such as 500k or 4Mbit; default: no limit."),
    ] = None
    download: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes received per second; default: no limit.")
    ] = None
    gpu_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of the CUDA device, such as 6G; default: no limit.")
    ] = None

    def limits(self) -> "MachineLimits":
        from shoal.limits import MachineLimits, parse_size

        sizes = {name: getattr(self, name) for name in ("memory", "disk", "upload", "download", "gpu_memory")}
        read = {
            name: parse_size(text, f"--{name.replace('_', '-')}") for name, text in sizes.items() if text is not None
        }
        return MachineLimits(threads=self.threads, **read)


@dataclasses.dataclass(frozen=True)
class ListenFlags:
    """Where a server of weights listens, and what others call it."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    url: Annotated[str | None, typer.Option(help="URL under which others reach this server, if it differs.")] = None
    tls: Annotated[
        bool | None,
        typer.Option(
            "--tls/--no-tls",
            help="Serve https. Default: yes, unless it listens on loopback only or --url begins with http:.",
        ),
    ] = None


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Spreads each parameter whose type is a dataclass into its fields, and collects them again for the call."""
    hints = typing.get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    spread: dict[str, type] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if dataclasses.is_dataclass(kind := hints[name]) and isinstance(kind, type):
            spread[name] = kind
            parameters += _fields(kind)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))

    @functools.wraps(command)
    def collected(**values: object) -> None:
        for name, kind in spread.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
        command(**values)

    collected.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    collected.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return collected


def _fields(kind: type) -> Iterator[inspect.Parameter]:
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
        )


def check_dtype(dtype: str | None) -> None:
    if dtype not in (None, "float32", "bfloat16"):
        raise ConfigError(f"--dtype {dtype}: give float32 or bfloat16")


def check_device(device: str | None) -> "DeviceName | None":
    from shoal.config import DeviceName

    for name in typing.get_args(DeviceName):
        if name == device:
            return typing.cast("DeviceName", name)
    if device is not None:
        raise ConfigError(f"--device {device}: give {', '.join(typing.get_args(DeviceName))}")
    return None


def with_device(config: "RunConfig", role: "DeviceTable", device: str | None) -> "RunConfig":
    """A config with what a role computes on here, unless that is None."""
    if (name := check_device(device)) is None:
        return config
    return config.model_copy(update={role: getattr(config, role).model_copy(update={"device": name})})


def refuse_flags(context: typer.Context, form: str, names: Collection[str], why: str) -> None:
    """Refuses flags that this form of a command does not take; a flag that has no effect would be a lie."""
    given = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            is_off = context.params[parameter.name] is False and parameter.secondary_opts
            given.append((parameter.secondary_opts if is_off else parameter.opts)[0])
    if given:
        raise ConfigError(f"{form} does not take {', '.join(given)}: {why}")
