"""Scoring what strangers wrote: nothing an answer does costs more than its own reward."""

import ast
import inspect
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import MAX_ANSWER, Scorer
from shoal.tasks.source import InProcess, Judge, Score, Task, TaskSource, score
from shoal.tasks.sources.gym.safe_answers import FORMS
from shoal.tasks.sources.gym.source import ReasoningGym
from shoal.wait import wait_until

WORDS = [TaskConfig(source="reasoning-gym/spell_backward")]
INTEGRALS = [TaskConfig(source="reasoning-gym/simple_integration")]
ENDLESS = "9**9**9**9"
# A bar of speed is met by the best of so many: the others may have had no core.
TRIES = 20
RUNS_ANSWERS = {"eval", "exec", "compile", "parse_expr", "sympify", "literal_eval", "__import__"}


@pytest.fixture(scope="module")
def integrals() -> Iterator[Scorer]:
    with Scorer(INTEGRALS, score_s=5.0) as scorer:
        yield scorer


def asked(lines: list[TaskConfig], count: int) -> tuple[TaskSource, list[Task]]:
    source = build_source(lines)
    return source, [source.task("train", index) for index in range(count)]


def right(task: Task) -> str:
    assert task.answer is not None
    return task.answer


def test_a_process_of_its_own_scores_as_this_one_does() -> None:
    lines = [*WORDS, TaskConfig(source="reasoning-gym/chain_sum", answer="tagged", template="{question}!", weight=2)]
    source, tasks = asked(lines, 20)
    answers = [(task, answer) for task in tasks for answer in (right(task), "", "\x00", "\ud7ff\U0001f41f", "no\n")]
    with Scorer(lines) as scorer:
        assert scorer.scores("train", answers) == InProcess(source).scores("train", answers)
        assert scorer.scores("train", []) == []


def test_a_process_of_its_own_is_cheap() -> None:
    source, [task] = asked(WORDS, 1)
    group = [(task, "olleh")] * 16
    with Scorer(WORDS) as scorer:
        scorer.scores("train", group)
        costs = [_seconds(scorer, group) - _seconds(InProcess(source), group) for _ in range(100)]
    assert min(costs) / len(group) < 0.2e-3


def test_tasks_of_another_process_are_the_same_and_come_a_thousand_a_second() -> None:
    _, here = asked(WORDS, 500)
    best = math.inf
    for _ in range(TRIES):
        with Scorer(WORDS) as scorer:  # a new one each time, which remembers nothing
            source = scorer.tasks
            source.task("train", 500)
            began = time.perf_counter()
            there = [source.task("train", index) for index in range(500)]
            best = min(best, time.perf_counter() - began)
        if best < 0.5:
            break
    assert best < 0.5
    assert [(task.prompt, task.answer) for task in there] == [(task.prompt, task.answer) for task in here]


def _seconds(judge: Judge, answers: list[tuple[Task, str]]) -> float:
    began = time.perf_counter()
    judge.scores("train", answers)
    return time.perf_counter() - began


def test_an_answer_without_end_costs_its_own_reward_alone(integrals: Scorer) -> None:
    _, [task] = asked(INTEGRALS, 1)
    answers = [right(task), ENDLESS, "x", ENDLESS, right(task)]
    began = time.monotonic()
    first, late, wrong, again, last = integrals.scores("train", [(task, answer) for answer in answers])
    assert (first, wrong, last) == (Score(1.0), Score(0.0), Score(1.0))
    assert late == again == Score(None, "simple_integration task 0: scorer took longer than 5 s")
    assert time.monotonic() - began < 60


def test_a_scorer_that_is_killed_while_idle_is_replaced_unnoticed(integrals: Scorer) -> None:
    _, [task] = asked(INTEGRALS, 1)
    integrals.scores("train", [(task, "x")])
    os.kill(integrals._child.pid, signal.SIGKILL)
    assert integrals.scores("train", [(task, right(task))]) == [Score(1.0)]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def kill_once_at_work(pid: int) -> None:
    idle = cpu_seconds(pid)
    wait_until(lambda: cpu_seconds(pid) > idle + 0.5, 60, f"scorer {pid} does not work", pause_s=0.02)
    os.kill(pid, signal.SIGKILL)


def test_a_scorer_that_is_killed_at_work_costs_the_answer_in_hand() -> None:
    _, [task] = asked(INTEGRALS, 1)
    with Scorer(INTEGRALS, score_s=60.0) as scorer:
        scorer.scores("train", [(task, "x")])
        killer = threading.Thread(target=kill_once_at_work, args=(scorer._child.pid,))
        killer.start()
        lost, kept = scorer.scores("train", [(task, ENDLESS), (task, right(task))])
        killer.join()
    assert lost == Score(None, "simple_integration task 0: scorer was killed by signal 9")
    assert kept == Score(1.0)


def test_an_answer_that_is_too_long_to_read_is_an_error(integrals: Scorer) -> None:
    _, [task] = asked(INTEGRALS, 1)
    long, short = integrals.scores("train", [(task, "1" * (MAX_ANSWER + 1)), (task, right(task))])
    assert long.error == "simple_integration task 0: answer of more than 1048576 characters, which nobody scores"
    assert short == Score(1.0)


HOARDER = """
kept = []


def task(n):
    return {"question": f"{n}?", "answer": "x"}


def score(entry, answer):
    if answer.startswith("take"):
        kept.append(bytearray(int(answer.split()[1]) << 20))
    else:
        bytearray(400 << 20)
    return 1.0
"""


def test_answers_that_take_memory_cost_no_other_one_its_reward(tmp_path: Path) -> None:
    (tmp_path / "hoarder.py").write_text(HOARDER)
    lines = [TaskConfig(source=f"python/{tmp_path / 'hoarder.py'}")]
    _, [task] = asked(lines, 1)
    answers = ["x", "take 900", "x", "take 500", "take 700", "x", "take 4000", "x"]
    with Scorer(lines, score_s=60.0) as scorer:  # to touch so much memory may take a machine without any long
        found = scorer.scores("train", [(task, answer) for answer in answers])
    assert [score.reward for score in found] == [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, None, 1.0]
    assert "MemoryError" in found[6].error


def test_a_scorer_that_cannot_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _, [task] = asked(WORDS, 1)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        Scorer(WORDS) as scorer,
        pytest.raises(TaskError, match="spell_backward task 0: its scorer ended with code 1 "),
    ):
        scorer.scores("train", [(task, "x")])


def limits_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:26].strip(): line[26:].split()[0] for line in lines}


def test_the_child_has_given_up_what_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    _, [task] = asked(INTEGRALS, 1)
    monkeypatch.setenv("SECRET", "x")
    with Scorer(INTEGRALS) as scorer:
        scorer.scores("train", [(task, "x")])
        pid = scorer._child.pid
        limits = limits_of(pid)
        assert (limits["Max file size"], limits["Max open files"], limits["Max processes"]) == ("0", "64", "0")
        assert limits["Max address space"] == str(2 << 30)
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"SECRET" not in environment
        modules = Path(f"/proc/{pid}/maps").read_text()
        assert "torch" not in modules
        descriptors = sorted(str(path.readlink()).partition(":")[0] for path in Path(f"/proc/{pid}/fd").iterdir())
        assert descriptors == [*["/dev/null"] * 3, f"/proc/{pid}/statm", "pipe", "pipe"]
        assert Path(f"/proc/{pid}/fd/0").readlink() == Path("/dev/null"), "an answer reads no request"


ORPHAN = """
import sys, time
from shoal.config import TaskConfig
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer
lines = [TaskConfig(source="reasoning-gym/simple_integration")]
task = build_source(lines).task("train", 0)
scorer = Scorer(lines, score_s=2.0)
scorer.scores("train", [(task, "x")])
print(scorer._child.pid, flush=True)
if sys.argv[1] == "busy":
    scorer.scores("train", [(task, "9**9**9**9")])
time.sleep(60)
"""


@pytest.mark.parametrize("state", ["busy", "idle"])
def test_no_child_outlives_its_parent(state: str) -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN, state], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.5)
        parent.kill()
    wait_until(lambda: not _runs(child), 30, f"child {child} is still there")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


CODE = "__import__('pathlib').Path({path!r}).touch()"


@pytest.mark.parametrize("generator", sorted(FORMS))
@pytest.mark.parametrize(
    "answer",
    [
        CODE,
        f"[{CODE}]",
        f"[x for x in [{CODE}]]",
        "().__class__.__base__.__subclasses__()",
        "x.__class__",
        "1.0.__class__",
        "1..real",
        "S('1')",
        "exit()",
        "_.x",
        "Q\uff11",
        "\U0001d452\U0001d465\U0001d456\U0001d461()",  # reads as exit() once Python has normalised it
    ],
)
def test_no_answer_is_run_as_code(generator: str, answer: str, tmp_path: Path) -> None:
    source = ReasoningGym(generator, {}, binary=False)
    written = tmp_path / "written"
    assert score(source, source.task("train", 0), answer.format(path=str(written))) == Score(0.0)
    assert not written.exists()


@pytest.mark.parametrize("generator", sorted(FORMS))
def test_every_right_answer_is_in_its_generators_form(generator: str) -> None:
    source = ReasoningGym(generator, {})
    for index in range(30):
        task = source.task("train", index)
        # Where sympy could not integrate, the generator's own answer is the question; that is not taken for one.
        assert source.score(task, right(task)) == float("Integral" not in right(task))


@pytest.mark.parametrize("generator", ["countdown", "puzzle24"])
def test_powers_are_no_part_of_an_arithmetic_puzzle(generator: str) -> None:
    source = ReasoningGym(generator, {}, binary=False)
    assert source.score(source.task("train", 0), ENDLESS) == 0.0


def test_every_generator_whose_scorer_may_run_an_answer_has_a_form() -> None:
    """Reads reasoning-gym's own source: a later release with another such scorer fails here."""
    import reasoning_gym

    suspects = set()
    for name, (dataset, _) in reasoning_gym.factory.DATASETS.items():
        tree = ast.parse(inspect.getsource(inspect.getmodule(dataset)))  # type: ignore[arg-type]
        calls = {_called(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        if calls & RUNS_ANSWERS:
            suspects.add(name)
    # These run only what they have generated themselves; propositional_logic has a parser of its own by that name.
    own = {"number_sorting", "bitwise_arithmetic", "basic_arithmetic", "codeio", "bf", "propositional_logic"}
    assert suspects - own == set(FORMS)


def _called(call: ast.Call) -> str:
    function: Any = call.func
    if isinstance(function, ast.Attribute):
        # re.compile compiles a pattern, and nothing else
        return "" if isinstance(function.value, ast.Name) and function.value.id == "re" else function.attr
    return str(getattr(function, "id", ""))


def test_a_composite_is_no_generator() -> None:
    with pytest.raises(TaskError, match=r"reasoning-gym/composite: not a generator.*one \[\[tasks\]\] table for each"):
        ReasoningGym("composite", {"datasets": []})


def test_a_scorer_whose_role_was_killed_before_it_said_anything_ends_without_a_word() -> None:
    command = [sys.executable, "-P", "-m", "shoal.tasks.rewards.scorer_child"]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
