"""The Python tool: programs run side by side, and those are doubted that may print otherwise on another machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from shoal.config import TaskConfig, TurnsConfig
from shoal.errors import TaskError
from shoal.tasks.environments.python_tool import may_differ
from shoal.tasks.isolation.sandbox import find_bubblewrap
from shoal.tasks.rewards.scorer import Scorer
from tests.support.until import until

ASKS_NOBODY = """
import os, sys
from shoal.tasks.isolation.broker import Asking
from shoal.tasks.isolation.sandbox import Bounds
theirs, ask = os.pipe()
os.close(theirs)
try:
    Asking(os.fdopen(ask, "wb"), open(os.devnull, "rb")).run("print(1)", b"", Bounds(), "")
finally:
    os._exit(3)
"""
SLEEPS = "import time\ntime.sleep(100)  # {}"


@contextmanager
def python_tool() -> Iterator[Scorer]:
    try:
        find_bubblewrap()
    except TaskError as error:
        pytest.skip(str(error))
    line = TaskConfig.model_validate({"source": "environment/python", "code": {"seconds": 120.0}})
    with Scorer([line], turns=TurnsConfig(seconds=240.0)) as scorer:
        yield scorer


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    with python_tool() as scorer:
        yield scorer


def printed(scorer: Scorer, *programs: str) -> list[str]:
    task = scorer.tasks.task("train", 0)
    asked = [scorer.play("train", task, [program]) for program in programs]
    return [one.result(120).observations[0].text for one in asked]


def is_running(mark: str) -> bool:
    """Whether there is a process that was given a program with this mark."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if mark.encode() in path.read_bytes():
                return True
    return False


def test_programs_of_two_episodes_run_side_by_side() -> None:
    """Each takes longer than the test waits for both to be there."""
    one, other = f"one of {os.getpid()}", f"other of {os.getpid()}"
    with python_tool() as scorer:
        task = scorer.tasks.task("train", 0)
        for mark in (one, other):
            scorer.play("train", task, [SLEEPS.format(mark)])
        until(lambda: is_running(one) and is_running(other), seconds=90.0)


def test_a_broker_that_was_killed_while_idle_is_replaced_with_the_process_that_asks_it() -> None:
    """Or that process would go on, and every program that it has this broker run would fail."""
    done = subprocess.run([sys.executable, "-P", "-c", ASKS_NOBODY], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_program_that_tries_to_leave_its_sandbox_is_told_so_and_harms_no_other(scorer: Scorer) -> None:
    reads, connects = "print(open('/etc/passwd').read())", "import socket\nsocket.socket()"
    assert printed(scorer, "print(1)", reads, "print(2)", connects, "print(3)") == [
        *("1", "error: FileNotFoundError", "2", "error: OSError", "3")
    ]


def test_an_address_that_a_program_prints_is_doubted(scorer: Scorer) -> None:
    """Some machines put everything to the same place each time, and others elsewhere."""
    task = scorer.tasks.task("train", 0)
    seen = scorer.play("train", task, ["def f(): 0\nprint(f)"]).result(120).observations[0]
    assert " at 0x" in seen.text
    assert seen.doubtful


@pytest.mark.parametrize(
    "program",
    [
        "import time",
        "print(id(3))",
        "print(map(id, [3]))",
        "m = __import__('o' 's')",
        "exec('import os')",
        "print(hash('a'))",
        "try: f()\nexcept: pass",
        "def g():\n  try: f()\n  finally: return 1",
        "print(lambda: 0)",
        "print(object())",
        "print(open('/usr/lib/os-release').read())",
        "class A:\n  def __enter__(self): 0\n  def __exit__(self, *error): return True",
    ],
)
def test_a_program_that_names_what_differs_between_machines_is_doubted(program: str) -> None:
    assert may_differ(program)


@pytest.mark.parametrize(
    "program",
    [
        "cost = 3\nprint(cost)",
        "cos = 1\nprint(cos)",
        "valid(3)",
        "d = {}\nd.update(a=1)",
        "system = 'linear'",
        "sometimes = [1]",
        "important = 2",
        "print(sum(x*x for x in [1, 2]))",
        "exceptional = 1",
        "final = 1",
    ],
)
def test_a_program_is_not_doubted_for_a_part_of_a_longer_name(program: str) -> None:
    assert not may_differ(program)
