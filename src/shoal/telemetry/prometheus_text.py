"""Prometheus' text format (version 0.0.4): metrics with kind, meaning and labels; text of strangers is escaped."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["gauge", "counter"]
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Family:
    """One metric: its kind, its meaning, and its values by labels."""

    kind: Kind
    help: str
    values: dict[Labels, float] = field(default_factory=dict)


class MetricsPage:
    """Families by name, in the order in which they were first named."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}

    def add(self, name: str, kind: Kind, text: str, value: float, **labels: str) -> None:
        family = self.families.setdefault(name, Family(kind, text))
        family.values[tuple(labels.items())] = value

    def text(self) -> str:
        return "".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for name, family in self.families.items():
            yield f"# HELP {name} {_escaped(family.help, quotes=False)}\n# TYPE {name} {family.kind}\n"
            for labels, value in family.values.items():
                inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
                yield f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n"


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
