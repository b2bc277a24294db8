"""A harness that speaks OpenAI's API drives an episode, and does the same when it is played again."""

import hashlib
import json
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.build import build_source
from shoal.tasks.environments.environment import Played
from shoal.tasks.environments.harness.endpoint import Endpoint
from shoal.tasks.environments.source import LocalHost
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import TaskSource
from tests.support.until import until

pytest.importorskip("openai")

GUESS = """
from random import Random
from openai import OpenAI

def play(seed, base_url, api_key, model, tries=3):
    secret = str(Random(seed).randint(1, 9))
    messages = [{"role": "system", "content": "Digits only."}, {"role": "user", "content": f"Guess {seed % 1000}!"}]
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        for _ in range(tries):
            reply = client.chat.completions.create(model=model, messages=messages, temperature=0.3).choices[0].message
            if reply.content.strip() == secret:
                return 1.0
            hint = "higher" if reply.content < secret else "lower"
            messages += [reply.model_dump(), {"role": "user", "content": hint}]
    return 0.0
"""
STREAMED = """
from openai import AsyncOpenAI

async def play(seed, base_url, api_key, model):
    messages = [{"role": "user", "content": f"Say {seed}"}]
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        for _ in range(2):
            text = ""
            async for chunk in await client.chat.completions.create(model=model, messages=messages, stream=True):
                text += chunk.choices[0].delta.content or ""
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": text.upper()}]
    return float(len(messages))
"""
TOOLS = """
import json
from openai import OpenAI

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

def play(seed, base_url, api_key, model):
    messages = [{"role": "user", "content": f"{seed} + 1?"}]
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        while True:
            choice = client.chat.completions.create(model=model, messages=messages, tools=[ADD]).choices[0]
            messages.append(choice.message.model_dump())
            if not choice.message.tool_calls:
                return float(choice.message.content == str(seed + 1))
            assert choice.finish_reason == "tool_calls"
            for call in choice.message.tool_calls:
                result = sum(json.loads(call.function.arguments).values())
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
"""
FORGETS = """
from openai import OpenAI

def play(seed, base_url, api_key, model):
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        for text in (f"long story {seed}", f"summary of it {seed}"):
            client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])
    return 1.0
"""
FEW_SHOT = """
from openai import OpenAI

def play(seed, base_url, api_key, model):
    told = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}]
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        client.chat.completions.create(model=model, messages=told)
"""


def line(folder: Path, text: str, **fields: Any) -> TaskConfig:
    file = folder / f"harness_{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"  # modules are loaded once
    file.write_text(text)
    return TaskConfig(source=f"environment/harness/{file}", **fields)


def source_of(folder: Path, text: str, **fields: Any) -> TaskSource:
    return build_source([line(folder, text, **fields)])


def played(source: TaskSource, actions: list[str], *, index: int = 0, score: bool = False) -> Played:
    return LocalHost(source).play("train", source.task("train", index), actions, score=score).result()


def test_what_a_harness_asks_is_the_prompt_and_what_it_adds_are_the_observations(tmp_path: Path) -> None:
    source = source_of(tmp_path, GUESS)
    task = source.task("train", 0)
    assert task.prompt.startswith("Guess ")
    assert task.system == "Digits only."
    low = played(source, ["0", "0", "0"])
    assert [seen.text for seen in low.observations] == ["higher", "higher", ""]
    assert [seen.over for seen in low.observations] == [False, False, True]
    assert low.score is not None
    assert low.score.reward == 0.0
    right = next(n for n in range(1, 10) if played(source, [str(n)]).observations[0].over)
    again = played(source, ["0", str(right)])
    assert [seen.over for seen in again.observations] == [False, True]
    assert again.score is not None
    assert again.score.reward == 1.0


def test_an_episode_that_goes_on_is_the_one_that_is_played_again_as_a_whole(tmp_path: Path) -> None:
    source = source_of(tmp_path, GUESS)
    host, task = LocalHost(source), source.task("train", 1)
    steps = [host.play("train", task, ["0"] * n, known=n - 1, episode=7).result() for n in (1, 2, 3)]
    whole = host.play("train", task, ["0"] * 3).result()
    assert [seen for step in steps for seen in step.observations] == list(whole.observations)
    assert steps[-1].score == whole.score


def test_an_episode_that_the_run_cuts_off_earns_nothing_and_its_harness_ends(tmp_path: Path) -> None:
    found = played(source_of(tmp_path, GUESS), ["0"], score=True)
    assert found.observations[0].text == "higher"
    assert found.score is not None
    assert found.score.reward == 0.0
    until(lambda: not any(re.fullmatch(r"harness \d+", thread.name) for thread in threading.enumerate()))


def test_a_streaming_harness_gets_the_same_text(tmp_path: Path) -> None:
    found = played(source_of(tmp_path, STREAMED), ["one", "two words"])
    assert [seen.text for seen in found.observations] == ["ONE", ""]
    assert found.score is not None
    assert found.score.reward == 5.0


def test_tools_are_described_called_and_answered(tmp_path: Path) -> None:
    source = source_of(tmp_path, TOOLS)
    task = source.task("train", 0)
    assert '"name": "add"' in task.system
    number = int(task.prompt.split()[0])
    call = f'<tool_call>{{"name": "add", "arguments": {{"a": {number}, "b": 1}}}}</tool_call>'
    found = played(source, [call, str(number + 1)])
    assert (found.observations[0].text, found.observations[0].role) == (str(number + 1), "tool")
    assert found.score is not None
    assert found.score.reward == 1.0


def test_a_harness_that_rewrites_history_spoils_its_own_episode_by_name(tmp_path: Path) -> None:
    found = played(source_of(tmp_path, FORGETS), ["fine", "fine"])
    assert "messages.0: was 'long story" in found.error
    assert "nothing that was said can be changed" in found.error


def test_what_cannot_be_an_episode_is_refused_when_its_task_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="a reply that the policy did not give"):
        source_of(tmp_path, FEW_SHOT).task("train", 0)
    with pytest.raises(TaskError, match="has no function play"):
        source_of(tmp_path, "x = 1")


def test_a_harness_that_is_not_deterministic_is_taken_only_on_trust(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match='unverified = "accept"'):
        source_of(tmp_path, "deterministic = False\n" + GUESS)
    assert source_of(tmp_path, "deterministic = False\n" + GUESS, unverified="accept").task("train", 0).prompt


def ask(endpoint: Endpoint, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"{endpoint.url}/chat/completions", body)
    for name, value in ({"Content-Type": "application/json"} | headers).items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_requests_without_an_episode_or_out_of_bounds_are_refused() -> None:
    endpoint = Endpoint()
    key, exchange = endpoint.open()
    own = {"Authorization": f"Bearer {key}"}
    chat: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert ask(endpoint, json.dumps(chat).encode())[0] == 401
    assert ask(endpoint, json.dumps(chat).encode(), Authorization="Bearer \xe9")[0] == 401
    assert ask(endpoint, json.dumps(chat).encode(), Host="evil.example", **own)[0] == 421
    assert ask(endpoint, json.dumps(chat).encode(), **{"Content-Type": "text/plain"}, **own)[0] == 415
    for change in (
        {"n": 2},
        {"stop": ["x"]},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
    ):
        status, said = ask(endpoint, json.dumps(chat | change).encode(), **own)
        assert (status, said["error"]["param"]) == (400, next(iter(change)))
    exchange.close()
    assert ask(endpoint, json.dumps(chat).encode(), **own) == (410, {"error": {**_over()}})
    endpoint.close()


def _over() -> dict[str, Any]:
    message = "the episode is over; its run allows no further turn"
    return {"message": message, "type": "invalid_request_error", "param": None, "code": "episode_over"}


def test_a_worker_draws_and_plays_them_in_processes_of_its_own(tmp_path: Path) -> None:
    """Those processes give up sockets and processes, which a harness needs."""
    with Scorer([line(tmp_path, GUESS)]) as scorer:
        task = scorer.tasks.task("train", 0)
        futures = [scorer.play("train", task, ["0"] * 3, score=True) for _ in range(4)]
        found = [future.result(60) for future in futures]
    assert all(one == found[0] for one in found)
    assert [seen.text for seen in found[0].observations] == ["higher", "higher", ""]
