"""GPQA: which of four choices an answer names, by the rules of lm-eval's task `gpqa_diamond_cot_zeroshot`.

`strict` takes what follows "The answer is "; `flexible`, the reward, takes the last letter in brackets, else the last
text of a choice that stands in the answer, else a letter behind a colon. Case and punctuation do not count.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any

from shoal.errors import TaskError
from shoal.tasks.source import Score, draw
from shoal.tasks.sources.lmeval.scoring import INVALID, ExactMatch, Regex

LETTERS = "ABCD"
CORRECT = "Correct Answer"
WRONG = tuple(f"Incorrect Answer {number}" for number in (1, 2, 3))
ASK = '\nReason step by step. End with "The answer is (X)." and the letter of the right choice in the place of X.'
STRICT = Regex(function="regex", regex_pattern=r"(?<=The answer is )(.*)(?=.)")
METRIC = ExactMatch(ignore_case=True, ignore_punctuation=True)
IN_BRACKETS = re.compile(r"(\([A-Z]\))")
BEHIND_COLON = re.compile(rf":\s*([{LETTERS}])")


def entries(rows: Iterable[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
    """Rows with a question, a right answer and three wrong ones, which are put in an order that the question decides:
    the same on every machine."""
    found = []
    for number, row in enumerate(rows):
        if missing := [name for name in ("Question", CORRECT, *WRONG) if row.get(name) is None]:
            raise TaskError(f"{where}: row {number} has no {missing[0]!r}; it has {', '.join(map(str, row))}")
        for name in ("Question", CORRECT, *WRONG):
            if not isinstance(row[name], str | int | float):
                raise TaskError(f"{where}: row {number}: {name!r} is {row[name]!r:.40}, which is not text; correct it")
        choices = [_plain(str(row[name])) for name in (*WRONG, CORRECT)]
        right = choices[-1]
        Random(draw("gpqa", row["Question"])).shuffle(choices)
        listed = "".join(f"\n({letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=True))
        target = f"({LETTERS[choices.index(right)]})"
        question = f"{str(row['Question']).strip()}\n{listed}{ASK}"
        found.append({"question": question, "answer": f"The answer is {target}.", "target": target, "choices": choices})
    return found


def _plain(choice: str) -> str:
    """A choice without what the web pages it came from left in it."""
    return choice.strip().replace(" [title]", ". ").replace("  ", " ")


def score(entry: Mapping[str, Any], answer: str) -> Score:
    right = METRIC.bare(str(entry["target"]))
    found = {
        "flexible": float(METRIC.bare(chosen(answer, entry["choices"])) == right),
        "strict": float(METRIC.bare(STRICT.apply(answer)) == right),
    }
    return Score(found["flexible"], parts=found)


def chosen(answer: str, choices: Sequence[str]) -> str:
    """The letter that an answer chooses, in brackets; `[invalid]` if it chooses none."""
    if in_brackets := IN_BRACKETS.findall(answer):
        return str(in_brackets[-1])
    pattern, letter_of = _texts(tuple(choices))
    if (texts := pattern.findall(_bare(answer))) and (text := str(texts[-1]).strip()):
        return letter_of.get(text, text)
    behind = BEHIND_COLON.findall(answer)
    return f"({behind[-1]})" if behind else INVALID


@lru_cache(maxsize=512)
def _texts(choices: tuple[str, ...]) -> tuple[re.Pattern[str], dict[str, str]]:
    """A pattern that finds a choice's text, the longest where one begins with another, and the letter of each."""
    bare = [_bare(choice.strip()) for choice in choices]
    longest_first = sorted(map(re.escape, bare), key=len, reverse=True)
    return re.compile("|".join(longest_first)), dict(zip(bare, (f"({letter})" for letter in LETTERS), strict=True))


def _bare(text: str) -> str:
    return "".join(char for char in text.lower() if not unicodedata.category(char).startswith("P"))
