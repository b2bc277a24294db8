"""LiveCodeBench (code generation): whether a program passes all of a problem's tests, judged as its runner judges.

A file has some hundred problems with a gigabyte of tests, so tests are read from the file when an answer is judged,
and only then. Private tests are compressed pickles of a text; whatever else such a pickle may hold is refused.
"""

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from shoal.config import CodeConfig
from shoal.errors import TaskError
from shoal.tasks.isolation.sandbox import Bounds, find_bubblewrap, run_program
from shoal.tasks.source import Score

# The program that runs in the sandbox: it gets inputs alone, and what is right never enters.
DRIVER = Path(__file__).with_name("contest_driver.py").read_text("utf-8")
ASK = "\nWrite a Python program that solves this, in one block of code between ``` lines"
ASK_STDIN = f"{ASK}. It reads standard input and writes standard output."
ASK_STARTER = f"{ASK}, which begins like this:\n```python\n{{starter}}\n```"
FENCE = "```"
NO_TESTS = "[]"
# Of one problem's private tests, uncompressed: the process that scores has 2 GiB.
MAX_TESTS = 256 << 20
MAX_LINE = 512 << 20
# All tests of one answer together; the runner itself allows a second more than the limit for each test.
MAX_SECONDS = 600.0
# Of a whole problem's tests, in the time that one may take, a machine of another speed might not get done.
DOUBTFUL = 1 / 3


class Contest:
    """The problems of a JSONL file, as `livecodebench/code_generation_lite` has them."""

    def __init__(self, path: Path, code: CodeConfig) -> None:
        self._path, self._code = path, code
        find_bubblewrap()  # a refusal is told before anything else is done

    def entries(self) -> list[dict[str, Any]]:
        """What is asked, and where in the file the tests are."""
        return [self._entry(at, line, number) for number, (at, line) in enumerate(self._lines(), 1)]

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            with self._path.open("rb") as file:
                at = 0
                while line := file.readline(MAX_LINE):
                    if line.strip():
                        yield at, line
                    at += len(line)
        except OSError as error:
            raise TaskError(
                f"task source livecodebench/{self._path}: cannot be read ({error.strerror or error})"
            ) from error

    def _entry(self, at: int, line: bytes, number: int) -> dict[str, Any]:
        where = f"task source livecodebench/{self._path}: line {number}"
        row = _parsed(line, where)
        if not isinstance(row, dict):
            raise TaskError(f"{where} is not a JSON object but {line[:40]!r}")
        if missing := [name for name in ("question_content", "public_test_cases", "metadata") if name not in row]:
            raise TaskError(f"{where} has no {missing[0]!r}; it has {', '.join(map(str, row))}")
        for name in ("question_content", "starter_code", "private_test_cases"):
            if not isinstance(row.get(name) or "", str) or (name == "question_content" and not row[name]):
                raise TaskError(f"{where}: {name} {row[name]!r:.40} is not a text")
        _function(row, where)
        public = _listed(row["public_test_cases"], f"{where}: public_test_cases")
        if not public and (row.get("private_test_cases") or NO_TESTS).strip() == NO_TESTS:
            raise TaskError(f"{where} has no tests: any program would pass; leave it out")
        starter = str(row.get("starter_code") or "")
        ask = ASK_STARTER.replace("{starter}", starter) if starter else ASK_STDIN
        crc = binascii.crc32(line)  # so that another content is another source
        return {"question": f"{row['question_content']}{ask}", "at": at, "length": len(line), "crc": crc}

    def score(self, entry: Mapping[str, Any], answer: str) -> Score:
        with self._path.open("rb") as file:
            file.seek(entry["at"])
            row = _parsed(file.read(entry["length"]), f"livecodebench/{self._path}")
        tests = read_tests(row)
        return judge(last_block(answer), tests, _function(row, "LiveCodeBench"), self._code)


def last_block(answer: str) -> str:
    """What stands between the last two lines with a fence, whatever language they name."""
    lines = answer.split("\n")
    fences = [number for number, line in enumerate(lines) if FENCE in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else ""


def judge(program: str, tests: list[tuple[str, str]], function: str | None, code: CodeConfig) -> Score:
    """1 if the program, run once for all tests, gives the right output or result in each."""
    if not program.strip():
        return Score(0.0)
    seconds = min(MAX_SECONDS, (code.seconds + 1) * len(tests) + 5)
    bounds = Bounds(seconds, code.memory_mb << 20, code.output_kb << 10)
    work = {"function": function, "inputs": [given for given, _ in tests], "seconds": code.seconds}
    outcome = run_program(program, json.dumps(work).encode(), bounds, DRIVER)
    results = outcome.output.splitlines()
    right = len(results) == len(tests) and all(map(_is_right, results, (expected for _, expected in tests)))
    late = outcome.end == "late" or outcome.seconds > DOUBTFUL * code.seconds
    return Score(float(right), doubtful=late)


def _is_right(result: bytes, expected: str) -> bool:
    try:
        match json.loads(result):
            case {"printed": str() as printed}:
                return same_output(printed, expected)
            case {"returned": returned}:
                return same_value(returned, json.loads(expected), top=True)
    except (ValueError, RecursionError):
        pass
    return False


def same_output(printed: str, expected: str) -> bool:
    """Line by line, without space around them; lines of numbers may be written in another way."""
    lines, wanted = (text.strip().split("\n") for text in (printed, expected))
    return len(lines) == len(wanted) and all(map(_same_line, lines, wanted))


def _same_line(line: str, wanted: str) -> bool:
    line, wanted = line.strip(), wanted.strip()
    if line == wanted:
        return True
    try:
        return [Decimal(part) for part in line.split()] == [Decimal(part) for part in wanted.split()]
    except InvalidOperation:
        return False


def same_value(told: Any, expected: Any, top: bool = False) -> bool:
    """Python's equality of what a function returned, as the driver describes it, with a value of JSON. A tuple is a
    list if it is the whole result, and equal to nothing inside of one."""
    match told, expected:
        case ["list", [*parts]], list():
            return len(parts) == len(expected) and all(map(same_value, parts, expected))
        case ["tuple", [*parts]], list() if top:
            return len(parts) == len(expected) and all(map(same_value, parts, expected))
        case ["dict", [*pairs]], dict():
            found = {key: value for key, value in pairs if isinstance(key, str)}
            return len(pairs) == len(expected) == len(found) and all(
                key in found and same_value(found[key], value) for key, value in expected.items()
            )
        case ["plain", value], None | bool() | int() | float() | str():
            return bool(value == expected)
        case ["float", str() as value], int() | float():
            return bool(float(value) == expected)
    return False


def read_tests(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Input and output of each test, the public ones first."""
    private = _private(row.get("private_test_cases") or NO_TESTS)
    tests = _listed(row["public_test_cases"], "LiveCodeBench: public_test_cases")
    tests += _listed(private, "LiveCodeBench: private_test_cases")
    if not tests:
        raise TaskError("LiveCodeBench: a problem without tests, which any program would pass; leave it out")
    return tests


def _listed(text: Any, where: str) -> list[tuple[str, str]]:
    cases = _parsed(text, where)
    if not isinstance(cases, list) or not all(
        isinstance(case, dict) and {"input", "output"} <= {*case} for case in cases
    ):
        raise TaskError(f"{where}: {str(cases)[:60]!r} is not a list of tests that have input and output")
    return [(str(case["input"]), str(case["output"])) for case in cases]


def _function(row: Mapping[str, Any], where: str) -> str | None:
    """The function that is asked for, if it is one and not a whole program."""
    known = _parsed(row["metadata"], f"{where}: metadata")
    name = known.get("func_name") if isinstance(known, dict) else known
    if not isinstance(known, dict) or not isinstance(name, str | None):
        raise TaskError(f"{where}: metadata {row['metadata']!r:.60} is not a JSON object with a func_name")
    return name


def _private(packed: str) -> Any:
    """JSON text, plain or as base64 of a zlib stream of a pickle of it."""
    if packed.lstrip().startswith("["):
        return packed
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(packed), MAX_TESTS)
        if stream.unconsumed_tail:
            raise TaskError(f"LiveCodeBench: private tests of a problem take more than {MAX_TESTS:,} bytes")
        return _TextOnly(io.BytesIO(data)).load()
    except TaskError:
        raise
    except Exception as error:  # of what a stranger's bytes make of base64, zlib and a pickle machine
        raise TaskError(f"LiveCodeBench: private tests cannot be read ({type(error).__name__}: {error})") from None


class _TextOnly(pickle.Unpickler):
    """Unpickles what needs no code: a text."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it calls for {module}.{name}, and a text needs no code")


def _parsed(text: str | bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise TaskError(f"{where}: is not valid JSON ({error!s:.80})") from None
