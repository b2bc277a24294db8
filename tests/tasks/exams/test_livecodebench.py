"""LiveCodeBench: programs are judged as its runner judges them, in the sandbox, and its data is not trusted."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from shoal.config import CodeConfig, TaskConfig
from shoal.errors import TaskError
from shoal.tasks.build import build_source
from shoal.tasks.isolation.sandbox import find_bubblewrap, run_program
from shoal.tasks.rewards.combine import kinds_of
from shoal.tasks.rewards.scorer import CONTEST_S, Scorer, seconds_to_score
from shoal.tasks.source import score
from shoal.tasks.sources.exams import livecodebench
from shoal.tasks.sources.exams.livecodebench import MAX_SECONDS, last_block, read_tests, same_output, same_value

SUM = [{"input": "1 2\n", "output": "3\n"}, {"input": "30 4\n", "output": "34"}]
ENDS = [{"input": "[1, 2, 3]\n2", "output": "[1, 3]"}, {"input": "[5]\n1", "output": "[5, 5]"}]


@pytest.fixture
def _sandbox() -> None:
    try:
        find_bubblewrap()
    except TaskError as error:
        pytest.skip(str(error))


def packed(tests: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def row(tests: list[dict[str, str]], function: str | None = None) -> dict[str, Any]:
    return {
        "question_content": "Add or find.",
        "starter_code": "class Solution: ..." if function else "",
        "public_test_cases": json.dumps(tests[:1]),
        "private_test_cases": packed(tests[1:]),
        "metadata": json.dumps({"func_name": function} if function else {}),
    }


def contest(folder: Path, *rows: dict[str, Any]) -> TaskConfig:
    path = folder / "contest.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return TaskConfig(source=f"livecodebench/{path}", code=CodeConfig(seconds=20.0))


@pytest.mark.usefixtures("_sandbox")
def test_programs_and_functions_are_judged_in_a_confined_process(tmp_path: Path) -> None:
    line = contest(tmp_path, row(SUM), row(ENDS, "ends"))
    spoken, called = "print(sum(map(int, input().split())))", "class Solution:\n    def ends(self, xs, k):\n        "
    programs = [
        (0, spoken, 1.0),
        (0, f"def main():\n    {spoken}\nif __name__ == '__main__':\n    main()", 1.0),
        (0, f"{spoken}\nexit()", 1.0),
        (0, "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())) + 0.0)", 1.0),
        (0, "print(3)", 0.0),
        (0, f"{spoken}\nprint(1 / 0)", 0.0),
        (0, f"class Solution: ...\n{spoken}", 0.0),  # the runner takes it for a method's class and finds none
        (1, f"{called}return (min(xs), max(xs))", 1.0),
        (1, f"{called}return [(min(xs)), max(xs) + 0.5]", 0.0),
        (1, f"{called}open('/etc/passwd').read()", 0.0),
    ]
    with Scorer([line]) as judge:
        tasks = [judge.tasks.task("heldout", number) for number in (0, 1)]
        answers = [(tasks[problem], f"So:\n```python\n{program}\n```") for problem, program, _ in programs]
        found = judge.scores("heldout", answers)
    assert [one.error for one in found] == [""] * len(programs)
    assert [one.reward for one in found] == [reward for *_, reward in programs]


@pytest.mark.usefixtures("_sandbox")
def test_a_program_without_end_fails_and_right_answers_never_enter_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = run_program

    def spy(program: str, given: bytes, *rest: Any) -> Any:
        seen.append(f"{program}{given.decode()}{rest}")
        return real(program, given, *rest)

    monkeypatch.setattr(livecodebench, "run_program", spy)
    tests = [{"input": "1\n", "output": "the secret\n"}]
    line = contest(tmp_path, row(tests)).model_copy(update={"code": CodeConfig(seconds=0.2)})
    source = build_source([line])
    found = score(source, source.task("heldout", 0), "```\nwhile True: pass\n```")
    assert found.reward == 0.0
    assert found.doubtful, "a faster machine might have been done"
    assert len(seen) == 1
    assert "the secret" not in seen[0]


@pytest.mark.parametrize(
    ("answer", "block"),
    [
        ("```\na\n```", "a"),
        ("```python\na\n```\nor\n```py\nb\nc\n```\n", "b\nc"),
        ("```\na\n```\nand ```b``` there", ""),
        ("```\na", ""),
        ("a", ""),
    ],
)
def test_the_program_stands_between_the_last_two_fences(answer: str, block: str) -> None:
    assert last_block(answer) == block


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("3 \n", "3", True),
        ("3.0 1e1", "3 10", True),
        ("3.0000001", "3", False),
        ("a  b", "a b", False),
        ("1\n\n2", "1\n2", False),
        ("\n1\n", "1", True),
        ("nan", "nan", True),
        ("nan 1", "nan 1.0", False),
    ],
)
def test_outputs_are_compared_line_by_line_and_numbers_by_value(printed: str, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same


def test_results_are_compared_as_python_compares_them() -> None:
    assert same_value(["tuple", [["plain", 1]]], [1], top=True)
    assert not same_value(["list", [["tuple", [["plain", 1]]]]], [[1]], top=True)
    assert same_value(["plain", True], 1)
    assert same_value(["float", "2.0"], 2)
    assert not same_value(["float", "nan"], 2)
    assert not same_value(["dict", [[[], ["plain", 1]]]], {"1": 1})
    assert same_value(["dict", [["1", ["plain", 1]]]], {"1": 1})
    assert not same_value(["other", None], None)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("pwned",)


def test_private_tests_are_text_and_nothing_else() -> None:
    assert read_tests(row(SUM)) == [("1 2\n", "3\n"), ("30 4\n", "34")]
    assert read_tests(row(SUM) | {"private_test_cases": json.dumps(SUM[1:])}) == read_tests(row(SUM))
    evil = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    with pytest.raises(TaskError, match=r"it calls for builtins\.print, and a text needs no code"):
        read_tests(row(SUM) | {"private_test_cases": evil})
    with pytest.raises(TaskError, match="private tests cannot be read"):
        read_tests(row(SUM) | {"private_test_cases": "AAAA"})
    with pytest.raises(TaskError, match="is not a list of tests that have input and output"):
        read_tests(row(SUM) | {"private_test_cases": packed([{"input": "1"}])})


@pytest.mark.parametrize("data", [b"]K\x01R.", b"K\x01b.", b"j\xff\xff\xff\xff.", pickle.dumps(5), pickle.dumps("5")])
def test_private_tests_that_are_no_pickle_of_a_list_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(TaskError, match="LiveCodeBench: private"):
        read_tests(row(SUM) | {"private_test_cases": base64.b64encode(zlib.compress(data)).decode()})


def test_a_problem_without_tests_is_refused_because_any_program_would_pass() -> None:
    with pytest.raises(TaskError, match="a problem without tests, which any program would pass"):
        read_tests(row(SUM) | {"public_test_cases": "[]", "private_test_cases": packed([])})


@pytest.mark.usefixtures("_sandbox")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"public_test_cases": "[]", "private_test_cases": None}, "line 1 has no tests: any program would pass"),
        ({"public_test_cases": "[]", "private_test_cases": "[]"}, "line 1 has no tests: any program would pass"),
        (
            {"public_test_cases": "5"},
            "line 1: public_test_cases: '5' is not a list of tests that have input and output",
        ),
        ({"public_test_cases": '[{"input": "1"}]'}, "line 1: public_test_cases: .* is not a list of tests"),
        ({"public_test_cases": None}, "line 1: public_test_cases: is not valid JSON"),
        ({"private_test_cases": 5}, "line 1: private_test_cases 5 is not a text"),
        ({"metadata": "[]"}, r"line 1: metadata '\[\]' is not a JSON object with a func_name"),
        ({"metadata": '{"func_name": 5}'}, "line 1: metadata .* is not a JSON object with a func_name"),
        ({"question_content": None}, "line 1: question_content None is not a text"),
        ({"question_content": "\ud800"}, r"contest: a question holds '\\ud800', which is not text"),
    ],
)
def test_a_problem_that_cannot_be_judged_is_named_when_its_file_is_read(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(TaskError, match=said):
        build_source([contest(tmp_path, row(SUM) | changes)])


@pytest.mark.usefixtures("_sandbox")
@pytest.mark.parametrize("line", ["null", "5", "[1]", '"x"'])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "contest.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(TaskError, match="line 1 is not a JSON object but"):
        build_source([TaskConfig(source=f"livecodebench/{path}")])


def test_private_tests_that_unfold_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livecodebench, "MAX_TESTS", 1000)
    with pytest.raises(TaskError, match="take more than 1,000 bytes"):
        read_tests(row(SUM) | {"private_test_cases": packed([{"input": "0" * 5000, "output": ""}])})


def test_an_answer_has_the_time_that_all_tests_may_take(tmp_path: Path) -> None:
    line = contest(tmp_path, row(SUM))
    assert kinds_of([line]) == {"code"}
    assert seconds_to_score([line]) == CONTEST_S > MAX_SECONDS


@pytest.mark.usefixtures("_sandbox")
def test_a_line_that_is_no_problem_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"contest\.jsonl: line 2 has no 'question_content'; it has a"):
        build_source([contest(tmp_path, row(SUM), {"a": 1})])
