"""`shoal simulate`: reads a config, simulates its run, prints or draws what came of it."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from shoal.config import RunConfig
from shoal.simulate.from_config import Chosen, check_chosen, find_model, inputs_of
from shoal.simulate.inputs import Inputs
from shoal.simulate.plot import plot_simulation
from shoal.simulate.report import Report, print_report, report_of
from shoal.simulate.simulation import Simulation

if TYPE_CHECKING:
    from shoal.plan.assumptions import Assumptions


def simulate(
    config: RunConfig,
    assumed: "Assumptions",
    chosen: Chosen,
    console: Console,
    *,
    json_: bool = False,
    plot: Path | None = None,
) -> Report:
    """One simulation, with progress on stderr."""
    check_chosen(chosen)
    inputs = inputs_of(config, assumed, chosen, find_model(config, chosen.model))
    simulation, report = simulated(inputs, Console(stderr=True))
    if plot is not None:
        plot_simulation(simulation, plot)
    if json_:
        console.out(report.to_json(), highlight=False)
        return report
    for line in sentences(inputs):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    print_report(report, console)
    return report


def simulated(inputs: Inputs, console: Console) -> tuple[Simulation, Report]:
    """Runs a simulation to its end, and says how far it is."""
    columns = (
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps, {task.fields[day]:.2f} days"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("simulating", total=inputs.terms.steps, day=0.0)
        simulation = Simulation(inputs, lambda step, now: bar.update(task, completed=step, day=now / 86_400))
        wall_s = simulation.run()
    return simulation, report_of(simulation, wall_s)


def sentences(inputs: Inputs) -> list[str]:
    """The inputs, for a reader."""
    machines, services, training, terms = inputs.machines, inputs.services, inputs.training, inputs.terms
    per_s = machines.places / (machines.pass_s + machines.places * machines.answer_s)
    return [
        f"{inputs.name}: {terms.groups_per_step} groups x {inputs.group_size} answers of {inputs.answer.mean:,.0f} "
        f"tokens, async level {terms.async_level}, {inputs.signal:.0%} of groups have signal",
        f"{machines.count:,} workers: {machines.places} answers side by side, {per_s:,.0f} tokens/s, "
        f"{_mbit(machines.download.mean)} down, {_mbit(machines.upload.mean)} up, {machines.churn:.0%} leave per hour",
        f"{services.relays} relays of {_mbit(services.relay_rate)}, {services.validators} validators; a version is "
        f"{training.version_bytes / 1e9:,.3g} GB, an update {training.update_bytes / 1e9:,.3g} GB",
    ]


def _mbit(rate: float) -> str:
    return f"{rate * 8 / 1e6:,.0f} Mb/s"
