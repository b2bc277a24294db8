"""What a benchmark found: figures by name, some with a bar that they should meet."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rich.console import Console
from rich.table import Table

Op = Literal[">=", "<="]
Figure = float | int | str


@dataclass(frozen=True, slots=True)
class BenchResult:
    """`ratios` compare two sides, `values` say what they were made of; a bar names a figure of either."""

    name: str
    ratios: Mapping[str, float]
    values: Mapping[str, Figure]
    bars: Mapping[str, tuple[Op, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for figure in self.bars:
            if isinstance(self._figures().get(figure, ""), str):
                raise ValueError(f"bench {self.name}: the bar on {figure} names no number among its figures")

    def met(self, figure: str) -> bool:
        """Whether a figure with a bar reaches it; NaN reaches none."""
        op, bar = self.bars[figure]
        value = float(self._figures()[figure])
        return value >= bar if op == ">=" else value <= bar

    def to_json(self) -> str:
        """One line of JSON, without the bars."""
        return json.dumps({"bench": self.name, "ratios": dict(self.ratios), "values": dict(self.values)})

    def print(self, console: Console) -> None:
        """A table: ratios first, then values, each with its bar and whether it is met."""
        table = Table(title=f"benchmark {self.name}", title_justify="left")
        table.add_column("figure", overflow="fold")
        table.add_column("measured", justify="right")
        table.add_column("bar", justify="right")
        table.add_column("")
        for figure, value in self._figures().items():
            bar = verdict = ""
            if figure in self.bars:
                op, limit = self.bars[figure]
                bar = f"{op} {_text(limit)}"
                verdict = "[green]met[/]" if self.met(figure) else "[bold red]not met[/]"
            table.add_row(figure, _text(value), bar, verdict)
        console.print(table)

    def _figures(self) -> dict[str, Figure]:
        return {**self.ratios, **self.values}


def _text(value: Figure) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value
