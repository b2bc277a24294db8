"""Verdict and finding: whether a submission is accepted, and if not, which check failed with what claim and what
result.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from shoal.files import parse_json
from shoal.protocol.numeric_evidence import NumericEvidence

Value = float | int | str | None
# Off by more than a threshold and by less than what blame takes: see `margin`.
MARGIN = "margin"
# Numbers that few honest machines would come to, and some do.
ROUNDING = "rounding"
# Numbers that no honest machine comes to.
NUMBERS = "numbers"
# A file, or the version that it was made with, that did not come to the judge.
UNFETCHED = "unfetched"
# Checks that say nothing about the file's maker: a version that was taken back, a scorer that failed, a file that could
# not be fetched or read here, a value near its threshold, unlikely rounding, and what the trainer turns down.
NOBODYS_FAULT = ("version", "scorer", "unread", UNFETCHED, MARGIN, ROUNDING, "trainer")


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule: which check, where, what was claimed, what was found instead, and the rule itself."""

    check: str
    rule: str
    claimed: Value
    found: Value
    sample: int | None = None
    """Number of the sample in the file; None where it is the file as a whole."""

    def __str__(self) -> str:
        where = "" if self.sample is None else f" sample {self.sample}:"
        return f"{self.check}:{where} claimed {self.claimed}, found {self.found}; {self.rule}"


def is_blame(finding: Finding | None) -> bool:
    """Whether a finding is the file's maker's fault, and shows in the file's bytes."""
    return finding is not None and finding.check not in NOBODYS_FAULT


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one file, bound to its bytes."""

    accept: bool
    sha256: str
    audited: bool
    """Whether the costly checks ran as well."""
    finding: Finding | None = None
    evidence: str = ""
    """Where a rejected file's bundle is stored, relative to the run."""
    samples: int = 0
    tokens: int = 0
    """Generated tokens in the file, as the judge counted them."""
    numbers: NumericEvidence | None = None
    """In bfloat16 runs, of a file of which something was computed again."""

    @property
    def reason(self) -> str:
        return str(self.finding) if self.finding else ""

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "reason": self.reason}, default=str)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """A verdict out of its JSON; ValueError for anything else."""
        tree: Any = parse_json(text)
        try:
            tree.pop("reason", None)
            finding, numbers = tree.pop("finding"), tree.pop("numbers", None)
            verdict = cls(
                **tree,
                finding=Finding(**finding) if finding is not None else None,
                numbers=NumericEvidence(**numbers) if numbers is not None else None,
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a verdict: {error}") from error
        if type(verdict.accept) is not bool or not isinstance(verdict.sha256, str):
            raise ValueError("not a verdict: a field has the wrong type")
        return verdict


def shown(values: Sequence[object], max_values: int = 8) -> str:
    """A list in a message, cut where it gets long."""
    text = ", ".join(str(value) for value in values[:max_values])
    return f"[{text}{', ...' if len(values) > max_values else ''}]"
