"""What passes for a solution, and the forms that datasets have their tests in."""

from typing import Any

import pytest

from shoal.errors import TaskError
from shoal.tasks.isolation.sandbox import Bounds, find_bubblewrap
from shoal.tasks.rewards.code import Called, Spoken, judge_program, read_tests
from shoal.tasks.rewards.extract import last_python

ADD = "def add(a, b):\n    print('noise')\n    return a + b\n"
SUM = "a, b = map(int, input().split())\nprint(a + b)\n"
CALLS = Called("add", ((1, 2), ([1], [2])), (3, [1, 2]))
SPOKEN = (Spoken("1 2\n", "3\n"), Spoken("30 4\n", "34"))


@pytest.fixture
def _sandbox() -> None:
    try:
        find_bubblewrap()
    except TaskError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("_sandbox")
@pytest.mark.parametrize(
    ("program", "tests", "reward"),
    [
        (ADD, [CALLS], 1.0),
        ("class Solution:\n    def add(self, a, b):\n        return a + b\n", [CALLS], 1.0),
        ("def add(a, b):\n    return 3\n", [CALLS], 0.0),
        ("def plus(a, b):\n    return a + b\n", [CALLS], 0.0),
        ("def add(a, b):\n    return tuple(a) + tuple(b) if isinstance(a, list) else a + b\n", [CALLS], 1.0),
        ("def third(x):\n    return x / 3\n", [Called("third", ((1,),), (0.33333334,))], 1.0),
        ("def third(x):\n    return x / 3\n", [Called("third", ((1,),), (0.334,))], 0.0),
        ("def odd(x):\n    return {3, 1}\n", [Called("odd", ((1,),), ([1, 3],))], 1.0),
        ("def count(n):\n    return 1e9 + 500\n", [Called("count", ((1,),), (10**9,))], 0.0),
        ("def count(n):\n    return 1e9\n", [Called("count", ((1,),), (10**9,))], 1.0),
        ("def sure(n):\n    return 0.9999999\n", [Called("sure", ((1,),), (True,))], 0.0),
        ("def huge(n):\n    return 10**400\n", [Called("huge", ((1,),), (0.5,))], 0.0),
        ("def huge(n):\n    return 1e300\n", [Called("huge", ((1,),), (10**400,))], 0.0),
        ("def keys(t, s):\n    return {t: 2}[(1, 2)] in s\n", read_tests("assert keys((1, 2), {2}) == True", ""), 1.0),
        (SUM, SPOKEN, 1.0),
        (SUM + "import sys; sys.exit(0)", SPOKEN, 1.0),
        (SUM + "raise SystemExit(1)", SPOKEN, 0.0),
        ("a, b = map(int, open(0).read().split())\nprint(a + b, '', '')\nprint()\n", SPOKEN, 1.0),
        ("print(3)", SPOKEN, 0.0),
        (None, SPOKEN, 0.0),
    ],
)
def test_a_program_is_paid_for_passing_every_test(program: str | None, tests: Any, reward: float) -> None:
    bounds = Bounds(seconds=10.0) if reward else Bounds()  # a busy machine may be slow, and is not to cost the reward
    assert judge_program(program, tests, bounds).reward == reward


@pytest.mark.usefixtures("_sandbox")
def test_who_is_slow_is_judged_with_doubt() -> None:
    slow = judge_program("import time\ntime.sleep(4)\nprint(3)", SPOKEN[:1], Bounds(seconds=10.0))
    assert (slow.reward, slow.doubtful) == (1.0, True)
    late = judge_program("while True: pass", SPOKEN[:1], Bounds(seconds=0.1))
    assert (late.reward, late.doubtful) == (0.0, True)
    assert not judge_program("print(4)", SPOKEN[:1], Bounds(seconds=20.0)).doubtful


def test_a_list_of_one_is_a_result_where_other_lists_are() -> None:
    (called,) = read_tests({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[5], [5, 6]]}, "row 0")
    assert isinstance(called, Called)
    assert called.expected == ([5], [5, 6])


@pytest.mark.parametrize(
    "value",
    [
        ["assert add(1, 2) == 3", "assert add([1], [2]) == [1, 2]"],
        "assert add(1, 2) == 3\nassert add([1], [2]) == [1, 2]\n",
        {"fn_name": "add", "inputs": [[1, 2], [[1], [2]]], "outputs": [3, [[1, 2]]]},
        '{"fn_name": "add", "inputs": [[1, 2], [[1], [2]]], "outputs": [[3], [[1, 2]]]}',
        {
            "test_cases": [
                {"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3},
                {"type": "function_call", "fn_name": "add", "input": [[1], [2]], "output": [[1, 2]]},
            ]
        },
    ],
)
def test_tests_of_functions_are_read_from_the_forms_datasets_have(value: Any) -> None:
    assert read_tests(value, "row 0") == (CALLS,)


@pytest.mark.parametrize(
    "value",
    [
        [{"input": "1 2\n", "output": "3\n"}, {"input": "30 4\n", "output": "34"}],
        {"inputs": ["1 2\n", "30 4\n"], "outputs": ["3\n", "34"]},
        '{"test_cases": [{"input": "1 2\\n", "output": "3\\n"}, {"input": "30 4\\n", "output": "34"}]}',
    ],
)
def test_tests_of_programs_are_read_from_the_forms_datasets_have(value: Any) -> None:
    assert read_tests(value, "row 0") == SPOKEN


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "give a list of"),
        ({"inputs": [1], "outputs": []}, "give a list of"),
        ([{"input": 1}], "has no input and output"),
        ("no tests", "neither JSON nor assert lines"),
        (["assert add(1, 2)"], "is not of the form"),
        (["assert add(x) == 3"], "is not of the form"),
        (["import os; os.abort()"], "is not of the form"),
        (["assert add(1 == 3"], "is not valid Python"),
    ],
)
def test_tests_in_another_form_are_refused_by_name(value: Any, says: str) -> None:
    with pytest.raises(TaskError, match=f"row 7: test.*{says}"):
        read_tests(value, "row 7")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```\nor\n```py\nb\n```\nas said", "b\n"),
        ("```\nplain\n```", "plain\n"),
        ("```python\na\n```\n```bash\nrm\n```", "a\n"),
        ("```python\na\n```\n```python\nunfinished", "a\n"),
        ("print(1)", None),
        ("``` python\nx = '```'\n```", "x = '```'\n"),
    ],
)
def test_the_last_python_block_counts(text: str, code: str | None) -> None:
    assert last_python(text) == code
