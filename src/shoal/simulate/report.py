"""What a simulation found: times as the paper gives them, how busy everybody was, and what limits the run."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from math import inf, isfinite, nan
from statistics import median

from rich.console import Console
from rich.table import Table

from shoal.coordinator.latencies import percentile
from shoal.limits import show_size
from shoal.simulate.inputs import Inputs
from shoal.simulate.simulation import Simulation
from shoal.telemetry.status import seconds

# From this share of its time on, a part counts as the one that the others wait for.
BUSY = 0.9
# The first steps of a run are unlike the others: all machines are newcomers.
SETTLED = 0.5


@dataclass(frozen=True, slots=True)
class Report:
    """Medians over the second half of the steps; NaN for what did not happen in them."""

    name: str
    nodes: int
    steps: int
    """That were trained."""
    step_s: float
    training_s: float
    waiting_s: float
    """For which the trainer had nothing to do, per step."""
    broadcast_half_s: float
    broadcast_s: float
    """From the end of a step until all machines have its version."""
    first_file_s: float
    """From there to the first file that was made with it; below 0 if a machine was done before another had it."""
    full_batch_s: float
    """From there until files made with it held a step's groups."""
    verdict_s: float
    staleness: float
    trainer_busy: float
    workers_busy: float
    validators_busy: float
    relays_busy: float
    coordinator_busy: float
    """Of its link, by uploads in and twice out."""
    requests_busy: float
    """Requests to the coordinator over what it answers, heartbeats included."""
    tokens_lost: float
    """Share of generated tokens that nobody trains on: their step was over, or their machine was gone."""
    leases_expired: float
    """Share of leases."""
    files_waiting: float
    """Before the validators when a step begins to train."""
    step_bytes: float
    """That all relays send per step."""
    simulated_s: float
    wall_s: float
    events: int
    limit: str
    """What limits the run, in a sentence."""

    def to_json(self) -> str:
        return json.dumps({name: None if value != value else value for name, value in asdict(self).items()})


def report_of(simulation: Simulation, wall_s: float) -> Report:
    inputs, log, now = simulation.inputs, simulation.log, simulation.events.now
    done = sorted(step for step, times in log.steps.items() if isfinite(times.ended))
    late = done[int(len(done) * SETTLED) :]
    steps = [log.steps[step] for step in late]
    ends = [log.steps[step].ended for step in done]
    versions = [log.versions[step] for step in late if step in log.versions]
    span = (ends[-1] - ends[len(done) - len(late) - 1] if len(done) > len(late) else now) if ends else now
    services, terms = inputs.services, inputs.terms
    heartbeats = (inputs.machines.count / terms.heartbeat_s) * now
    busy = {
        "trainer": simulation.trainer.busy_s / now,
        "workers": simulation.worked_s() / (now * inputs.machines.count),
        "validators": simulation.validators.busy_s / (now * services.validators),
        "relays": sum(link.busy_s for link in simulation.origin.links) / (now * services.relays),
        "coordinator": 2 * log.uploaded / services.coordinator_rate / now,
        "requests": (simulation.book.requests + heartbeats) / now / services.coordinator_requests,
    }
    lost = log.tokens_lost + simulation.validators.dropped_tokens + simulation.trainer.unused_tokens
    half = _median(v.half - v.published for v in versions)
    training = _median(s.ended - s.began for s in steps)
    step_s = span / max(1, len(late))
    return Report(
        name=inputs.name,
        nodes=inputs.machines.count,
        steps=len(done),
        step_s=step_s,
        training_s=training,
        waiting_s=max(0.0, step_s - training),
        broadcast_half_s=half,
        broadcast_s=_median(v.everywhere - v.published for v in versions),
        first_file_s=_median(v.first_file - v.everywhere for v in versions),
        full_batch_s=_median(v.full_batch - v.everywhere for v in versions),
        verdict_s=percentile(simulation.validators.waited_s, 0.5) or nan,
        staleness=_median(s.staleness / s.groups for s in steps if s.groups),
        trainer_busy=busy["trainer"],
        workers_busy=busy["workers"],
        validators_busy=busy["validators"],
        relays_busy=busy["relays"],
        coordinator_busy=busy["coordinator"],
        requests_busy=busy["requests"],
        tokens_lost=lost / max(1.0, log.tokens),
        leases_expired=simulation.book.expired / max(1, simulation.book.granted),
        files_waiting=_median(log.waiting_files[len(log.waiting_files) // 2 :]),
        step_bytes=sum(link.sent for link in simulation.origin.links) / max(1, len(done)),
        simulated_s=now,
        wall_s=wall_s,
        events=simulation.events.count,
        limit=_limit(inputs, busy, half, training, step_s, len(done)),
    )


def _limit(inputs: Inputs, busy: dict[str, float], half_s: float, training_s: float, step_s: float, done: int) -> str:
    """The part that is busiest, where one is; otherwise what the time between two steps is spent on."""
    if done < inputs.terms.steps:
        return f"the run stops after {done} of {inputs.terms.steps} steps: too few groups come in time"
    if busy["requests"] > 1:
        return f"the coordinator is asked {busy['requests']:.1f} times what it answers: nodes would count as silent"
    if busy["coordinator"] > BUSY:
        return "uploads fill the coordinator's link"
    if training_s > BUSY * step_s:
        return "the trainer: it never waits"
    if busy["relays"] > BUSY:
        return "the relays' links: versions reach the machines too late"
    if busy["validators"] > BUSY:
        return "the validators: files wait for verdicts"
    if busy["workers"] > BUSY:
        return "the workers: they generate all the time"
    if not half_s <= step_s * inputs.terms.async_level:
        return "the way of a version: half of the machines get it when steps take it no more, or never"
    return "latency: version, generation, verdict and training one after the other"


def _median(values: Iterable[float]) -> float:
    found = [value for value in values if isfinite(value)]
    return median(found) if found else nan


def print_report(report: Report, console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("per step, median of the second half")
    table.add_column("", justify="right")
    for name, text in _rows(report):
        table.add_row(name, text)
    console.print(table)
    console.print(f"what limits it: {report.limit}", highlight=False, soft_wrap=True)
    console.print(
        f"{report.nodes:,} nodes, {report.steps} steps, {report.events:,} events: "
        f"{seconds(report.simulated_s)} simulated in {report.wall_s:.1f} s",
        highlight=False,
        soft_wrap=True,
    )


def _rows(report: Report) -> Iterable[tuple[str, str]]:
    rows: list[tuple[str, float, Callable[[float], str]]] = [
        ("step", report.step_s, seconds),
        ("  of it training", report.training_s, seconds),
        ("broadcast, to half of the machines", report.broadcast_half_s, seconds),
        ("broadcast, to all machines", report.broadcast_s, seconds),
        ("first file after that", report.first_file_s, _signed),
        ("full batch after that", report.full_batch_s, _signed),
        ("verdict after a file's arrival", report.verdict_s, seconds),
        ("staleness, in steps", report.staleness, lambda value: f"{value:.2f}"),
        ("relays send", report.step_bytes, lambda value: show_size(int(value))),
    ]
    for name in ("trainer", "workers", "validators", "relays", "coordinator", "requests"):
        label = {"coordinator": "coordinator's link", "requests": "coordinator's requests"}.get(name, name)
        rows.append((f"busy: {label}", getattr(report, f"{name}_busy"), lambda value: f"{value:.1%}"))
    rows.append(("tokens for nothing", report.tokens_lost, lambda value: f"{value:.1%}"))
    rows.append(("leases that expired", report.leases_expired, lambda value: f"{value:.1%}"))
    return [(name, "never" if value != value or value == inf else show(value)) for name, value, show in rows]


def _signed(value: float) -> str:
    return f"-{seconds(-value)}" if value < 0 else seconds(value)
