"""Episodes that harnesses drive are files like any other: tokens as they were drawn, proofs, and a judge who agrees."""

import importlib.metadata
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.config import TaskConfig
from shoal.generate.engine import Completion, Request
from shoal.generate.submission_builder import Maker
from shoal.models.load import load
from shoal.protocol.rollout import Rollout
from shoal.protocol.submission import Submission
from shoal.protocol.turns import inserted_runs
from shoal.tasks.build import build_source
from shoal.tasks.environments.harness.harness_environment import HarnessEnvironment
from shoal.tasks.environments.source import environment_source
from shoal.tasks.source import InProcess
from shoal.validate.checks.all_checks import Checks
from tests.support.episode_world import (
    SAMPLING,
    TURNS,
    VERSION,
    EpisodeWorld,
    episode_model,
    episode_world,
    lease_of,
)
from tests.support.roles_in_process import make_config

pytest.importorskip("openai")

# The built-in calculator as a program of somebody else's, which asks a server.
HARNESS = """
from openai import OpenAI
from shoal.tasks.environments import calculator

def play(seed, base_url, api_key, model):
    state = calculator.reset(seed)
    messages = [{"role": "user", "content": state["prompt"]}]
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        while True:
            reply = client.chat.completions.create(model=model, messages=messages).choices[0].message
            if (said := calculator.step(state, reply.content)) is None:
                return calculator.score(state)
            messages += [reply.model_dump(), {"role": "user", "content": said}]
"""
# Says what it is told of tokens, so that it is in the file.
COUNTING = """
from openai import OpenAI

def play(seed, base_url, api_key, model):
    messages = [{"role": "user", "content": f"{seed % 90 + 10}*{seed % 89 + 10}?"}]
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        for turn in range(4):
            asked = {"model": model, "messages": messages}
            if turn % 2:
                *_, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
                used = last.usage
                said = client.chat.completions.create(**asked, extra_headers={"x-stainless-retry-count": "1"})
            else:
                said = client.chat.completions.create(**asked)
                used = said.usage
            assert used.total_tokens == used.prompt_tokens + used.completion_tokens
            told = {"role": "user", "content": f"{used.prompt_tokens} {used.completion_tokens}"}
            messages += [said.choices[0].message.model_dump(), told]
    return 1.0
"""
TASKSET = """
import verifiers.v1 as vf
from shoal.tasks.environments import calculator

class Data(vf.TaskData):
    seed: int

class Product(vf.Task[Data]):
    pass

class Products(vf.Taskset[Product, vf.TasksetConfig]):
    def load(self):
        for n in range(300):
            yield Product(Data(prompt=calculator.reset(n)["prompt"], seed=n))

class Config(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()

class Calculator(vf.Env[Config]):
    async def run(self, task, agents):
        state = calculator.reset(task.data.seed)
        async with agents.player.interaction(task) as talk:
            said = await talk.turn()
            while not said.terminated:
                if (seen := calculator.step(state, said.last_reply)) is None:
                    break
                said = await talk.turn(seen)
        talk.trace.record_reward("product", calculator.score(state))

__all__ = ["Products", "Calculator"]
"""


def world_of(line: TaskConfig) -> EpisodeWorld:
    """The calculator's model, with other tasks."""
    model = episode_model("environment/calculator")
    tree = {"sampling": SAMPLING, "turns": TURNS, "tasks": [line.model_dump(mode="json", exclude_unset=True)]}
    config = make_config(model, model={"source": str(model)}, **tree)
    tasks = build_source([line])
    return EpisodeWorld(
        config, tasks, Checks(config, load(model), tasks, InProcess(tasks), {1: VERSION.root}.get), load(model)
    )


def made(world: EpisodeWorld) -> tuple[Submission, list[tuple[Request, Completion]]]:
    """A file, and all that the engine was asked for it and drew."""
    seen = list[tuple[Request, Completion]]()

    class Watched(Maker):
        def answer(self, requests: Sequence[Request]) -> list[Completion]:
            drawn = Maker.answer(self, requests)
            seen.extend((requests[one.key], one) for one in drawn)
            return drawn

    own = world.maker()
    maker = Watched(own.config, own.policy, own.engine, own.tasks, own.judge)
    return maker.make(lease_of(), VERSION), seen


def check_tokens(submission: Submission, seen: Sequence[tuple[Request, Completion]]) -> None:
    """Each turn is recorded as it was drawn, and was drawn behind exactly what is recorded before it."""
    drawn = {(request.prompt, request.sample): one for request, one in seen}
    turns = 0
    for number, rollout in enumerate(submission.rollouts):
        for begin, end in rollout.turns:
            before = (*rollout.prompt.tolist(), *rollout.completion[:begin].tolist())
            own = drawn[before, number]
            assert own.tokens == rollout.completion[begin:end].tolist()
            turns += 1
    assert turns == len(seen) > len(submission.rollouts)


def test_a_harness_with_openais_client_makes_the_file_that_the_environment_itself_makes(tmp_path: Path) -> None:
    file = tmp_path / "driven.py"
    file.write_text(HARNESS)
    world = world_of(TaskConfig(source=f"environment/harness/{file}", name="calculator"))
    submission, seen = made(world)
    check_tokens(submission, seen)
    assert world.verdict(submission) is None
    own = episode_world().honest()
    assert list(map(_told, submission.rollouts)) == list(map(_told, own.rollouts))


def test_a_validator_sees_what_a_harness_did_not_say(tmp_path: Path) -> None:
    file = tmp_path / "driven_too.py"
    file.write_text(HARNESS)
    world = world_of(TaskConfig(source=f"environment/harness/{file}", name="calculator"))
    for attack in ("forged_tool_output", "false_outcome"):
        finding = world.verdict(world.maker(attack).make(lease_of(), VERSION))
        assert finding is not None
        assert finding.check in ("episode", "rewards")


def test_a_harness_of_verifiers_drives_episodes_that_a_validator_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.metadata.version("verifiers") < "0.4":
        pytest.skip("needs verifiers 0.4 or later")
    (tmp_path / "v1_products.py").write_text(TASKSET)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "v1_products", raising=False)
    world = world_of(TaskConfig(source="environment/verifiers/v1-products", options={"deterministic": True}))
    submission, seen = made(world)
    check_tokens(submission, seen)
    assert world.verdict(submission) is None
    lied = [replace(r, reward=1.0 - r.reward) for r in submission.rollouts if r.reward is not None]
    assert world.verdict(replace(submission, rollouts=lied)) is not None
    environment = environment_source(world.tasks, world.tasks.name).environment
    assert isinstance(environment, HarnessEnvironment)
    environment.close()


def _told(rollout: Rollout) -> tuple[object, ...]:
    arrays = (rollout.prompt, rollout.completion, rollout.runs, rollout.logprobs)
    return (*(array.tolist() for array in arrays), rollout.reward, rollout.finish, rollout.proof, rollout.advantage)


def test_a_harness_is_told_how_many_tokens_a_request_and_its_reply_have_by_worker_and_validator_alike(
    tmp_path: Path,
) -> None:
    path = tmp_path / "counting.py"
    path.write_text(COUNTING)
    world = world_of(TaskConfig(source=f"environment/harness/{path}"))
    honest, _ = made(world)
    assert world.verdict(honest) is None
    told = 0
    for sample in honest.rollouts:
        for (begin, end), (first, last) in zip(sample.turns[:-1], inserted_runs(sample.runs), strict=True):
            text = world.workers.decode(sample.completion[first:last]).strip()
            assert text == f"{len(sample.prompt) + begin} {end - begin}"
            told += 1
    assert told >= 4, "too short to show anything"
