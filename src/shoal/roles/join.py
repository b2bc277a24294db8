"""What a person says who lends a machine: where to join, as whom, and what the machine is like."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from shoal.client.identity import default_key
from shoal.errors import ConfigError
from shoal.roles.session import Reach, join_run
from shoal.rundir import RunDir, locate_run
from shoal.text import one_line

JOIN_S = 60.0


def lend(
    role: str,
    target: Path | None,
    join: str | None,
    key: Path | None,
    home: Path | None,
    relays: Sequence[str],
    settings: list[str],
    out: Path | None,
    console: Console,
    code: bool | None = None,
) -> tuple[RunDir, Reach]:
    """A role's directory and how it reaches the others: of a run on this machine, or of one that it joins."""

    def say(text: str) -> None:
        console.print(f"{time.strftime('%H:%M:%S')}  {one_line(text)}", markup=False, highlight=False, soft_wrap=True)

    if join is None:
        raise ConfigError(
            f"{role}: needs the run's coordinator; give --join URL, which shoal run and shoal coordinator print"
        )
    if target is not None:
        if home is not None:
            raise ConfigError(f"{role}: --home goes with --join alone; {target} is a run with a directory of its own")
        return locate_run(target, settings, out, console), Reach(join, key, relays, say)
    if settings or out:
        raise ConfigError(f"{role}: --set and --out go with a config file; a run that is joined has its own config")
    own = key or default_key(role)
    return join_run(join, own, home, JOIN_S, say, code), Reach(join, own, relays, say)


def machine(run: RunDir, batch: int | None, threads: int | None, dtype: str | None) -> RunDir:
    """The run as a machine that is not like the others sees it."""
    if dtype not in (None, "float32", "bfloat16"):
        raise ConfigError(f"--dtype {dtype}: give float32 or bfloat16")
    own = {"max_batch": batch, "threads": threads}
    workers = run.config.workers.model_copy(update={name: value for name, value in own.items() if value is not None})
    model = run.config.model.model_copy(update={"dtype": dtype} if dtype else {})
    config = run.config.model_copy(update={"workers": workers, "model": model})
    try:
        config.check_dtype(f"--dtype {config.model.dtype}")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return replace(run, config=config)
