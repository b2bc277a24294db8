"""Memory and time run out on one machine and not on another: the episode is void, and neither side is blamed for it."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from shoal.config import TaskConfig, TurnsConfig
from shoal.errors import TaskError
from shoal.generate.engine import Completion, Request
from shoal.generate.submission_builder import Maker
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding, is_blame
from shoal.tasks.build import build_source
from shoal.tasks.environments.environment import Played
from shoal.tasks.environments.source import LocalHost
from shoal.tasks.isolation import sandbox
from shoal.tasks.isolation.sandbox import find_bubblewrap
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import InProcess, Judge, Split, Task, TaskSource
from shoal.validate.checks.episodes import differ_by_rounding
from shoal.validate.checks.own_scores import OwnScores
from tests.support.episode_world import CALCULATOR, VERSION, EpisodeWorld, episode_world, lease_of

LIMITS = TurnsConfig(max=3, tokens=90, seconds=60.0)
LITTLE_TIME = LIMITS.model_copy(update={"seconds": 1.0})
TABLES: dict[str, Any] = {
    "sampling": {"group_size": 2, "max_new_tokens": 400, "max_prompt_tokens": 80},
    "turns": LIMITS.model_dump(),
    "train": {"token_budget": 512},
}
FAILING = """
import os, time

def reset(seed, fails=""):
    return {"prompt": f"what {seed % 9973}?", "fails": fails}

def step(state, action):
    if action == "end":
        return None
    if state["fails"] == "memory":
        raise MemoryError
    if state["fails"] == "hoard":
        bytearray(1 << 40)
    if state["fails"] == "time":
        time.sleep(600)
    if state["fails"] == "killed":
        os.kill(os.getpid(), 9)
    return "well"

def score(state):
    return 1.0

def solve(state):
    return "end"
"""
AVERAGING = """
def reset(seed, numbers=(0.1, 0.2, 0.3)):
    return {"prompt": f"what {seed % 9973}?", "numbers": numbers}

def step(state, action):
    return None if action == "end" else f"in all {sum(state['numbers'])!r} of 3"

def score(state):
    return 1.0
"""
EARNING = """
from shoal.tasks.source import Score

def reset(seed, earned=0.25):
    return {"prompt": f"what {seed % 9973}?", "earned": earned}

def step(state, action):
    return None

def score(state):
    return SCORE
"""
# What it draws depends on the episodes that are played beside this one: a worker plays them turn by turn.
SHARING = """
import random

def reset(seed):
    random.seed(seed)
    return {"prompt": f"what {seed % 9973}?", "turns": 0}

def step(state, action):
    state["turns"] += 1
    drawn = random.randint(1000, 9999)
    state["won"] = drawn % 2
    return str(drawn) if state["turns"] < 3 else None

def score(state):
    return SCORE
"""
HUNGRY = "x = bytearray(200 << 20)\nprint(len(x))"
FRUGAL = {"memory_mb": 64}


class Saying(Maker):
    """A worker whose policy says these turns, one after the other."""

    said: tuple[str, ...]

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        eos = min(self.policy.eos_ids)
        turns = [self.said[min(request.position, 1)] for request in requests]
        tokens = [[*self.policy.tokenizer.encode(turn, add_special_tokens=False), eos] for turn in turns]
        return [Completion(n, ids, [-1.0] * len(ids), "eos", b"") for n, ids in enumerate(tokens)]


def submission(world: EpisodeWorld, judge: Judge, *said: str) -> Submission:
    maker = Saying(world.config, world.workers, world.maker().engine, world.tasks, judge)
    maker.said = said
    return maker.make(lease_of(groups=1), VERSION)


def judged(world: EpisodeWorld, judge: Judge, handed_in: Submission) -> Finding | None:
    return replace(world.checks, judge=judge).rewards(handed_in)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("failing") / "failing.py"
    path.write_text(FAILING)
    return path


@contextmanager
def machine(file: Path, fails: str = "") -> Iterator[Judge]:
    line = TaskConfig(source=f"environment/{file}", options={"fails": fails})
    with Scorer([line], turns=LITTLE_TIME if fails == "time" else LIMITS) as scorer:
        yield scorer


@pytest.fixture(scope="module")
def world(file: Path) -> EpisodeWorld:
    return episode_world(f"environment/{file}", CALCULATOR, **TABLES)


@pytest.fixture(scope="module")
def sound(file: Path) -> Iterator[Judge]:
    with machine(file) as judge:
        yield judge


@pytest.mark.parametrize("fails", ["memory", "hoard", "time", "killed"])
def test_a_step_that_fails_on_one_machine_alone_makes_its_file_void_and_blames_nobody(
    world: EpisodeWorld, file: Path, sound: Judge, fails: str
) -> None:
    honest = submission(world, sound, "go", "end")
    assert judged(world, sound, honest) is None
    with machine(file, fails) as failing:
        here = judged(world, failing, honest)
        handed_in = submission(world, failing, "go", "end")
    there = judged(world, sound, handed_in)
    assert all(sample.reward is None and sample.error for sample in handed_in.rollouts)
    for finding in (here, there):
        assert finding is not None
        assert finding.check == "scorer", str(finding)
        assert not is_blame(finding)


def test_a_failure_for_both_sides_is_void_for_both(world: EpisodeWorld, file: Path) -> None:
    with machine(file, "memory") as failing:
        handed_in = submission(world, failing, "go", "end")
        assert judged(world, failing, handed_in) is None
    assert all(sample.reward is None and sample.advantage == 0.0 for sample in handed_in.rollouts)


class InTurns:
    """Plays all episodes in one process, and keeps those that go on."""

    def __init__(self, source: TaskSource) -> None:
        self._host, self.scores = LocalHost(source), InProcess(source).scores

    def play(self, split: Split, task: Task, actions: Sequence[str], **how: Any) -> "Future[Played]":
        return self._host.play(split, task, actions, **how)


@pytest.mark.parametrize("score", ["1.0", "float(random.random())"])
def test_an_environment_whose_episodes_share_their_chance_blames_nobody(tmp_path: Path, score: str) -> None:
    """Played as a whole, as validators do, it is the same each time."""
    path = tmp_path / f"sharing_{score[:3]}.py"
    path.write_text(SHARING.replace("SCORE", score))
    world = episode_world(f"environment/{path}", CALCULATOR, **TABLES)
    honest = submission(world, InTurns(world.tasks), "go", "go")
    finding = judged(world, InTurns(world.tasks), honest)
    assert finding is not None
    assert not is_blame(finding), str(finding)


@pytest.mark.parametrize(
    ("claimed", "own", "is_rounding"),
    [
        ("-0.0", "0.0", True),
        ("1.2246467991473532e-16", "0.0", True),
        ("x 1e-17 y 2.5", "x 0.0 y 2.5000001", True),
        ("0.5", "-0.5", False),
        ("a 2.5", "b 2.5000001", False),
        ("2.5", "2.5 2.5", False),
        ("25", "26", False),
        ("0.3", "0.3", False),
    ],
)
def test_rounding_changes_last_digits_alone(claimed: str, own: str, is_rounding: bool) -> None:
    assert differ_by_rounding(claimed, own) == is_rounding


@pytest.mark.parametrize(
    ("numbers", "is_a_lie"), [([0.3, 0.2, 0.1], False), ([0.1, 0.2, 0.31], True), ([1, 2, 3], True)]
)
def test_the_last_digits_of_a_fraction_are_blamed_on_nobody(
    tmp_path: Path, numbers: list[JsonValue], is_a_lie: bool
) -> None:
    path = tmp_path / "averaging.py"
    path.write_text(AVERAGING)
    world = episode_world(f"environment/{path}", CALCULATOR, **TABLES)
    other = build_source([TaskConfig(source=f"environment/{path}", options={"numbers": numbers})])
    finding = judged(world, InProcess(world.tasks), submission(world, InProcess(other), "go", "end"))
    assert finding is not None
    assert finding.sample == 0
    assert is_blame(finding) == is_a_lie, str(finding)


@pytest.mark.parametrize("score", ["state['earned']", "Score(1.0, parts={'speed': state['earned']})"])
@pytest.mark.parametrize(
    ("own", "claimed", "is_a_lie"), [(0.25, 0.2500005, False), (0.0, 1e-17, False), (0.25, 0.25001, True), (0, 1, True)]
)
def test_the_last_digits_of_a_reward_are_blamed_on_nobody(
    tmp_path: Path, score: str, own: float, claimed: float, is_a_lie: bool
) -> None:
    path = tmp_path / "earning.py"
    path.write_text(EARNING.replace("earned=0.25", f"earned={own}").replace("SCORE", score))
    world = episode_world(f"environment/{path}", CALCULATOR, **TABLES)
    other = build_source([TaskConfig(source=f"environment/{path}", options={"earned": claimed})])
    finding = judged(world, InProcess(world.tasks), submission(world, InProcess(other), "go"))
    assert (finding is None) <= (own == 0.0), "float32, as in a file, does not show this difference"
    assert is_blame(finding) == is_a_lie, str(finding)


def test_an_environment_that_has_played_otherwise_once_is_blamed_on_nobody_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that draws lots seldom plays the same again for a while, and may not have done so for its worker."""
    path = tmp_path / "sharing_still.py"
    path.write_text(SHARING.replace("SCORE", "1.0"))
    world = episode_world(f"environment/{path}", CALCULATOR, **TABLES)
    honest = submission(world, InTurns(world.tasks), "go", "go")
    monkeypatch.setattr(OwnScores, "_turn_by_turn", lambda *_: iter(()))
    assert is_blame(judged(world, InTurns(world.tasks), honest)), "it plays the same again here"
    monkeypatch.undo()
    checks = replace(world.checks, judge=InTurns(world.tasks))
    assert not is_blame(checks.rewards(honest))
    monkeypatch.setattr(OwnScores, "_turn_by_turn", lambda *_: iter(()))
    assert checks.rewards(honest) is not None
    assert not is_blame(checks.rewards(honest))


@pytest.fixture(scope="module")
def python() -> EpisodeWorld:
    try:
        find_bubblewrap()
    except TaskError as error:
        pytest.skip(str(error))
    return episode_world("environment/python", CALCULATOR, **TABLES)


def tool(**code: Any) -> Judge:
    line: dict[str, Any] = {"source": "environment/python", "code": {"seconds": 30.0, **code}}
    return InProcess(build_source([TaskConfig.model_validate(line)]))


CATCHES = f"try:\n  {HUNGRY.splitlines()[0]}\n  print(1)\nexcept MemoryError:\n  print(2)"
FORGETS = f"n = 1\nfor _ in '1':\n  try:\n    {HUNGRY.splitlines()[0]}\n    n = 2\n  finally: break\nprint(n)"


@pytest.mark.parametrize(
    ("program", "little"), [(HUNGRY, FRUGAL), (CATCHES, FRUGAL), (FORGETS, FRUGAL), ("print(1)", {"seconds": 0.001})]
)
def test_a_program_that_one_machine_cannot_finish_blames_neither_side(
    python: EpisodeWorld, program: str, little: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = tool(), tool(**little)
    ended = submission(python, large, program, "=1")
    assert judged(python, large, ended) is None
    with monkeypatch.context() as slow:
        if "seconds" in little:
            slow.setattr(sandbox, "START_S", 0.0)
        failed, here = submission(python, small, program, "=1"), judged(python, small, ended)
    assert failed.rollouts != ended.rollouts
    for finding in (here, judged(python, large, failed)):
        assert finding is not None
        assert not is_blame(finding), str(finding)


@pytest.mark.parametrize("program", ["print(6*7)", "cost = 6 * 7\nprint(cost)"])
def test_what_a_program_did_not_print_is_blamed_on_who_says_that_it_did(python: EpisodeWorld, program: str) -> None:
    """Or the tests above would pass for a check that blames nobody. A name that holds `os` excuses no forgery."""
    honest = submission(python, tool(), program, "=1")
    lying = [replace(r, completion=r.completion.copy()) for r in honest.rollouts]
    assert python.workers.decode(lying[0].completion[lying[0].runs[0] :]).strip().startswith("42")
    lying[0].completion[int(lying[0].runs[0]) + 1] = python.workers.tokenizer.encode("9", add_special_tokens=False)[-1]
    assert is_blame(judged(python, tool(), replace(honest, rollouts=lying)))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print(1)\n1/0", "1\nerror: ZeroDivisionError"),
        ("print(", "error: SyntaxError"),
        ("def f(): f()\nf()", "error: RecursionError"),
        ("print(2)\nraise SystemExit(3)", "2"),
        ("class E(Exception):\n  def __str__(self): raise E\nraise E", "error: E"),
    ],
)
def test_a_program_that_raises_is_told_what_on_every_machine(python: EpisodeWorld, program: str, said: str) -> None:
    task = python.tasks.task("train", 0)
    for judge in (tool(), tool(**FRUGAL)):
        played = judge.play("train", task, [program]).result()
        assert [seen.text for seen in played.observations] == [said]


@pytest.mark.parametrize(
    "program",
    [
        HUNGRY,
        f"def f():\n  {HUNGRY.splitlines()[0]}\nf()",
        "import ctypes\nctypes.string_at(0)",
        "import os\nos._exit(1)",
    ],
)
def test_a_program_that_is_out_of_memory_or_killed_is_void(python: EpisodeWorld, program: str) -> None:
    played = tool(**FRUGAL).play("train", python.tasks.task("train", 0), [program], score=True).result()
    assert "ran out of 64 MiB of memory, or was killed" in played.error
    assert played.score is None
