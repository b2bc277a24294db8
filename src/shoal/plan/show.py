"""A plan for readers: a table per kind of need, the verdicts, and the assumptions; or one JSON object."""

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.plan.memory import Items
from shoal.plan.plan import Plan, size
from shoal.telemetry.status import seconds


def to_json(plan: Plan) -> str:
    """Every figure of the plan, in bytes and seconds."""
    tree: dict[str, Any] = {
        "run": plan.name,
        "model": asdict(plan.shape),
        "roles": {
            role.role: {
                "memory": role.memory.device,
                "host": role.memory.host,
                "memory_bytes": role.memory.total,
                "spare_bytes": role.spare,
                "fits": role.fits,
                "verdict": role.verdict,
                "hints": list(role.hints),
                **asdict(role.traffic),
            }
            for role in plan.roles
        },
        "sizes": {**asdict(plan.sizes), "uploads": plan.sizes.uploads},
        "step": {
            **asdict(plan.time),
            "seconds": plan.step_seconds,
            "bottleneck": plan.bottleneck,
            "workers": plan.workers,
            "workers_needed": plan.time.workers_needed,
        },
        "assumptions": asdict(plan.assumed),
        "notes": plan.notes,
    }
    return json.dumps(tree)


def print_plan(plan: Plan, console: Console) -> None:
    shape = plan.shape
    _say(
        console, f"{plan.name}: {shape.kind}, {shape.parameters / 1e9:.3g} billion parameters in {shape.blocks} blocks"
    )
    for note in plan.notes:
        _say(console, f"note: {note}")
    console.print(_memory(plan))
    console.print(_traffic(plan))
    for line in step_lines(plan):
        _say(console, line)
    _say(console, "assumed:")
    for line in plan.assumed.sentences():
        _say(console, f"  {line}")


def _memory(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("role", "memory", "made of", "verdict"):
        table.add_column(name, overflow="fold")
    for role in plan.roles:
        if role.device is None:
            continue
        host = _items(role.memory.host)
        parts = _items(role.memory.device) + f"; in host memory: {host}" * bool(host)
        verdict = Text("; ".join((role.verdict, *role.hints)), "green" if role.fits else "bold red")
        table.add_row(role.role + " per rank" * (role.ranks > 1), size(role.memory.total), parts, verdict)
    return table


def _traffic(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("role", "disk", "sends per step", "receives per step"):
        table.add_column(name, overflow="fold")
    for role in plan.roles:
        if role.traffic.disk:
            cells = (role.traffic.disk, role.traffic.sends, role.traffic.receives)
            table.add_row(role.role, *(_items(items) for items in cells))
    return table


def _items(items: Items) -> str:
    return ", ".join(f"{name} {size(count)}" for name, count in items.items() if count)


def step_lines(plan: Plan) -> list[str]:
    """How long a step takes, who decides that, and how many workers the trainer needs."""
    time = plan.time
    parts = ", ".join(f"{name} {seconds(took)}" for name, took in time.parts(plan.workers).items())
    sizes = plan.sizes
    needed = "1 such worker keeps" if time.workers_needed == 1 else f"{time.workers_needed:,} such workers keep"
    return [
        f"a version is {size(sizes.version)}, an update {size(sizes.update)}; a step has {sizes.files:,} files of "
        f"{size(sizes.file)} with proofs, {size(sizes.uploads)} in all",
        f"a step trains on {time.trained_tokens / 1e6:,.3g} M tokens ({time.trained_flops:.3g} FLOPs) and takes about "
        f"{seconds(plan.step_seconds)}: {parts}",
        f"bottleneck: {plan.bottleneck}; a worker generates {time.slots} answers at once, {time.tokens_per_s:,.0f} "
        f"tokens/s; {needed} the trainer busy, the config starts {plan.workers}",
    ]


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
