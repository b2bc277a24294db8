"""`shoal calibrate`: measures with progress, prints a table, writes thresholds (float32) or a rates file (bfloat16)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from shoal.config import DeviceName
from shoal.devices import resolve as resolve_device
from shoal.errors import ConfigError
from shoal.files import write_whole
from shoal.models.base import ensure_base_model
from shoal.models.load import load
from shoal.protocol.rates.rates_file import RatesFile, merge_files, read_architecture
from shoal.rundir import open_run
from shoal.validate.calibrate.answers import Answers
from shoal.validate.calibrate.rates import OWN, measure_rates
from shoal.validate.calibrate.tally import Tally, print_tallies, to_rates_file
from shoal.validate.calibrate.target import make_requests, resolve
from shoal.validate.calibrate.thresholds import Measured, measure, print_differences, to_toml
from shoal.validate.numerics.bets import Noise
from shoal.validate.numerics.calibration import Say
from shoal.validate.numerics.judge import VOID_NATS


def calibrate(
    model: str,
    config: Path | None,
    dtype: str | None,
    out: Path | None,
    samples: int,
    console: Console,
    device: DeviceName | None = None,
) -> None:
    """Measures how far honest machines are off, prints it, and writes what a run takes of it to `out`.

    `device` is what the engine that is measured computes on; default: what workers of the config do.
    """
    resolved, with_tasks = resolve(model, config, dtype)
    errors = Console(stderr=True)
    directory = ensure_base_model(resolved, errors)
    place = resolve_device(device or resolved.device_of("workers"))
    with progress(errors) as say:
        policy = load(directory, device=place)
        requests = make_requests(policy, resolved, samples, with_tasks)
        if resolved.model.dtype == "bfloat16":
            tallies, noise = measure_rates(directory, resolved, requests, say, place)
        else:
            found = measure(policy, directory, resolved, requests, say)
    if resolved.model.dtype == "bfloat16":
        _give_rates(tallies, noise, to_rates_file(tallies, model, read_architecture(directory)), out, console)
    else:
        _give_thresholds(found, to_toml(model, found), out, console)


def _give_thresholds(found: Measured, text: str, out: Path | None, console: Console) -> None:
    print_differences(found, console)
    console.print(f"\n{text}", markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        write_whole(out, text.encode())
        _say_written(out, console)


def _give_rates(
    tallies: Mapping[str, Tally], noise: Noise, rates: RatesFile, out: Path | None, console: Console
) -> None:
    print_tallies(tallies, console)
    console.print(
        f"the judge's own noise ({OWN}): log-prob gaps of {noise.gap:.3g} per unit of spread, mantissas "
        f"{noise.mantissa:.3g} in the last place",
        highlight=False,
        soft_wrap=True,
    )
    if out is not None:
        rates.write(out)
        _say_written(out, console)


def calibrate_answers(
    target: Path,
    files: Sequence[Path],
    profile: str | None,
    weights: Path | None,
    out: Path | None,
    console: Console,
) -> None:
    """`shoal calibrate RUN --answers FILES`: rates of the machines that made these files."""
    answers = Answers(open_run(target), profile, weights)
    with progress(Console(stderr=True)) as say:
        answers.add(files, say)
    print_tallies(answers.tallies, console)
    worst = max(answers.nats, key=lambda name: answers.nats[name])
    console.print(
        f"{len(files)} files; the run's odds have at most {answers.nats[worst]:.1f} nats against one ({worst})",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if answers.nats[worst] >= VOID_NATS:
        console.print(
            f"a file with {VOID_NATS:.1f} nats or more is dropped; are its machine's weights, temperature and engine "
            "what you think?",
            style="bold red",
            highlight=False,
            soft_wrap=True,
        )
    if out is not None:
        rates = to_rates_file(
            answers.tallies, answers.run.config.model.source, read_architecture(answers.run.base_model)
        )
        rates.write(out)
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
