"""A harness that speaks OpenAI's API drives an episode, and does the same when it is played again."""

import hashlib
import json
import re
import socket
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
from shoal.tasks.environments.source import LocalHost, environment_source
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import Score, TaskSource
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


# Waits for its second reply no longer than it takes to ask, and has an answer of its own then.
IMPATIENT = """
from openai import APITimeoutError, OpenAI

def play(seed, base_url, api_key, model):
    messages = [{"role": "user", "content": f"Say {seed}"}]
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        for seconds in (60.0, 0.2):
            try:
                asked = client.chat.completions.create(model=model, messages=messages, timeout=seconds)
            except APITimeoutError:
                return 0.25
            messages += [asked.choices[0].message.model_dump(), {"role": "user", "content": "again"}]
    return 1.0
"""
# Asks twice at once, and takes what comes.
AT_ONCE = """
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from openai import BadRequestError, OpenAI

def play(seed, base_url, api_key, model):
    def ask(text):
        with suppress(BadRequestError), OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
            client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])

    with ThreadPoolExecutor() as threads:
        list(threads.map(ask, [f"one {seed}", f"SECOND {seed}"]))
    return 1.0
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


def harness_has_ended() -> None:
    until(lambda: not any(re.fullmatch(r"harness \d+", thread.name) for thread in threading.enumerate()))


def test_a_harness_that_does_not_wait_for_a_slow_worker_makes_its_episode_void(tmp_path: Path) -> None:
    """A validator replies at once: it would find that the episode goes on, and blame the worker for its speed."""
    source = source_of(tmp_path, IMPATIENT)
    host, task = LocalHost(source), source.task("train", 0)
    assert host.play("train", task, ["one"], episode=1).result().observations[0].text == "again"
    harness_has_ended()
    slow = host.play("train", task, ["one", "two"], known=1, episode=1).result()
    assert "did not wait for the reply" in slow.error
    assert slow.score is None


def test_an_episode_that_the_run_cuts_off_earns_nothing_also_where_its_harness_ended_meanwhile(tmp_path: Path) -> None:
    source = source_of(tmp_path, IMPATIENT)
    host, task = LocalHost(source), source.task("train", 0)
    host.play("train", task, ["one"], episode=1).result()
    harness_has_ended()
    slow = host.play("train", task, ["one"], known=1, score=True, episode=1).result()
    assert slow == Played((), Score(0.0))
    assert host.play("train", task, ["one"], score=True).result().score == slow.score


@pytest.mark.parametrize("second", ["two", "one"])
def test_requests_that_a_harness_sends_at_once_make_its_episode_void(tmp_path: Path, second: str) -> None:
    """Which one comes first is chance: it may be another one for the validator."""
    source = source_of(tmp_path, AT_ONCE.replace("SECOND", second))
    environment = environment_source(source, source.name).environment

    def play() -> None:
        state = environment.reset(1)
        until(lambda: state["run"].exchange.is_at_once)
        environment.step(state, "fine")

    with pytest.raises(TaskError, match="while another one waited"):
        play()


def post(endpoint: Endpoint, key: str, text: str, retry: int) -> socket.socket:
    """A connection that has sent a request and waits for its reply."""
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:1\r\nAuthorization: Bearer {key}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nx-stainless-retry-count: {retry}\r\n"
    connection = socket.create_connection(("127.0.0.1", int(endpoint.url.split(":")[2].split("/")[0])), 60)
    connection.sendall(head.encode() + b"\r\n" + body)
    return connection


@pytest.mark.parametrize("asks_again", [True, False])
def test_a_reply_goes_to_who_asked_again_after_a_connection_that_was_closed_and_to_nobody_is_void(
    asks_again: bool,
) -> None:
    endpoint = Endpoint()
    key, exchange = endpoint.open()
    gone = post(endpoint, key, "hi", 0)
    assert exchange.next(60) is not None
    gone.close()
    there = post(endpoint, key, "hi", 1) if asks_again else None
    if there is not None:
        until(lambda: exchange.waiting == 2)
    exchange.reply("well")
    if there is not None:
        heard = b""
        while b"well" not in heard:
            more = there.recv(1 << 16)
            assert more
            heard += more
        there.close()
    else:
        until(lambda: exchange.waiting == 0)
    exchange.end()
    if asks_again:
        assert exchange.next(60) is None
    else:
        with pytest.raises(TaskError, match="did not wait for the reply"):
            exchange.next(60)
    endpoint.close()


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
