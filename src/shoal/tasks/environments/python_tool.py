"""A Python tool: the policy writes programs, sees what they print, and says its answer after `=`.

Programs run in the sandbox for untrusted code, without network, files or other processes. A program that takes too
long, runs out of memory or is killed makes its episode void, because another machine might have finished it. Of any
other error that a program raises the policy is told the name.
"""

import math
import random
import re
from typing import Any

from shoal.config import CodeConfig
from shoal.errors import TaskError
from shoal.tasks.environments.environment import Observation
from shoal.tasks.isolation.sandbox import Bounds, run_program

# Longer than this share of its time, and another machine might not have finished.
DOUBTFUL = 1 / 3
# Names that lead to what differs between machines and moments.
CHANGING = {"time", "datetime", "date", "clock", "sys", "os", "platform", "id", "hash", "object", "lambda", "import"}
# The sandbox shows the machine's own libraries.
CHANGING |= {"open"}
# With these a program may go on after its machine has failed it, and print something else; `finally` may return.
CATCHING = {"except", "exit", "finally"}
# Where something is in memory.
ADDRESS = " at 0x"
RAISED = "error: "
# A program that raises ends well, so that all others were ended by their machines. Not the message: versions of Python
# word it differently.
MAIN = f"""
import types
program, memory_error = sys.argv.pop(), MemoryError
sys.modules["__main__"] = main = types.ModuleType("__main__")
try:
    exec(compile(program, "program.py", "exec"), main.__dict__)
except memory_error:
    raise
except SystemExit:
    pass
except BaseException as error:
    print("{RAISED}" + type(error).__name__)
"""


def reset(seed: int, bounds: CodeConfig, terms: int = 6) -> dict[str, Any]:
    if terms < 1:
        raise TaskError(f"environment/python: options.terms = {terms}; must be at least 1")
    rng = random.Random(seed)
    numbers = [rng.randint(100, 999) for _ in range(terms)]
    what = rng.choice(("sum of squares", "product", "sum of cubes"))
    return {"prompt": f"{what} of {numbers}?", "numbers": numbers, "what": what, "bounds": bounds, "said": None}


def step(state: dict[str, Any], action: str) -> Observation:
    if action.startswith("="):
        state["said"] = action[1:].strip()
        return Observation(over=True)
    limits: CodeConfig = state["bounds"]
    outcome = run_program(action, b"", Bounds(limits.seconds, limits.memory_mb << 20, limits.output_kb << 10), MAIN)
    if outcome.end == "late":
        raise TaskError(f"the program took longer than {limits.seconds:g} s")
    if outcome.end == "failed":
        raise TaskError(f"the program ran out of {limits.memory_mb} MiB of memory, or was killed")
    if outcome.end == "wordy":
        return Observation(f"{RAISED}more than {limits.output_kb} KiB of output", doubtful=True)
    text = outcome.output.decode(errors="replace").strip()
    is_close = outcome.seconds > DOUBTFUL * limits.seconds or RAISED in text.rpartition("\n")[2]
    return Observation(text, doubtful=is_close or ADDRESS in text or may_differ(action))


def may_differ(program: str) -> bool:
    """Whether a program names something that may print otherwise elsewhere. Text in quotes counts, because a program
    may run it; underscores around a name do not, as in `__import__`; and a longer name is another one, as `cos` is."""
    names = {name.strip("_") for name in re.findall(r"\w+", program)}
    return not names.isdisjoint(CHANGING | CATCHING)


def score(state: dict[str, Any]) -> float:
    return float(state["said"] == str(_value(state)))


def solve(state: dict[str, Any]) -> str:
    programs = {"sum of squares": "print(sum(x*x for x in {}))", "sum of cubes": "print(sum(x**3 for x in {}))"}
    if state.setdefault("shown", False):
        return f"={_value(state)}"
    state["shown"] = True
    product = "p = 1\nfor x in {}: p *= x\nprint(p)"
    return programs.get(state["what"], product).format(state["numbers"])


def _value(state: dict[str, Any]) -> int:
    numbers: list[int] = state["numbers"]
    powers = {"sum of squares": 2, "sum of cubes": 3}
    if (power := powers.get(state["what"])) is not None:
        return int(sum(x**power for x in numbers))
    return math.prod(numbers)
