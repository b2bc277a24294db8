r"""Rows of the data that INTELLECT-2 was trained on, read as they were released.

A row has `prompt` (text, or a list of chat turns), `task_type`, `verification_info` (JSON text) and columns
`solve_rate_*`. What the answer is judged by follows from the row itself: formulas for `verifiable_math`, programs for
`prime_rl_code`. A row of mathematics may have several right answers.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from shoal.config import SolveRateConfig
from shoal.errors import TaskError
from shoal.files import parse_json
from shoal.tasks.rewards.extract import last_box

COLUMNS = ("prompt", "task_type", "verification_info")
MATH, CODE = "verifiable_math", "prime_rl_code"
TASK_TYPES = (MATH, CODE)
RATES = "solve_rate_"


def is_released(row: Mapping[str, Any]) -> bool:
    """Whether a row is of that format: its columns are there, and no question under our own name."""
    return "question" not in row and all(row.get(name) is not None for name in COLUMNS)


def lacking(row: Mapping[str, Any]) -> list[str]:
    """What a row lacks that is of that format but for a column or two."""
    is_like_one = "question" not in row and ("task_type" in row or "verification_info" in row)
    return [name for name in COLUMNS if row.get(name) is None] if is_like_one else []


def as_question(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The row with what a task is made of under our own names; all of its columns stay."""
    if row["task_type"] not in TASK_TYPES:
        raise TaskError(
            f"{where}: task_type {row['task_type']!r} has no reward here, known: {', '.join(TASK_TYPES)}; "
            "leave out the other rows"
        )
    system, question = _turns(row["prompt"], where)
    found: dict[str, Any] = {**row, "question": question}
    found |= {"system": system} if system else {}
    if row["task_type"] == MATH:
        found["answer"] = right_answers(row, where)[0]
    else:
        found["tests"] = _tests(row, where)
    return found


def right_answers(row: Mapping[str, Any], where: str) -> list[str]:
    """All answers of a mathematical row that count as right; a box around one is taken off."""
    known = _info(row, where).get("ground_truth")
    listed = known if isinstance(known, list) else [] if known is None else [known]
    for one in listed:
        # What str would make of a null is a text too, and an answer might well say it.
        if isinstance(one, bool) or not isinstance(one, str | int | float) or one != one:
            raise TaskError(f"{where}: ground_truth {one!r:.60} is neither text nor a number; correct it")
    answers = [last_box(str(one)) or str(one) for one in listed]
    if not answers:
        raise TaskError(f"{where}: verification_info has no ground_truth: {row['verification_info']!s:.80}")
    return answers


def _tests(row: Mapping[str, Any], where: str) -> Any:
    """The tests of a program as `code` reads them. Arguments of a function stand one on a line, as JSON."""
    tests = _info(row, where).get("test_cases")
    tests = _json(tests, where) if isinstance(tests, str) else tests
    match tests:
        case {"inputs": [*inputs], "outputs": [*outputs], "fn_name": str() as name} if name:
            return {
                "inputs": [_arguments(one, where) for one in inputs],
                "outputs": [_value(one) for one in outputs],
                "fn_name": name,
            }
        case {"inputs": [*_], "outputs": [*_]} | [*_] if tests:
            return tests
    raise TaskError(f"{where}: verification_info has no test_cases with inputs and outputs: {tests!s:.80}")


def _arguments(given: Any, where: str) -> Any:
    return [_json(line, where) for line in given.split("\n")] if isinstance(given, str) else given


def _value(expected: Any) -> Any:
    """What a function must return, in the list of one that `code` takes off; other text than JSON stands for itself."""
    if not isinstance(expected, str):
        return expected
    try:
        return [parse_json(expected)]
    except (ValueError, RecursionError):
        return [expected]


def _info(row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    info = row["verification_info"]
    info = _json(info, where) if isinstance(info, str) else info
    if not isinstance(info, Mapping):
        raise TaskError(f"{where}: verification_info {info!s:.60} is not a JSON object")
    return info


def _json(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: verification_info holds {text[:60]!r}, which is not valid JSON ({error})") from None


def _turns(prompt: Any, where: str) -> tuple[str, str]:
    """The system turn, if there is one, and the user's."""
    match prompt:
        case str():
            return "", prompt
        case [{"role": "user", "content": str() as question}]:
            return "", question
        case [{"role": "system", "content": str() as system}, {"role": "user", "content": str() as question}]:
            return system, question
    raise TaskError(f"{where}: prompt {prompt!s:.60} is neither text nor a user turn, with or without a system turn")


def within(rows: Sequence[Mapping[str, Any]], wanted: SolveRateConfig, where: str) -> list[Mapping[str, Any]]:
    """The rows whose rate is wanted. A row that nobody has measured is not."""
    if not any(wanted.column in row for row in rows):
        rates = sorted({str(name) for row in rows for name in row if str(name).startswith(RATES)})
        raise TaskError(
            f"{where}: no row has {wanted.column!r}, which solve_rate.column names; columns like it: "
            f"{', '.join(rates) or 'none'}"
        )
    kept = [row for row in rows if _is_within(row.get(wanted.column), wanted, where)]
    if not kept:
        raise TaskError(
            f"{where}: none of {len(rows)} rows has a {wanted.column} within {wanted.min:g}..{wanted.max:g}; widen it"
        )
    return kept


def _is_within(rate: Any, wanted: SolveRateConfig, where: str) -> bool:
    if rate is None:
        return False
    with suppress(ValueError):  # of text; a CSV file has nothing else
        if isinstance(rate, str | int | float) and not isinstance(rate, bool):
            return wanted.min <= float(rate) <= wanted.max
    raise TaskError(f"{where}: {wanted.column} {rate!r:.40} is not a number")
