"""What the flags of a role mean: which run it works for, where it joins and as whom, and what the machine is like."""

import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import get_args

from rich.console import Console

from shoal.cli.options import ConfigFlags, JoinFlags, check_dtype, with_device
from shoal.client.identity import default_key
from shoal.config import AuditConfig, DeviceTable, EngineName
from shoal.config_io import check_config
from shoal.errors import ConfigError
from shoal.roles.session import JoinOptions, join_run
from shoal.rundir import RunDir, locate_run
from shoal.text import one_line

JOIN_S = 60.0
NO_CHANGES = ConfigFlags()
SERVER = "vllm-server"


def lend(
    role: str,
    target: Path | None,
    flags: JoinFlags,
    console: Console,
    changes: ConfigFlags = NO_CHANGES,
    code: bool | None = None,
) -> tuple[RunDir, JoinOptions]:
    """A role's run directory and how it reaches the other roles: in a run on this machine, or in one that it joins."""

    def say(text: str) -> None:
        console.print(f"{time.strftime('%H:%M:%S')}  {one_line(text)}", markup=False, highlight=False, soft_wrap=True)

    relays = flags.relays or []
    if flags.join is None:
        raise ConfigError(
            f"{role}: needs the run's coordinator; give --join URL, which shoal run and shoal coordinator print"
        )
    if target is not None:
        if flags.home is not None:
            raise ConfigError(f"{role}: --home goes only with --join; {target} is a run with a directory of its own")
        run = locate_run(target, changes.settings or [], changes.out, console)
        return run, JoinOptions(flags.join, flags.key, relays, say)
    if changes.settings or changes.out:
        raise ConfigError(f"{role}: --set and --out go with a config file; a run that is joined has its own config")
    own = flags.key or default_key(role)
    joined = join_run(flags.join, own, flags.home, JOIN_S, say, code)
    return as_own_machine(joined), JoinOptions(flags.join, own, relays, say)


def as_own_machine(joined: RunDir) -> RunDir:
    """A joined run's config without what its card tells of the owner's machines: this one has devices, memory and
    engines of its own, and nothing is ever sent to a server that a stranger's card names."""
    workers = joined.config.workers.model_copy(update={"server": "", "engines": [], "kv_cache_gb": None})
    audit = joined.config.audit.model_copy(update={"engine": "auto"})
    joined = replace(joined, config=joined.config.model_copy(update={"workers": workers, "audit": audit}))
    return on_device(on_device(machine(joined, None, None, None, "auto", 1), "workers", "auto"), "audit", "auto")


def machine(
    run: RunDir,
    batch: int | None,
    threads: int | None,
    dtype: str | None,
    engine: str | None = None,
    devices: int | None = None,
    server: str | None = None,
    kv_cache_gb: float | None = None,
) -> RunDir:
    """The run's config with what differs on this machine."""
    if server is not None:
        if engine not in (None, SERVER):
            raise ConfigError(f"--engine {engine}: --server {server} is an engine of its own; leave one of them out")
        check = run.config.model_dump(mode="json")
        check["workers"] |= {"server": server, "engine": SERVER, "engines": []}
        run = replace(run, config=check_config(check, "--server"))
    check_dtype(dtype)
    if dtype == "bfloat16" and run.config.model.dtype == "float32":
        raise ConfigError(
            f"--dtype {dtype}: honest workers would be rejected, for the run computes in float32, whose thresholds no "
            "bfloat16 keeps; leave it out"
        )
    _check_engine(engine, get_args(EngineName))
    if engine == SERVER and not run.config.workers.server:
        raise ConfigError(f"--engine {engine}: this machine's server is not known; give --server URL")
    own = {
        "max_batch": batch,
        "threads": threads,
        "dtype": dtype,
        "engine": engine,
        "tensor_parallel": devices,
        "kv_cache_gb": kv_cache_gb,
    }
    workers = run.config.workers.model_copy(update={name: value for name, value in own.items() if value is not None})
    return replace(run, config=run.config.model_copy(update={"workers": workers}))


def judging(run: RunDir, engine: str | None) -> RunDir:
    """The run's config with what computes a validator's states on this machine, unless that is None."""
    if engine is None:
        return run
    _check_engine(engine, get_args(AuditConfig.model_fields["engine"].annotation))
    audit = run.config.audit.model_copy(update={"engine": engine})
    return replace(run, config=run.config.model_copy(update={"audit": audit}))


def _check_engine(engine: str | None, known: Collection[str]) -> None:
    if engine is not None and engine not in known:
        raise ConfigError(f"--engine {engine}: unknown; give one of {', '.join(known)}")


def on_device(run: RunDir, role: DeviceTable, device: str | None) -> RunDir:
    """The run's config with what a role computes on here, unless that is None."""
    return replace(run, config=with_device(run.config, role, device))
