"""`shoal calibrate`: measures with progress, prints a table, writes thresholds (float32) or a rates file (bfloat16)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from shoal.config import RunConfig
from shoal.errors import ConfigError
from shoal.files import write_whole
from shoal.generate.engine import Request
from shoal.models.base import ensure_base_model
from shoal.models.load import load
from shoal.protocol.rates.rates_file import RatesFile, merge_files
from shoal.validate.calibrate.rates import measure_rates, print_rates
from shoal.validate.calibrate.target import architecture_of, make_requests, resolve
from shoal.validate.calibrate.thresholds import measure, print_differences, to_toml

Say = Callable[[float, str], None]


def calibrate(
    model: str, config: Path | None, dtype: str | None, out: Path | None, samples: int, console: Console
) -> None:
    """Measures how far honest machines are off, prints it, and writes what a run takes of it to `out`."""
    resolved, with_tasks = resolve(model, config, dtype)
    errors = Console(stderr=True)
    directory = ensure_base_model(resolved, errors)
    with progress(errors) as say:
        requests = make_requests(load(directory), resolved, samples, with_tasks)
        if resolved.model.dtype == "bfloat16":
            _rates(model, directory, resolved, requests, out, say, console)
        else:
            _thresholds(model, directory, resolved, requests, out, say, console)


def _thresholds(
    model: str,
    directory: Path,
    config: RunConfig,
    requests: Sequence[Request],
    out: Path | None,
    say: Say,
    console: Console,
) -> None:
    found = measure(load(directory), directory, config, requests, say)
    print_differences(found, console)
    text = to_toml(model, found)
    console.print(f"\n{text}", markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        write_whole(out, text.encode())
        _say_written(out, console)


def _rates(
    model: str,
    directory: Path,
    config: RunConfig,
    requests: Sequence[Request],
    out: Path | None,
    say: Say,
    console: Console,
) -> None:
    found = measure_rates(directory, config, requests, say)
    print_rates(found, console)
    if out is not None:
        found.to_file(model, architecture_of(directory)).write(out)
        _say_written(out, console)


def merge(files: Sequence[Path], out: Path | None, console: Console) -> None:
    """`shoal calibrate merge`: the sum of rates files of one model."""
    if len(files) < 2 or out is None:
        raise ConfigError("calibrate merge: give two or more rates files and --out FILE for their sum")
    total = merge_files(list(files))
    total.write(out)
    console.print(summary(total), markup=False, highlight=False, soft_wrap=True)
    _say_written(out, console)


def summary(rates: RatesFile) -> str:
    return (
        f"{rates.model}: {rates.architecture}; {len(rates.tokens)} ways and profiles, "
        f"{sum(rates.tokens.values()):,} tokens"
    )


def _say_written(out: Path, console: Console) -> None:
    console.print(f"written to {out}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress(errors: Console) -> Iterator[Say]:
    """A bar on a terminal; elsewhere a line whenever something else begins."""
    columns = (BarColumn(), TextColumn("{task.percentage:3.0f} %  {task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("loading the model", total=1.0)
        said = [""]

        def say(share: float, what: str) -> None:
            bar.update(task, completed=share, description=what)
            if not errors.is_terminal and what.startswith(("generating", "computing")) and what != said[0]:
                errors.print(f"{share:4.0%} {what}", highlight=False)
                said[0] = what

        yield say
