"""Tasksets, environments, tools and harnesses of the real `verifiers` package are episodes of ours."""

import asyncio
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.build import build_source
from shoal.tasks.environments.environment import Played
from shoal.tasks.environments.harness.harness_environment import HarnessEnvironment
from shoal.tasks.environments.source import LocalHost, environment_source
from shoal.tasks.source import TaskSource

pytest.importorskip("verifiers")
SourceOf = Callable[..., TaskSource]
if importlib.metadata.version("verifiers") < "0.4":
    pytest.skip("needs verifiers 0.4 or later", allow_module_level=True)

SUMS = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str

class Sum(vf.Task[Data]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 5)

class Config(vf.TasksetConfig):
    size: int = 50

class Sums(vf.Taskset[Sum, Config]):
    def load(self):
        for n in range(self.config.size):
            yield Sum(Data(prompt=f"{n}+{n}?", system_prompt="Digits.", answer=str(2 * n)), self.config.task)

__all__ = ["Sums"]
"""
GUESS = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    secret: int

class Guess(vf.Task[Data]):
    @vf.reward
    async def found(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == str(self.data.secret))

class Guesses(vf.Taskset[Guess, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        n = 0
        while True:
            yield Guess(Data(prompt=f"Game {n}: guess a digit.", secret=n % 10))
            n += 1

class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()

class GuessEnv(vf.Env[GuessConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as talk:
            said = await talk.turn()
            while not said.terminated and said.last_reply != str(task.data.secret):
                said = await talk.turn("higher" if said.last_reply < str(task.data.secret) else "lower")

__all__ = ["Guesses", "GuessEnv"]
"""
TOOLS = """
import os
import verifiers.v1 as vf

class Calculator(vf.Toolset[vf.SharedToolsetConfig]):
    @vf.tool
    def add(self, a: int, b: int) -> int:
        "Adds two numbers."
        if a == 1000:
            raise MemoryError
        if a == 2000:
            raise TimeoutError
        if a == 3000:
            os._exit(3)
        if a == 4000:
            raise ValueError("too many")
        return a + b

class Add(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def called(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == "done")

class Adds(vf.Taskset[Add, vf.TasksetConfig]):
    def load(self):
        for n in range(40):
            yield Add(vf.TaskData(prompt=f"Add {n} and 2."))

    @classmethod
    def toolsets(cls, config):
        return [Calculator(vf.SharedToolsetConfig())]

__all__ = ["Adds"]

if __name__ == "__main__":
    Calculator.run()
"""
OLD = "def load_environment():\n    raise AssertionError\n"


@pytest.fixture(autouse=True)
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {"v1_sums": SUMS, "v1_guess": GUESS, "v1_tools": TOOLS, "v1_old": OLD}.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # tool servers are processes
    return tmp_path


@pytest.fixture
def source_of() -> Iterator[SourceOf]:
    built = list[TaskSource]()

    def build(name: str, **options: Any) -> TaskSource:
        line = TaskConfig(source=f"environment/verifiers/{name}", options={"deterministic": True} | options)
        built.append(build_source([line]))
        return built[-1]

    yield build
    for source in built:
        environment = environment_source(source, source.name).environment
        assert isinstance(environment, HarnessEnvironment)
        environment.close()


def played(source: TaskSource, actions: list[str], index: int = 0) -> Played:
    return LocalHost(source).play("train", source.task("train", index), actions, score=True).result()


def test_a_taskset_alone_is_an_episode_of_one_turn_with_its_rewards_as_parts(source_of: SourceOf) -> None:
    source = source_of("v1-sums", taskset={"size": 20})
    task = source.task("train", 3)
    assert task.system == "Digits."
    right = str(2 * int(task.prompt.split("+")[0]))
    found = played(source, [right], 3)
    assert [seen.over for seen in found.observations] == [True]
    assert found.score is not None
    assert (found.score.reward, found.score.parts) == (3.0, {"right": 1.0, "short": 1.0})
    wrong = played(source, ["no idea"], 3)
    assert wrong.score is not None
    assert (wrong.score.reward, wrong.score.parts) == (0.0, {"right": 0.0, "short": 0.0})
    train, heldout = ({source.task(split, n).prompt for n in range(40)} for split in ("train", "heldout"))
    assert train & heldout == set()
    assert 18 <= len(train | heldout) <= 20


def test_an_environment_with_turns_is_played_and_played_again(source_of: SourceOf) -> None:
    source = source_of("v1-guess", tasks=40)
    secret = int(source.task("train", 0).prompt.split(":")[0].split()[1]) % 10
    actions = [str(n) for n in range(10) if n <= secret]
    found = played(source, actions)
    assert [seen.text for seen in found.observations] == ["higher"] * secret + [""]
    assert found.score is not None
    assert found.score.reward == 1.0
    assert played(source, actions) == found


def test_the_environments_own_limit_of_turns_ends_an_episode_with_its_score(source_of: SourceOf) -> None:
    found = played(source_of("v1-guess", tasks=40, player={"max_turns": 2}), ["x", "y"])
    assert [seen.over for seen in found.observations] == [False, True]
    assert found.score is not None
    assert found.score.reward == 0.0


def test_an_episode_that_its_package_stops_for_its_time_is_void(source_of: SourceOf) -> None:
    """A validator, which replies at once and may be faster, would come to another end or reward."""
    found = played(source_of("v1-guess", tasks=40, player={"timeout": {"scoring": 1e-6}}), [str(n) for n in range(10)])
    assert "scoring_timeout" in found.error
    assert found.score is None


def test_tools_of_a_taskset_are_called_over_mcp(source_of: SourceOf) -> None:
    source = source_of("v1-tools")
    task = source.task("train", 0)
    assert "Adds two numbers." in task.system
    name = next(word for word in task.system.split('"') if word.endswith("add"))
    number = int(task.prompt.split()[1])
    call = f'<tool_call>{{"name": "{name}", "arguments": {{"a": {number}, "b": 2}}}}</tool_call>'
    found = played(source, [call, "done"])
    assert (found.observations[0].text, found.observations[0].role) == (str(number + 2), "tool")
    assert found.score is not None
    assert found.score.reward == 1.0


def test_a_tool_that_is_out_of_memory_or_time_or_lost_makes_its_episode_void(source_of: SourceOf) -> None:
    """Its policy is not told so: on a validator's machine it might have answered, and the worker would be blamed."""
    source = source_of("v1-tools")
    name = next(word for word in source.task("train", 0).system.split('"') if word.endswith("add"))

    def said(a: object) -> Played:
        call = {"name": name, "arguments": {"a": a, "b": 2}}
        return played(source, [f"<tool_call>{json.dumps(call)}</tool_call>", "done"])

    for reason in (4000, "many"):
        told = said(reason)
        assert not told.error
        assert "rror" in told.observations[0].text
    assert "too many" in said(4000).observations[0].text
    for machine in (1000, 2000, 3000):
        void = said(machine)
        assert void.error
        assert void.score is None


def test_arguments_that_are_nested_too_deeply_are_told_and_end_no_process() -> None:
    from shoal.tasks.environments.harness.verifiers_chat import Tools

    tools, limit = Tools(), sys.getrecursionlimit()
    tools._of["add"] = None, "add"
    try:
        sys.setrecursionlimit(100_000)
        said = asyncio.run(tools.call("add", "[" * 100_000))
    finally:
        sys.setrecursionlimit(limit)
    assert said.startswith("error: ")
    assert asyncio.run(tools.call("add", "[]")) == "error: arguments are a JSON object"


def test_what_does_not_say_that_it_is_deterministic_is_taken_only_on_trust() -> None:
    with pytest.raises(TaskError, match=r"options\.deterministic = true, if it is\), so nobody can check"):
        build_source([TaskConfig(source="environment/verifiers/v1-sums")])
    assert build_source([TaskConfig(source="environment/verifiers/v1-sums", unverified="accept")])


def test_a_harness_that_lets_the_policy_run_programs_here_is_refused(source_of: SourceOf) -> None:
    with pytest.raises(TaskError, match="harness 'bash' of seat 'agent' lets the policy run programs on this machine"):
        source_of("v1-sums", agent={"harness": {"id": "bash"}})


def test_environments_of_the_old_api_are_refused_with_the_way_out(source_of: SourceOf) -> None:
    with pytest.raises(TaskError, match=r"write environment/verifiers/v1-old.*'verifiers>=0\.3,<0\.4'"):
        build_source([TaskConfig(source="verifiers/v1-old")])
    with pytest.raises(TaskError, match=r"environment/verifiers/v1-old: cannot be loaded: .*__all__"):
        source_of("v1-old")
