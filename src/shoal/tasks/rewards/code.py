"""Code reward: runs a program on the tests' inputs in a sandbox, and compares its outputs outside.

The right outputs never enter the sandbox. A program cannot read them, patch the tests, or end early with success: there
is nothing in there to read or patch, and only outputs count.
"""

import ast
import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from shoal.errors import TaskError
from shoal.files import parse_json
from shoal.tasks.isolation.sandbox import MAIN, Bounds, run_program
from shoal.tasks.source import Score

# How far floats of a right answer may be off.
RELATIVE, ABSOLUTE = 1e-6, 1e-9
# One that took more than this share of its time might not be done in time on another machine, or the other way round.
DOUBTFUL = 1 / 3
# All tests of a program may take so many times what one may.
TOTAL = 4
# The program's own output is discarded; results go, one per line, where it used to go.
CALLER = f"""
import json, os
told = os.fdopen(os.dup(1), "w")
os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
work = json.load(sys.stdin)
if isinstance(work["calls"], str):
    work["calls"] = eval(work["calls"])
{MAIN}
function = main.__dict__.get(work["function"])
if function is None:
    function = getattr(main.Solution(), work["function"])
for arguments in work["calls"]:
    result = function(*arguments)
    told.write(json.dumps(sorted(result) if isinstance(result, (set, frozenset)) else result) + "\\n")
    told.flush()
"""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A test of a whole program: what it reads and what it must print."""

    given: str
    expected: str


@dataclass(frozen=True, slots=True)
class Called:
    """Tests of one function: arguments, and what it must return."""

    function: str
    calls: tuple[tuple[Any, ...], ...]
    expected: tuple[Any, ...]


Test = Spoken | Called


def judge_program(program: str | None, tests: Sequence[Test], bounds: Bounds) -> Score:
    """1 if every test passes and 0 otherwise: no partial credit, for that can be had without solving anything."""
    if program is None:
        return Score(0.0)
    deadline = time.monotonic() + TOTAL * bounds.seconds
    doubtful = False
    for test in tests:
        passed, close = _passes(program, test, bounds)
        doubtful = doubtful or close
        if not passed:
            return Score(0.0, doubtful=close)
        if time.monotonic() > deadline:
            return Score(0.0, doubtful=True)
    return Score(1.0, doubtful=doubtful)


def _passes(program: str, test: Test, bounds: Bounds) -> tuple[bool, bool]:
    """Whether the test passes, and whether a faster or slower machine might say otherwise."""
    match test:
        case Spoken():
            outcome = run_program(program, test.given.encode(), bounds)
            passed = outcome.end == "ended" and _lines(outcome.output) == _lines(test.expected.encode())
        case Called():
            work = json.dumps({"function": test.function, "calls": _sent(test.calls)})
            outcome = run_program(program, work.encode(), bounds, CALLER)
            passed = outcome.end == "ended" and _results_match(outcome.output, test.expected)
    return passed, outcome.end == "late" or outcome.seconds > DOUBTFUL * bounds.seconds


def _sent(calls: Sequence[Sequence[Any]]) -> Any:
    """Arguments as JSON, or, where that has no word for them, such as tuples and sets, as Python has them."""
    listed = [list(arguments) for arguments in calls]
    try:
        return listed if json.loads(json.dumps(listed)) == listed else repr(listed)
    except TypeError:
        return repr(listed)


def _lines(output: bytes) -> list[str]:
    """Lines without the space at their ends, and without empty ones at the end."""
    return [line.rstrip() for line in output.decode(errors="replace").rstrip().splitlines()]


def _results_match(output: bytes, expected: Sequence[Any]) -> bool:
    try:
        results = [parse_json(line) for line in output.splitlines()]
    except (ValueError, RecursionError):
        return False
    return len(results) == len(expected) and all(map(_alike, expected, results))


def _alike(expected: Any, result: Any) -> bool:
    """Equality as Python has it, but for the rounding of floats, of which lists and objects may be made. A whole number
    that is asked for is not rounded to: an estimate of it is not the answer."""
    match expected, result:
        case list() | tuple(), list():
            return len(expected) == len(result) and all(map(_alike, expected, result))
        case dict(), dict():
            return expected.keys() == result.keys() and all(_alike(expected[key], result[key]) for key in expected)
        case float(), int() | float():
            with suppress(OverflowError):  # an int that no float is as large as
                return math.isclose(expected, result, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return bool(expected == result)  # nothing but JSON: no class of theirs decides what equals what


def read_tests(value: Any, where: str) -> tuple[Test, ...]:
    """Tests out of the forms that datasets have them in; TaskError, which names what is there, on any other.

    Taken are a list of {input, output} or of `assert f(...) == ...` lines, and {inputs, outputs, fn_name}, all also as
    JSON text, and the lot under `test_cases`.
    """
    if isinstance(value, str) and not value.lstrip().startswith("assert"):
        try:
            value = json.loads(value)
        except ValueError:
            raise TaskError(f"{where}: tests {value[:60]!r} are neither JSON nor assert lines") from None
    tests: Any = value["test_cases"] if isinstance(value, Mapping) and "test_cases" in value else value
    match tests:
        case {"inputs": [*inputs], "outputs": [*outputs]} if inputs and len(inputs) == len(outputs):
            name = tests.get("fn_name")
            pairs = [{"input": i, "output": o, "fn_name": name} for i, o in zip(inputs, outputs, strict=True)]
            return _group(_cases(pairs, where))
        case str() as text:
            return _group([_assertion(line, where) for line in _statements(text, where)])
        case [*cases] if cases:
            lines = [line for case in cases if isinstance(case, str) for line in _statements(case, where)]
            objects = _cases([case for case in cases if not isinstance(case, str)], where)
            return _group([*objects, *(_assertion(line, where) for line in lines)])
    raise TaskError(f"{where}: tests {str(tests)[:60]!r}: give a list of {{input, output}} or of assert lines")


def _cases(cases: Sequence[Any], where: str) -> list[Test]:
    """APPS wraps a function's result in a list of one; a list of another length among them is a result itself."""
    outputs = [case.get("output") for case in cases if isinstance(case, Mapping)]
    wrapped = all(len(output) == 1 for output in outputs if isinstance(output, list))
    return [_case(case, where, wrapped) for case in cases]


def _case(case: Any, where: str, wrapped: bool) -> Test:
    match case:
        case {"input": given, "output": expected}:
            name = case.get("fn_name")
            if name:
                arguments = given if isinstance(given, list) else [given]
                whole = not wrapped or not isinstance(expected, list)
                return Called(str(name), (tuple(arguments),), (expected if whole else expected[0],))
            return Spoken(_text(given), _text(expected))
    raise TaskError(f"{where}: test {str(case)[:60]!r} has no input and output")


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _statements(source: str, where: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskError(f"{where}: test {source[:60]!r} is not valid Python ({error})") from None


def _assertion(statement: ast.stmt, where: str) -> Test:
    """`assert f(1, [2]) == 3` as a call and its result: run as code it would have to stand beside what it judges."""
    match statement:
        case ast.Assert(
            test=ast.Compare(
                left=ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]), ops=[ast.Eq()], comparators=[right]
            )
        ):
            try:
                given, expected = tuple(ast.literal_eval(argument) for argument in arguments), ast.literal_eval(right)
                return Called(name, (given,), (_plain(expected),))
            except (ValueError, TypeError):
                pass
    text = ast.unparse(statement)[:80]
    raise TaskError(
        f"{where}: test {text!r} is not of the form assert NAME(LITERALS) == LITERAL; rewrite it in that form"
    )


def _plain(value: Any) -> Any:
    """A literal as JSON has it: what cannot go through a pipe cannot be compared."""
    if isinstance(value, set | frozenset):
        value = sorted(value)
    return json.loads(json.dumps(value))


def _group(tests: Sequence[Test]) -> tuple[Test, ...]:
    """Calls of one function go into one run; a whole program is started again for each test."""
    grouped: dict[str, Called] = {}
    for test in tests:
        if isinstance(test, Called):
            known = grouped.get(test.function, Called(test.function, (), ()))
            grouped[test.function] = Called(test.function, known.calls + test.calls, known.expected + test.expected)
    return (*grouped.values(), *(test for test in tests if isinstance(test, Spoken)))
