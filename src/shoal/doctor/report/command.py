"""`shoal doctor --report FILE`: runs every step on the devices that are here, with progress, and writes the report."""

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from shoal import __version__
from shoal.config import DeviceName, RunConfig
from shoal.config_io import check_config
from shoal.devices import hardware, memory, resolve, torch_build
from shoal.doctor.probe import VLLM_PACKAGES, driver
from shoal.doctor.report.plan import STEPS, Step
from shoal.doctor.report.report_file import Machine, Report, StepResult
from shoal.doctor.report.runner import Job, run_steps
from shoal.errors import ConfigError
from shoal.files import check_writable
from shoal.models.base import ensure_base_model
from shoal.protocol.rates.rates_file import read_architecture

STYLE = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def report_config(model: str, *, small: bool) -> RunConfig:
    """The run that the steps take their model, lengths and batches from; `small` for a CPU."""
    tasks = [{"source": "reasoning-gym/spell_backward"}]
    tiny: dict[str, Any] = {"warm_steps": 0, "hidden": 128 if small else 1024, "layers": 4 if small else 16}
    sampling = {"group_size": 4, "max_new_tokens": 40 if small else 256, "max_prompt_tokens": 32 if small else 256}
    train = {"groups_per_step": 4, "token_budget": 512 if small else 8192}
    workers = {"max_batch": 16 if small else 64, "groups_per_submission": 4}
    tree = {
        "name": "report",
        "steps": 1,
        "tasks": tasks,
        "model": {"source": model, "tiny": tiny},
        "sampling": sampling,
        "train": train,
        "workers": workers,
    }
    return check_config(tree, "report")


def chosen(only: Sequence[str]) -> list[Step]:
    """The steps of these names, or all of them; a ConfigError for a name that is unknown."""
    known = {step.name: step for step in STEPS}
    if unknown := [name for name in only if name not in known]:
        raise ConfigError(f"--only {unknown[0]}: unknown step; give some of {', '.join(known)}")
    return [step for step in STEPS if not only or step.name in only]


def make_report(
    out: Path, model: str, wanted: DeviceName, only: Sequence[str], log: Path | None, console: Console
) -> Report:
    """Runs the steps, says how each went, and writes the file after each one: what was measured is never lost."""
    steps = chosen(only)
    for file in filter(None, (out, log)):
        check_writable(file)  # a step takes minutes
    device = resolve(wanted, what="--device")
    config = report_config(model, small=device.type == "cpu")
    directory = ensure_base_model(config, console)
    machine = this_machine(device.type)
    console.print(
        f"{', '.join(machine.devices)}; {len(steps)} steps, the file is {out}", highlight=False, soft_wrap=True
    )
    results: list[StepResult] = []
    rates = None
    report = None
    job = Job(config, directory, device.type, log)
    for number, step in enumerate(steps, 1):
        console.print(f"[{number}/{len(steps)}] {step.name}: {step.shows} ...", markup=False, highlight=False)
        ran = next(run_steps([step], job))
        rates = ran.rates or rates
        results.append(ran.result)
        _say(ran.result, console)
        report = Report(
            shoal=__version__,
            model=str(read_architecture(directory)),
            machine=machine,
            steps=list(results),
            rates=rates,
        )
        report.write(out)
    assert report is not None
    return report


def _say(result: StepResult, console: Console) -> None:
    figures = ", ".join(f"{name} {_short(value)}" for name, value in result.values.items())
    line = f"      {result.status} in {result.seconds:.1f} s: {result.reason or figures}"
    console.print(line, style=STYLE[result.status], markup=False, highlight=False, soft_wrap=True)


def _short(value: float | int | str | bool) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def this_machine(kind: str) -> Machine:
    """What the report says of this machine: nothing that tells whose it is."""
    build, found = torch_build(), driver()
    device = resolve("cpu") if kind == "cpu" else resolve("auto")
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        memory=memory(resolve("cpu")).total,
        devices=[gpu.name for gpu in build.gpus] if kind != "cpu" and build.gpus else [hardware(device)],
        device=kind,
        driver=found.version if found is not None else "",
        cuda=build.cuda or "",
        torch=build.version,
        vllm=_version(*VLLM_PACKAGES),
        triton=_version("triton"),
        transformers=_version("transformers"),
        python=platform.python_version(),
    )


def _version(*packages: str) -> str:
    for package in packages:
        try:
            return f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue
    return ""
