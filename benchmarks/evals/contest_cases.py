"""Contest problems and programs: right and wrong ones, in the styles in which models read input and give results."""

import base64
import json
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.evals.cases import Answer, Case

Tests = Sequence[tuple[str, str]]
BUFFER = "lighteval's copy of the runner has no sys.stdin.buffer; LiveCodeBench's own has"
EMPTY = "without a program, a function of the modules that the runner imports, here operator.truth, is taken for it"

SUM = [("2\n3 4\n", "7\n"), ("3\n10 20 30\n", "60\n"), ("1\n-5\n", "-5\n")]

HALVES = [("3\n", "1.5 0.5\n"), ("10\n", "5.0 0\n"), ("7\n", "3.50 0.50\n")]
WORDS = [("a b\n\nc\n", "C B A\n"), ("x\n", "X\n")]
PAIR = [("[1, 2, 3]\n2", "[1, 3]"), ("[5]\n1", "[5, 5]"), ("[4, 4]\n9", "[4, 4]")]
TABLE = [("3", '{"1": [1], "2": [1, 2], "3": [1, 2, 3]}'), ("0", "{}")]
TRUTH = [("1", "true"), ("0", "false"), ("2", "true")]
# How a program stands in an answer; {p} is the program.
WRAPPED = (
    "Here it is.\n```python\n{p}\n```\nDone.",
    "```\n{p}\n```",
    "```python\nprint('first try')\n```\nBetter:\n```python\n{p}\n```",
    "<think>```python\nx\n```</think>\n```py\n{p}\n```",
)
UNWRAPPED = ("{p}", "```python\n{p}", "```python\n{p}\n```\nand then\n```python\nprint('last')\n```", "`{p}`")


def _row(name: str, tests: Tests, function: str | None) -> dict[str, Any]:
    """The first test is public; the others are packed as the data set packs them."""
    cases = [
        {"input": given, "output": right, "testtype": "functional" if function else "stdin"} for given, right in tests
    ]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases[1:])))).decode()
    return {
        "question_title": name,
        "question_content": f"Solve {name}.",
        "platform": "leetcode" if function else "atcoder",
        "question_id": name,
        "contest_id": "made here",
        "contest_date": "2025-01-01T00:00:00",
        "starter_code": f"class Solution:\n    def {function}(self, *xs):\n" if function else "",
        "difficulty": "easy",
        "public_test_cases": json.dumps(cases[:1]),
        "private_test_cases": packed,
        "metadata": json.dumps({"func_name": function} if function else {}),
    }


def programs_of(problem: str) -> list[str]:
    """The programs of a file, right and wrong, which are parted by lines `#---`."""
    text = (Path(__file__).parent / "programs" / f"{problem}.txt").read_text()
    return text.removesuffix("\n").split("\n#---\n")


def contest_cases(quick: bool) -> list[Case]:
    """Every program in one wrapping, the first two of each problem in all of them."""
    problems: tuple[tuple[str, Tests, str | None], ...] = (
        *(("sum", SUM, None), ("halves", HALVES, None), ("words", WORDS, None)),
        *(("pair", PAIR, "ends"), ("table", TABLE, "table"), ("truth", TRUTH, "is_true")),
    )
    cases = []
    for name, tests, function in problems[::3] if quick else problems:
        programs = programs_of(name)
        answers = [Answer(_wrapped(WRAPPED[place % len(WRAPPED)], program)) for place, program in enumerate(programs)]
        for form in (*WRAPPED, *UNWRAPPED):
            answers += [Answer(_wrapped(form, program)) for program in programs[:3]]
        if name == "sum":
            answers.append(Answer(_wrapped(WRAPPED[0], programs_of("buffered")[0]), differs=BUFFER))
        cases.append(Case(_row(name, tests, function), tuple(answers[:4] if quick else answers)))
    if not quick:
        cases.append(Case(_row("shadowed", TRUTH, "truth"), (Answer("It is true.", differs=EMPTY),)))
    return cases


def _wrapped(form: str, program: str) -> str:
    return form.replace("{p}", program)
