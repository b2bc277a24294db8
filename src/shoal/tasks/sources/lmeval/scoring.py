"""How lm-evaluation-harness judges a generated answer: cut at a stop, put through filters, compared with the targets.

Each named list of filters gives a verdict of its own. The first is the reward; all are kept as its parts.
"""

import re
import string
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from shoal.tasks.source import Score

# What has no match reads so, there and here.
INVALID = "[invalid]"


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a valid regular expression ({error})") from None
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Regex(_Part):
    """What the pattern finds; `group_select` says which of several finds, -1 is the last."""

    function: Literal["regex"]
    regex_pattern: Pattern = r"#### (\-?[0-9\.\,]+)"
    group_select: int = 0
    fallback: str = INVALID

    def apply(self, text: str) -> str:
        found = re.findall(self.regex_pattern, text)
        if not -len(found) <= self.group_select < len(found):
            return self.fallback
        one = found[self.group_select]
        # With several groups in the pattern, the first that holds anything.
        return (next(filter(None, one), self.fallback) if isinstance(one, tuple) else str(one)).strip()


class Plain(_Part):
    """Filters without settings. There is one answer to take the first of: samples are judged one by one."""

    function: Literal["take_first", "remove_whitespace", "lowercase", "uppercase"]

    def apply(self, text: str) -> str:
        match self.function:
            case "remove_whitespace":
                return text.strip()
            case "lowercase":
                return text.lower()
            case "uppercase":
                return text.upper()
        return text


class Mapped(_Part):
    """One text in the place of another."""

    function: Literal["map"]
    mapping_dict: dict[str, Any] = {}
    default_value: Any = None

    def apply(self, text: str) -> str:
        return str(self.mapping_dict.get(text, self.default_value))


Filter = Annotated[Regex | Plain | Mapped, Field(discriminator="function")]


class Filters(_Part):
    """A named list of filters, each applied to what the one before it left."""

    name: str = "none"
    filter: list[Filter] = []

    def apply(self, text: str) -> str:
        for one in self.filter:
            text = one.apply(text)
        return text


class ExactMatch(_Part):
    """The same text, but for what is ignored: patterns first, then case, punctuation and digits."""

    metric: Literal["exact_match"] = "exact_match"
    aggregation: Literal["mean"] = "mean"
    higher_is_better: Literal[True] = True
    hf_evaluate: bool = False
    ignore_case: bool = False
    ignore_punctuation: bool = False
    ignore_numbers: bool = False
    regexes_to_ignore: list[Pattern] = []

    def bare(self, text: str) -> str:
        for pattern in self.regexes_to_ignore:
            text = re.sub(pattern, "", text)
        if self.ignore_case:
            text = text.lower()
        gone = string.punctuation * self.ignore_punctuation + string.digits * self.ignore_numbers
        return text.translate(str.maketrans("", "", gone))


class Scoring(_Part):
    """All that judging takes."""

    until: list[str] = []
    filters: list[Filters] = [Filters()]
    metric: ExactMatch = ExactMatch()

    def score(self, answer: str, targets: Sequence[str]) -> Score:
        text = cut(answer, self.until)
        right = {self.metric.bare(target) for target in targets}
        found = {one.name: float(self.metric.bare(one.apply(text)) in right) for one in self.filters}
        return Score(found[self.filters[0].name], parts=found if len(found) > 1 else {})


def cut(text: str, stops: Sequence[str]) -> str:
    """What stands before the first stop."""
    return text[: min((at for stop in stops if stop and (at := text.find(stop)) >= 0), default=len(text))]
