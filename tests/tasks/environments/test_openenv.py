"""Environments of the real OpenEnv package are episodes of ours: as a class in this process, and behind its server."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.build import build_source
from shoal.tasks.environments.environment import Played
from shoal.tasks.environments.openenv_environment import read_action
from shoal.tasks.environments.source import LocalHost
from shoal.tasks.source import TaskSource
from tests.support.until import until

pytest.importorskip("openenv")

COUNTER = """
import random
from openenv.core.env_server import Action, Environment, Observation, State

class Add(Action):
    number: int

class Seen(Observation):
    total: int = 0
    target: int = 0

class Counter(Environment[Add, Seen, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, most=50):
        super().__init__()
        self._most, self._total, self._target = most, 0, 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._total, self._target = 0, random.Random(seed).randint(10, self._most)
        return self._seen()

    def step(self, action: Add, timeout_s=None, **kwargs):
        self._total += action.number
        return self._seen()

    @property
    def state(self):
        return State()

    def _seen(self):
        done = self._total >= self._target
        won = float(self._total == self._target)
        return Seen(total=self._total, target=self._target, done=done, reward=won if done else 0.1)

class NotOne:
    pass
"""
SCHEMA = {"properties": {"word": {"type": "string"}, "metadata": {}}, "required": ["word"]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "counter_openenv.py"
    path.write_text(COUNTER)
    return path


def played(source: TaskSource, actions: list[str], *, index: int = 0, score: bool = False) -> Played:
    return LocalHost(source).play("train", source.task("train", index), actions, score=score).result()


def check(source: TaskSource) -> None:
    """Two steps to a target that the first observation names, with what each of them earns."""
    task = source.task("train", 0)
    target = int(task.prompt.split('"target": ')[1].split(",")[0].split("}")[0])
    assert '{"properties": {"number": {"title": "Number", "type": "integer"}}, "required": ["number"]}' in task.prompt
    found = played(source, ['{"number": 4}', f"{target - 4}"])
    assert found.observations[0].text == f'{{"target": {target}, "total": 4}}'
    assert found.observations[1].over
    assert found.score is not None
    assert found.score.reward == pytest.approx(0.1 + 0.1 + 1.0)
    wrong = played(source, ["many", "5"], score=True)
    assert wrong.observations[0].text.startswith("error: the action does not fit its schema")
    assert wrong.observations[1].text == f'{{"target": {target}, "total": 5}}', "the wrong action changed nothing"
    assert played(source, ["many", "5"], score=True) == wrong


def test_a_class_is_played_in_this_process(file: Path) -> None:
    options: dict[str, Any] = {"deterministic": True, "init": {"most": 30}}
    source = build_source([TaskConfig(source=f"environment/openenv/{file}:Counter", options=options)])
    check(source)
    prompts = {source.task("train", n).prompt for n in range(30)}
    assert len(prompts) > 10
    shown = build_source(
        [
            TaskConfig(
                source=f"environment/openenv/{file}:Counter",
                options={"deterministic": True, "observation": "total", "prompt": "At {observation}."},
            )
        ]
    )
    with pytest.raises(TaskError, match="have its prompts differ more by their seeds"):
        shown.task("heldout", 0)


@pytest.fixture
def server(file: Path) -> Iterator[str]:
    uvicorn = pytest.importorskip("uvicorn")
    from openenv.core.env_server import create_fastapi_app

    from shoal.tasks.sources.user_python import load_module

    module = load_module(str(file))
    app = create_fastapi_app(module.Counter, module.Add, module.Seen, max_concurrent_envs=8)
    own = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", ws="websockets-sansio"))
    thread = threading.Thread(target=own.run, daemon=True)
    thread.start()
    until(lambda: own.started, seconds=180.0)
    yield f"http://127.0.0.1:{own.servers[0].sockets[0].getsockname()[1]}"
    own.should_exit = True
    thread.join(10)


def test_a_server_is_played_over_its_own_client(server: str) -> None:
    line = TaskConfig(source=f"environment/openenv/{server}", options={"deterministic": True}, name="counter")
    check(build_source([line]))


def test_more_tasks_than_a_server_has_sessions_are_drawn_and_played(server: str) -> None:
    """It has 8: one that is no longer needed is given back."""
    line = TaskConfig(source=f"environment/openenv/{server}", options={"deterministic": True}, name="counter")
    source = build_source([line])
    assert len({source.task("train", n).prompt for n in range(20)}) > 10
    for n in range(20):
        assert played(source, ["1"], index=n).observations, "goes on, and is given up"


def test_an_environment_that_raises_is_void_and_is_not_taken_for_a_wrong_action(file: Path) -> None:
    file.write_text(COUNTER.replace("self._total += action.number", "raise ValueError('its own bug')"))
    source = build_source([TaskConfig(source=f"environment/openenv/{file}:Counter", options={"deterministic": True})])
    found = played(source, ["5"], score=True)
    assert "its own bug" in found.error
    assert not found.observations


def test_what_nobody_can_check_is_taken_only_on_trust(file: Path) -> None:
    with pytest.raises(TaskError, match=r"options\.deterministic = true, if it is\), so nobody can check"):
        build_source([TaskConfig(source=f"environment/openenv/{file}:Counter")])
    assert build_source([TaskConfig(source=f"environment/openenv/{file}:Counter", unverified="accept")])


@pytest.mark.parametrize(
    ("place", "options", "match"),
    [
        (":NotOne", {}, "NotOne is not a class of openenv's Environment"),
        (":Nothing", {}, "Nothing is not a class of openenv's Environment"),
        (":Counter", {"most": 3}, r"options\.most is unknown"),
        ("", {}, "write environment/harness/FILE.py"),
        (":Counter", {"init": 3}, r"options\.init = 3; must be a table"),
    ],
)
def test_what_is_not_an_environment_is_refused_by_name(
    file: Path, place: str, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(TaskError, match=match):
        build_source([TaskConfig(source=f"environment/openenv/{file}{place}", options=options, unverified="accept")])


def test_a_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(TaskError, match="its server does not say what an action is"):
        build_source([TaskConfig(source="environment/openenv/http://127.0.0.1:9", unverified="accept", name="lost")])
    with pytest.raises(TaskError, match="a server has no name of its own"):
        build_source([TaskConfig(source="environment/openenv/http://127.0.0.1:9", unverified="accept")])


def test_an_action_that_is_nested_too_deeply_is_no_action_and_ends_no_process() -> None:
    deep, limit = "[" * 100_000, sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(100_000)
        assert read_action(deep, {"required": ["text"], "properties": {"text": {"type": "string"}}}) == {"text": deep}
        with pytest.raises(ValueError, match="an action is a JSON object with a, b"):
            read_action(deep, {"required": ["a", "b"]})
    finally:
        sys.setrecursionlimit(limit)


def test_an_action_is_json_or_the_one_field_that_must_be_given() -> None:
    assert read_action('{"word": "a"}', SCHEMA) == {"word": "a"}
    assert read_action("```json\n{}\n```", SCHEMA) == {}
    assert read_action(" plain ", SCHEMA) == {"word": "plain"}
    assert read_action("12", SCHEMA) == {"word": "12"}, "a field of text stays text"
    assert read_action("12", {"properties": {"n": {"type": "integer"}}, "required": ["n"]}) == {"n": 12}
    with pytest.raises(ValueError, match="a JSON object with a, b"):
        read_action("12", {"required": ["a", "b"]})
