"""IFEval: whether an answer follows every instruction of its prompt, judged as lm-eval's task `ifeval` judges.

The reward is the strict verdict of the whole prompt. Parts are that verdict, the loose one, for which the answer may
do without its first or last line or its asterisks, and the share of instructions that are followed in each way.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.errors import TaskError
from shoal.tasks.source import Score
from shoal.tasks.sources.exams.ifeval_rules import NEED_PUNKT, RULES, checked
from shoal.tasks.sources.exams.words import load

COLUMNS = ("prompt", "instruction_id_list", "kwargs")


def entries(rows: Iterable[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
    """Rows with a prompt, the names of its instructions, and the arguments of each."""
    found = []
    for number, row in enumerate(rows):
        if missing := [name for name in COLUMNS if row.get(name) is None]:
            raise TaskError(f"{where}: row {number} has no {missing[0]!r}; it has {', '.join(map(str, row))}")
        names, arguments = row["instruction_id_list"], row["kwargs"]
        for column, value in zip(COLUMNS[1:], (names, arguments), strict=True):
            if not isinstance(value, list):
                raise TaskError(f"{where}: row {number}: {column} {value!r:.40} is not a list")
        if not names or len(names) != len(arguments):
            raise TaskError(f"{where}: row {number} has {len(names)} instructions and {len(arguments)} kwargs")
        told = [_told(name, said, f"{where}: row {number}") for name, said in zip(names, arguments, strict=True)]
        found.append({"question": str(row["prompt"]), "instructions": told})
    load(punkt=any(name in NEED_PUNKT for entry in found for name, _ in entry["instructions"]))
    return found


def _told(name: Any, said: Any, where: str) -> tuple[str, dict[str, Any]]:
    """An instruction with the arguments that its rule takes; others are of other instructions' columns."""
    if not isinstance(name, str) or name not in RULES:
        raise TaskError(f"{where}: instruction {name!r} is not one of IFEval's: {', '.join(RULES)}")
    if not isinstance(said, Mapping | None):
        raise TaskError(f"{where}: {name} has the arguments {said!r:.40}, which are not a JSON object")
    needed = {argument: (said or {}).get(argument) for argument in RULES[name][1]}
    if missing := [argument for argument, value in needed.items() if value is None]:
        raise TaskError(f"{where}: {name} has no {missing[0]}; the reference scorer would draw one at random")
    try:
        return name, {argument: checked(argument, value) for argument, value in needed.items()}
    except ValueError as error:
        raise TaskError(f"{where}: {name}: {error}; correct it") from None


def score(entry: Mapping[str, Any], answer: str) -> Score:
    instructions: Sequence[tuple[str, Mapping[str, Any]]] = entry["instructions"]
    variants = loosened(answer)
    strict = [_follows(name, said, [answer]) for name, said in instructions]
    loose = [_follows(name, said, variants) for name, said in instructions]
    parts = {
        "prompt_strict": float(all(strict)),
        "prompt_loose": float(all(loose)),
        "instructions_strict": sum(strict) / len(strict),
        "instructions_loose": sum(loose) / len(loose),
    }
    return Score(parts["prompt_strict"], parts=parts)


def _follows(name: str, said: Mapping[str, Any], texts: Sequence[str]) -> bool:
    """Whether one of the texts follows the instruction; an empty one follows none."""
    rule, _ = RULES[name]
    return any(text.strip() and rule(text, said) for text in texts)


def loosened(answer: str) -> list[str]:
    """The answer, and without its first line, its last, both; each with and without asterisks."""
    lines = answer.split("\n")
    cuts = [answer, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cuts, *(text.replace("*", "") for text in cuts)]
