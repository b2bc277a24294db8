"""What is compared: rows of an exam with answers to each, made here, and how often two scorers agree on them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.common.result import Figure

# By name: some scorers give several.
Verdicts = dict[str, float]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, and, where ours is known to judge it otherwise than the reference, why (`docs/evals.md`)."""

    text: str
    differs: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """A row as the data set has it, and answers to it."""

    row: dict[str, Any]
    answers: tuple[Answer, ...]


def plain(*texts: str) -> tuple[Answer, ...]:
    return tuple(map(Answer, texts))


@dataclass(slots=True)
class Counted:
    """Verdicts of one exam: how many there are, and on how many both sides agree."""

    answers: int = 0
    right: int = 0
    """Answers that the reference finds right, by its first verdict."""
    verdicts: int = 0
    equal: int = 0
    explained: int = 0
    """Answers on which the two differ for a reason that was known before."""
    unexplained: int = 0
    unlike: list[str] = field(default_factory=list)
    """Each answer on which they differ, with both verdicts."""

    def figures(self, name: str) -> dict[str, Figure]:
        return {f"{name}_{what}": value for what, value in asdict(self).items() if what != "unlike"}


def count(cases: Sequence[Case], ours: Sequence[Sequence[Verdicts]], theirs: Sequence[Sequence[Verdicts]]) -> Counted:
    """Compares verdict by verdict."""
    found = Counted()
    for case, mine, its in zip(cases, ours, theirs, strict=True):
        for answer, own, other in zip(case.answers, mine, its, strict=True):
            equal = sum(own[key] == other[key] for key in other)
            found.answers += 1
            found.right += next(iter(other.values())) == 1.0
            found.verdicts += len(other)
            found.equal += equal
            if equal < len(other):
                found.explained += bool(answer.differs)
                found.unexplained += not answer.differs
                said = f"{own}, reference {other}; {answer.differs or 'unexplained'}"
                found.unlike.append(f"{answer.text[:500]!r} on {str(case.row)[:300]}: {said}")
    return found
