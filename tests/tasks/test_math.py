"""Mathematical answers: the same said in another way is right, anything else is wrong, and nothing takes long."""

import gc
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import TaskError
from shoal.tasks.rewards.math import MAX_CHARS, same

TABLE = Path(__file__).parents[1] / "data" / "math_answers.tsv"
PAIRS = [tuple(line.split("\t")) for line in TABLE.read_text("utf-8").splitlines()]
# SHOAL_FUZZ=10000 for the long version.
FUZZED = int(os.environ.get("SHOAL_FUZZ", "600"))
PIECES = [
    *"0123456789xyzabieABC+-*/=^_{}()[]|!<>,.;:$%&~'\"\\ \n\t\x00",
    *["\\frac{", "\\sqrt{", "\\sqrt[", "}{", "\\left(", "\\right)", "\\sum_{", "\\int_", "\\infty", "\\pi", "\\cdot"],
    *["\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", "\\text{", "\\binom", "\\lim_{", "\\times 10^{", "\\pm", "\\cup"],
    *["99999999", "^{9^{9^{9}}}", "!", "\\log", "\\sin", "\\%", "\\circ", "\u00b2", "\u2212", "\U0001f41f", "\ud7ff"],
]
HEAVY = [
    "9^{9^{9^{9}}}",
    "9**9**9**9",
    "99999999!",
    "(99999!)!",
    "x^{99999}+1=(x+1)^{99999}",
    "\\sum_{n=1}^{10^{9}} \\frac{1}{n^{n}}",
    "\\int_0^1 \\frac{\\sin(x^x)}{\\log(x)} dx",
    "\\lim_{x\\to 0} \\frac{\\sin(\\tan x)-\\tan(\\sin x)}{x^7}",
    "(1+x)^{500}(1-y)^{500}",
    "\\prod_{k=1}^{100000} k",
    "\\binom{1000000}{500000}",
    "\\sqrt[99999999]{2}",
    "((((((((((((((((((((((((((((((((((((((((1))))))))))))))))))))))))))))))))))))))))",
    "\\frac{" * 80 + "1",
    "{" * 200 + "}" * 200,
    "-" * 399 + "1",
    "1" * 400,
    "10^{99999999999}",
    "1e999999999",
    "0." + "3" * 390,
    "\\begin{pmatrix}" + "1&" * 90 + "\\end{pmatrix}^{99999}",
]


def test_the_table_is_large_and_has_both_verdicts() -> None:
    verdicts = [verdict for verdict, _, _ in PAIRS]
    assert len(set(PAIRS)) >= 500
    assert min(verdicts.count("="), verdicts.count("!")) >= 200


def test_no_verdict_of_the_table_is_wrong() -> None:
    wrong = [pair for pair in PAIRS if same(pair[1], pair[2]) is not (pair[0] == "=")]
    assert wrong == []


def test_agrees_with_math_verify_where_nothing_is_added_to_it() -> None:
    """On what is neither words nor a number, this is math-verify's own verdict on what it parses."""
    import math_verify

    rights = ["x^2+2x+1", "2\\sqrt{3}", "\\frac{x}{x+1}", "\\{1,2,3\\}", "12\\pi", "a^2-b^2", "[0,1]", "6x-3"]
    answers = [answer for _, right, answer in PAIRS if right in rights and "\\text" not in answer]
    rng = random.Random(1)
    for right in rights:
        for answer in rng.sample(answers, 8):
            known, given = (math_verify.parse(f"\\boxed{{{text}}}") for text in (right, answer))
            own = math_verify.verify(known, given, allow_set_relation_comp=True)
            assert same(right, answer) is own, (right, answer)


@pytest.mark.parametrize(
    "question", ["12 \\cdot 13", "\\sum_{k=1}^{12} 2k", "\\frac{312}{2}", "\\sqrt{24336}", "156!/155!"]
)
def test_the_question_is_not_its_own_answer(question: str) -> None:
    assert same("156", "156")
    assert not same("156", question)


@pytest.mark.parametrize("answer", HEAVY)
def test_a_heavy_expression_ends_in_time(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.tasks.rewards.math.LIMIT_S", 0.3)
    assert not _judged("x^2+1", answer)


def test_fuzzed_answers_crash_nothing_and_take_no_longer_than_allowed() -> None:
    rng = random.Random(7)
    rights = ["5", "\\frac{1}{2}", "x^2+2x+1", "(3,4)", "[0,1)", "\\text{Monday}", "2\\sqrt{3}", "\\{1,2,3\\}"]
    for number in range(FUZZED):
        if number % 2:
            answer = "".join(rng.choices(PIECES, k=rng.randint(1, 40)))
        else:
            answer = rng.choice(PAIRS)[2]
            for _ in range(rng.randint(1, 4)):
                at = rng.randint(0, len(answer))
                answer = answer[:at] + rng.choice(PIECES) + answer[at + rng.randint(0, 2) :]
        _judged(rng.choice(rights), answer)


@pytest.fixture(autouse=True, scope="module")
def _nothing_to_collect() -> Iterator[None]:
    """What other tests of this process left is not looked through while seconds are counted."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _judged(right: str, answer: str) -> bool:
    began = time.process_time()
    try:
        return same(right, answer)
    except TaskError:
        return False
    finally:
        assert time.process_time() - began < 2.0, answer


def test_what_takes_too_long_to_tell_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.tasks.rewards.math.LIMIT_S", 0.2)
    with pytest.raises(TaskError, match=r"takes more than 0.2 s to compare with the right one"):
        same("x^2+1", "(1+x)^{500}(1-y)^{500}")


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "9**9**9", "2^{100000}", "123456!", "(9!)!", "10^{99999999999}"])
def test_a_number_that_nobody_can_write_out_is_wrong_at_once(answer: str) -> None:
    best = math.inf
    for _ in range(5):  # the best of them: others share its caches
        began = time.process_time()
        assert not same("x^2", answer)
        best = min(best, time.process_time() - began)
        if best < 0.1:
            break
    assert best < 0.1


def test_an_answer_that_is_too_long_to_be_one_is_wrong() -> None:
    assert not same("1", "1" + " " * 10 + "+0" * MAX_CHARS)


def test_the_first_answer_of_a_process_does_not_pay_for_loading_the_parser() -> None:
    """Importing sympy and the first parse take longer than the limit of an answer on a slow machine."""
    program = "import shoal.tasks.rewards.math as math; math.LIMIT_S = 0.3; print(math.same('x=7', 'x = 14/2'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
