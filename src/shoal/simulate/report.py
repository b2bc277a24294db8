"""What a simulation found: times as the paper gives them, how busy everybody was, and what limits the run."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from math import inf, isfinite
from statistics import fmean, median

from rich.console import Console
from rich.table import Table

from shoal.limits import show_size
from shoal.simulate.inputs import Inputs
from shoal.simulate.log import Log, Totals, VersionTimes
from shoal.simulate.simulation import Simulation
from shoal.telemetry.status import seconds

# From this share of its time on, a part counts as the one that the others wait for.
BUSY = 0.9
# The first steps of a run are unlike the others: all machines are newcomers.
SETTLED = 0.5


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of the second half of the steps that were trained, from the end of the step before them to the end of the
    last one. What is counted per step is a mean, so that training and waiting add up to a step. Times of verdicts are
    medians, and so are those of versions, over the second half of the versions whose steps are over. A version that
    never reached half or all of the machines counts as infinitely late."""

    name: str
    nodes: int
    steps: int
    """That were trained, in the whole run."""
    step_s: float
    training_s: float
    waiting_s: float
    """For which the trainer had nothing to do, per step."""
    broadcast_half_s: float
    broadcast_s: float
    """From the moment at which a version is out until all machines have it. Machines that find a newer version when
    they look for one skip those between."""
    first_file_s: float
    """From there to the first file that was made with it; below 0 if a machine was done before another had it."""
    full_batch_s: float
    """From there until files made with it held a step's groups."""
    verdict_s: float
    """From a file's arrival."""
    staleness: float
    """Steps between version and training, mean over the groups that were trained on."""
    trainer_busy: float
    workers_busy: float
    validators_busy: float
    relays_busy: float
    coordinator_busy: float
    """Of its link's outgoing direction, the busier one: a file comes in once and goes out to a validator and to the
    trainer."""
    requests_busy: float
    """Requests to the coordinator over what it answers, heartbeats included."""
    tokens_lost: float
    """Share of generated tokens whose file came too late for its step, or whose machine was gone before it was sent.
    Groups without signal, which the online filter takes out, are not among them."""
    leases_expired: float
    """Share of leases."""
    files_waiting: float
    """Before the validators when a step begins to train."""
    step_bytes: float
    """That all relays send per step."""
    simulated_s: float
    """Of the whole run, as what follows."""
    wall_s: float
    events: int
    limit: str
    """What limits the simulated run, in a sentence."""
    warning: str
    """What would hold up a real run and holds up nothing here: a coordinator that is asked more than it answers. Empty
    if there is nothing."""

    def to_json(self) -> str:
        values = asdict(self).items()
        return json.dumps({name: None if value == inf else value for name, value in values}, allow_nan=False)


def report_of(simulation: Simulation, wall_s: float) -> Report:
    inputs, log = simulation.inputs, simulation.log
    done = len(log.totals)
    first = int(done * SETTLED)
    begin = log.totals[first - 1] if first else Totals()
    end = log.totals[-1] if done else simulation.totals()
    window = end.since(begin)
    steps = [log.steps[step] for step in range(first, done)]
    versions = _settled_versions(log, done, inputs.terms.async_level)
    busy = _busy(inputs, window)
    groups = sum(step.groups for step in steps)
    step_s = window.at / len(steps) if steps else inf
    training_s = window.trained_s / len(steps) if steps else inf
    half_s = _median(_time(version.published, version.half) for version in versions)
    return Report(
        name=inputs.name,
        nodes=inputs.machines.count,
        steps=done,
        step_s=step_s,
        training_s=training_s,
        waiting_s=max(0.0, step_s - training_s) if steps else inf,
        broadcast_half_s=half_s,
        broadcast_s=_median(_time(version.published, version.everywhere) for version in versions),
        first_file_s=_median(_time(version.everywhere, version.first_file) for version in versions),
        full_batch_s=_median(_time(version.everywhere, version.full_batch) for version in versions),
        verdict_s=_median(simulation.validators.waited_s[begin.verdicts : end.verdicts]),
        staleness=sum(step.staleness for step in steps) / groups if groups else inf,
        trainer_busy=busy["trainer"],
        workers_busy=busy["workers"],
        validators_busy=busy["validators"],
        relays_busy=busy["relays"],
        coordinator_busy=busy["coordinator"],
        requests_busy=busy["requests"],
        tokens_lost=window.tokens_lost / max(1.0, window.tokens),
        leases_expired=window.expired / max(1, window.granted),
        files_waiting=fmean(log.waiting_files[first:done]) if steps else inf,
        step_bytes=window.relayed / max(1, len(steps)),
        simulated_s=simulation.events.now,
        wall_s=wall_s,
        events=simulation.events.count,
        limit=_limit(inputs, busy, half_s, step_s, done),
        warning=_warning(busy["requests"]),
    )


def _settled_versions(log: Log, done: int, async_level: int) -> list[VersionTimes]:
    """The second half of the versions that no step may be trained with any more. What later ones have not reached, they
    may have missed only because the run ended."""
    over = max(1, done - async_level)
    return [log.versions[version] for version in range(int(over * SETTLED), over)]


def _busy(inputs: Inputs, window: Totals) -> dict[str, float]:
    """Shares of a window for which each part was at work."""
    machines, services = inputs.machines.count, inputs.services
    heartbeats = machines / inputs.terms.heartbeat_s * window.at
    return {
        "trainer": window.trained_s / window.at,
        "workers": window.worked_s / (window.at * machines),
        "validators": window.judged_s / (window.at * services.validators),
        "relays": window.relayed_s / (window.at * services.relays),
        "coordinator": 2 * window.uploaded / services.coordinator_rate / window.at,
        "requests": (window.requests + heartbeats) / window.at / services.coordinator_requests,
    }


def _limit(inputs: Inputs, busy: dict[str, float], half_s: float, step_s: float, done: int) -> str:
    """The part that is busiest, where one is; otherwise what the time between two steps is spent on."""
    if done < inputs.terms.steps:
        return f"the run stops after {done} of {inputs.terms.steps} steps: too few groups come in time"
    if busy["coordinator"] > BUSY:
        return "uploads fill the coordinator's link"
    if busy["trainer"] > BUSY:
        return "the trainer: it hardly waits"
    if busy["relays"] > BUSY:
        return "the relays' links: versions reach the machines too late"
    if busy["validators"] > BUSY:
        return "the validators: files wait for verdicts"
    if busy["workers"] > BUSY:
        return "the workers: they generate all the time"
    if half_s > step_s * inputs.terms.async_level:
        return "the way of a version: half of the machines get it when steps take it no more, or never"
    return "latency: version, generation, verdict and training one after the other"


def _warning(requests: float) -> str:
    if requests <= 1:
        return ""
    return f"the coordinator is asked {requests:.1f} times what it answers: nodes would count as silent"


def _time(begin: float, end: float) -> float:
    """Seconds between; infinite if one of both never came."""
    return end - begin if isfinite(begin) and isfinite(end) else inf


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return median(found) if found else inf


def print_report(report: Report, console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("second half of the steps")
    table.add_column("", justify="right")
    for name, text in _rows(report):
        table.add_row(name, text)
    console.print(table)
    console.print(f"what limits it: {report.limit}", highlight=False, soft_wrap=True)
    if report.warning:
        console.print(f"not simulated: {report.warning}", highlight=False, soft_wrap=True)
    console.print(
        f"{report.nodes:,} nodes, {report.steps} steps, {report.events:,} events: "
        f"{seconds(report.simulated_s)} simulated in {report.wall_s:.1f} s",
        highlight=False,
        soft_wrap=True,
    )


def _rows(report: Report) -> Iterable[tuple[str, str]]:
    rows: list[tuple[str, float, Callable[[float], str]]] = [
        ("step, mean", report.step_s, seconds),
        ("  of it training", report.training_s, seconds),
        ("broadcast, to half of the machines, median", report.broadcast_half_s, seconds),
        ("broadcast, to all machines, median", report.broadcast_s, seconds),
        ("first file after that, median", report.first_file_s, _signed),
        ("full batch after that, median", report.full_batch_s, _signed),
        ("verdict after a file's arrival, median", report.verdict_s, seconds),
        ("staleness, in steps, mean", report.staleness, lambda value: f"{value:.2f}"),
        ("relays send per step, mean", report.step_bytes, lambda value: show_size(int(value))),
    ]
    for name in ("trainer", "workers", "validators", "relays", "coordinator", "requests"):
        label = {"coordinator": "coordinator's link", "requests": "coordinator's requests"}.get(name, name)
        rows.append((f"busy: {label}", getattr(report, f"{name}_busy"), lambda value: f"{value:.1%}"))
    rows.append(("tokens too late or lost", report.tokens_lost, lambda value: f"{value:.1%}"))
    rows.append(("leases that expired", report.leases_expired, lambda value: f"{value:.1%}"))
    return [(name, "never" if value == inf else show(value)) for name, value, show in rows]


def _signed(value: float) -> str:
    return f"-{seconds(-value)}" if value < 0 else seconds(value)
