"""Runs a contest program on many inputs, inside the sandbox: `livecodebench.py` sends it there as text.

It does what LiveCodeBench's runner does, so that programs meet the same surroundings: names of much-used modules are
there without an import, a program that reads standard input becomes a function that is called once per test, and its
last `if __name__ == "__main__"` is taken to be true. It tells one line of JSON per test and stops at the first that
fails. Right answers are not known here.
"""

import ast
import builtins
import io
import json
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# In this order: a name that several of them have is the last one's.
MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json"),
)
STARRED_ONLY = ("builtins", "typing")
CALLS = 50_000
DIGITS = 50_000
ENTRY = "as_function"


class OutOfTime(Exception):
    """An Exception, so that a program that catches all of those catches this one too, as it does in the runner."""


def main() -> None:
    told = os.fdopen(os.dup(1), "w")
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    work, program = json.load(sys.stdin), sys.argv.pop()
    signal.signal(signal.SIGALRM, _expire)
    sys.set_int_max_str_digits(DIGITS)
    builtins.quit = None  # type: ignore[assignment]
    function, seconds = work["function"], work["seconds"]
    with _within(seconds):
        run = _method(program, function) if function else _whole(program)
    for given in work["inputs"]:
        with _within(seconds):
            line = _returned(run, given) if function else _printed(run, given)
        told.write(json.dumps(line) + "\n")
        told.flush()


def _expire(_number: int, _frame: types.FrameType | None) -> None:
    raise OutOfTime


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _surroundings() -> list[ast.stmt]:
    lines = [f"from {name} import *" for name in (*MODULES, *STARRED_ONLY)]
    lines += [f"import {name}" for name in MODULES]
    return ast.parse("\n".join([*lines, f"sys.setrecursionlimit({CALLS})"])).body


def _loaded(body: list[ast.stmt], source: str) -> Any:
    """The module that statements make, or its class `Solution` where the text names one."""
    module = types.ModuleType("program")
    tree = ast.fix_missing_locations(ast.Module(body=[*_surroundings(), *body], type_ignores=[]))
    exec(compile(tree, "program.py", "exec"), module.__dict__)
    return module.Solution() if "class Solution" in source else module


def _method(program: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(_loaded(ast.parse(program).body, program), name)
    return found


def _whole(program: str) -> Callable[[], Any]:
    """The program as a function: what it imports stands outside of it, and all else within."""
    body = ast.parse(program).body
    match body:
        case [*before, ast.If(test=test, body=last)] if ast.unparse(test) == "__name__ == '__main__'":
            body = [*before, *last]
    outside = [one for one in body if isinstance(one, ast.Import | ast.ImportFrom)]
    inside = [one for one in body if not isinstance(one, ast.Import | ast.ImportFrom)]
    none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    function = ast.FunctionDef(name=ENTRY, args=none, body=inside, decorator_list=[])
    found: Callable[[], Any] = getattr(_loaded([*outside, function], program), ENTRY)
    return found


def _returned(run: Callable[..., Any], given: str) -> dict[str, Any]:
    """What it returns for arguments that stand one on a line, as JSON."""
    return {"returned": _described(run(*map(json.loads, given.split("\n"))))}


def _printed(run: Callable[[], Any], given: str) -> dict[str, str]:
    """What it prints when it reads this. An exit ends it well."""
    before, reading = sys.stdin, builtins.open
    sys.stdin, sys.stdout = _stdin(given), io.StringIO()
    builtins.open = lambda *_, **__: io.StringIO(given)  # type: ignore[assignment]
    try:
        run()
    except SystemExit:
        pass
    finally:
        printed, sys.stdout = sys.stdout, sys.__stdout__
        sys.stdin, builtins.open = before, reading
    return {"printed": printed.getvalue()}


def _stdin(given: str) -> Any:
    stdin: Any = io.StringIO(given)
    stdin.buffer = io.BytesIO(given.encode())
    return stdin


def _described(value: Any) -> Any:
    """A result with its types: JSON alone would make a list of a tuple, and a text of a key that is a number."""
    match value:
        case None | bool() | str():
            return "plain", value
        case int():
            return "plain", int(value)
        case float():
            return "float", repr(float(value))
        case tuple():
            return "tuple", [_described(part) for part in value]
        case list():
            return "list", [_described(part) for part in value]
        case dict():
            return "dict", [[key if isinstance(key, str) else [], _described(part)] for key, part in value.items()]
    return "other", None


if __name__ == "__main__":
    main()
