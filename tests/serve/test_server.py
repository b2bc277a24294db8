"""The endpoint as clients see it: OpenAI's own package gets what it expects, and a hostile request hurts nobody."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from shoal.errors import ConfigError
from shoal.roles.model_server import ListenOptions, ServeOptions
from shoal.rundir import RunDir
from shoal.serve.http_limits import MAX_BODY
from tests.support.model_in_process import Served, chat_run, publish, serving_model
from tests.support.until import until

HI: Any = [{"role": "user", "content": "hi"}]
PACE_S = 0.02


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return chat_run(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def served(run: RunDir) -> Iterator[Served]:
    with serving_model(run) as found:
        yield found


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=2, timeout=120) as found:
        yield found


def post(served: Served, path: str, body: object, **headers: str) -> httpx2.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    told = {"Content-Type": "application/json", **headers}
    return httpx2.post(f"{served.url}{path}", content=data, headers=told, timeout=120)


def test_models_are_the_newest_and_every_version(client: openai.OpenAI, served: Served) -> None:
    assert [model.id for model in client.models.list()] == ["test", "test@1", "test@0"]
    assert client.models.retrieve("test@0").created > 0
    with pytest.raises(openai.NotFoundError, match="test@7"):
        client.models.retrieve("test@7")


def test_a_chat_is_answered_by_the_newest_version_and_the_seed_fixes_it(client: openai.OpenAI) -> None:
    def ask(model: str, seed: int) -> tuple[str, str | None, str | None]:
        told = client.chat.completions.create(model=model, messages=HI, seed=seed, max_tokens=12)
        assert told.usage is not None
        assert told.usage.completion_tokens <= 12
        return told.model, told.choices[0].message.content, told.system_fingerprint

    first = ask("test", 5)
    assert first[0] == "test@1"
    assert ask("test@1", 5) == first
    assert ask("test@1", 6)[1] != first[1]
    assert ask("test@0", 5)[1:] != first[1:]


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    settings: Any = {"model": "test", "messages": HI, "seed": 9, "max_tokens": 40, "n": 3, "temperature": 0.9}
    whole = client.chat.completions.create(**settings)
    texts, finishes = ["", "", ""], dict[int, str]()
    usage: Any = None
    for chunk in client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                finishes[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert finishes == {choice.index: choice.finish_reason for choice in whole.choices}
    assert len(set(texts)) == 3
    assert usage == whole.usage


def test_completions_take_texts_and_tokens_and_give_log_probs_and_token_ids(client: openai.OpenAI) -> None:
    more: Any = {"return_token_ids": True}
    text = client.completions.create(
        model="test", prompt="ab", max_tokens=5, temperature=0, logprobs=0, extra_body=more
    )
    (choice,) = text.choices
    fields = choice.model_dump()
    assert choice.logprobs is not None
    assert len(choice.logprobs.token_logprobs or []) == len(fields["token_ids"]) <= 5
    assert all(logp is not None and logp <= 0 for logp in choice.logprobs.token_logprobs or [])
    again = client.completions.create(
        model="test", prompt=[fields["prompt_token_ids"]] * 2, max_tokens=5, temperature=0, extra_body=more
    )
    assert [other.model_dump()["token_ids"] for other in again.choices] == [fields["token_ids"]] * 2
    assert client.completions.create(model="test", prompt="ab").usage is not None


def test_an_answer_ends_before_its_stop_string_and_the_engine_with_it(client: openai.OpenAI, served: Served) -> None:
    settings: Any = {"model": "test", "messages": HI, "seed": 4, "max_tokens": 60}
    whole = client.chat.completions.create(**settings).choices[0].message.content or ""
    stop = whole[20:22]
    cut = client.chat.completions.create(**settings, stop=[stop])
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.usage is not None
    assert cut.usage.completion_tokens < 60
    streamed = client.chat.completions.create(**settings, stop=stop, stream=True)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert said == whole[: whole.index(stop)]
    served.wait_until_idle()


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "does not exist"),
        ({"model": "test@99"}, openai.NotFoundError, "does not exist"),
        ({"model": "test@-1"}, openai.NotFoundError, "does not exist"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "exceed the 1024"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, openai.BadRequestError, "exceed the 1024"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, openai.BadRequestError, "a user begins"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError, "tools"),
        ({"logprobs": True, "top_logprobs": 3}, openai.BadRequestError, "top_logprobs"),
    ],
)
def test_what_is_not_supported_is_an_error_that_the_client_understands(
    client: openai.OpenAI, change: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        client.chat.completions.create(**{"model": "test", "messages": HI, **change})


def test_hostile_bodies_are_refused_and_the_server_goes_on(served: Served) -> None:
    chat = "/v1/chat/completions"
    huge = post(served, chat, b'{"model": "' + b"x" * MAX_BODY + b'"}')
    assert (huge.status_code, huge.json()["error"]["code"]) == (413, "body_too_large")
    assert post(served, chat, b"[" * 100_000).json()["error"]["code"] == "invalid_json"
    assert post(served, chat, b'{"model": "test", "temperature": NaN}').status_code == 400
    assert post(served, chat, {"model": "test", "messages": HI}, **{"Content-Type": "text/plain"}).status_code == 415
    assert post(served, chat, {"model": "test", "messages": HI}, Host="evil.example").status_code == 421
    assert post(served, "/v1/embeddings", {}).json()["error"]["code"] == "unknown_endpoint"
    assert httpx2.get(f"{served.url}{chat}").status_code == 405
    assert httpx2.get(f"{served.url}/health").json()["status"] == "ok"
    said = post(served, "/v1/completions", {"model": "test", "prompt": [2**40], "max_tokens": 1}).json()["error"]
    assert said["param"] == "prompt"


def raw_request(served: Served, body: object) -> socket.socket:
    """A connection on which a completion was asked for, and nothing is read yet."""
    data = json.dumps(body).encode()
    host, port = served.url.removeprefix("http://").split(":")
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that a reader that stops is noticed
    line.settimeout(60)
    line.connect((host, int(port)))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    line.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return line


def raw_stream(served: Served, tokens: int) -> socket.socket:
    """A connection on which an answer is streamed, and that has read its first bytes."""
    line = raw_request(served, {"model": "test", "messages": HI, "max_tokens": tokens, "stream": True, "n": 4})
    assert b"200" in line.recv(200)
    return line


@pytest.fixture
def steps(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry per step of the engine; a long answer takes seconds, so that a client is surely gone before its end."""
    return paced(served, monkeypatch)


def paced(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    engine, made = served.serving.desk._engine, list[int]()
    step = engine.step

    def counted() -> list[Any]:
        made.append(1)
        time.sleep(PACE_S)
        return step()

    monkeypatch.setattr(engine, "step", counted)
    return made


def test_a_client_that_goes_away_stops_its_generation(served: Served, steps: list[int]) -> None:
    line = raw_stream(served, 900)
    until(lambda: steps != [], 60.0)
    assert not served.idle
    line.close()
    served.wait_until_idle()
    assert 0 < len(steps) < 800


def test_a_client_that_goes_away_while_it_waits_for_a_whole_answer_stops_it(served: Served, steps: list[int]) -> None:
    line = raw_request(served, {"model": "test", "messages": HI, "max_tokens": 900, "n": 8})
    until(lambda: steps != [], 60.0)
    line.close()
    served.wait_until_idle()
    assert 0 < len(steps) < 800


def test_a_slow_reader_delays_nobody(served: Served, client: openai.OpenAI) -> None:
    line = raw_stream(served, 900)  # which reads no more
    try:
        told = client.chat.completions.create(model="test", messages=HI, max_tokens=4)
        assert told.usage is not None
        served.wait_until_idle(120)
    finally:
        line.close()


def test_requests_at_the_same_time_share_the_engine_and_answers_stay_their_own(client: openai.OpenAI) -> None:
    def ask(seed: int) -> str | None:
        told = client.chat.completions.create(model="test@0", messages=HI, seed=seed, max_tokens=20)
        return told.choices[0].message.content

    alone = [ask(seed) for seed in range(4)]
    together: dict[int, str | None] = {}
    threads = [threading.Thread(target=lambda n=n: together.update({n: ask(n)})) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [together[seed] for seed in range(4)] == alone


def test_a_queue_that_is_full_says_so(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_model(run, ServeOptions(engine="torch", batch=2, queue=4)) as served:
        paced(served, monkeypatch)
        line = raw_stream(served, 900)
        full = post(served, "/v1/completions", {"model": "test", "prompt": "a"})
        assert (full.status_code, full.json()["error"]["type"]) == (429, "rate_limit_error")
        assert full.headers["retry-after"]
        line.close()
        served.wait_until_idle()
        assert post(served, "/v1/completions", {"model": "test", "prompt": "a"}).status_code == 200


def test_a_new_version_of_a_live_run_answers_next_and_a_stream_goes_on(tmp_path: Path) -> None:
    run = chat_run(tmp_path)
    with serving_model(run) as served:
        line = raw_stream(served, 300)
        publish(run, 2)
        told = post(served, "/v1/completions", {"model": "test", "prompt": "a", "max_tokens": 2}).json()
        assert told["model"] == "test@2"
        said = b""
        while b"[DONE]" not in said:
            more = line.recv(1 << 16)
            assert more
            said += more
        line.close()
        assert b"test@2" not in said
        assert b"test@1" in said


def test_a_pinned_version_is_the_only_one(run: RunDir) -> None:
    with serving_model(run, ServeOptions(version=0, engine="torch")) as served:
        assert [entry["id"] for entry in httpx2.get(f"{served.url}/v1/models").json()["data"]] == ["test", "test@0"]
        told = post(served, "/v1/completions", {"model": "test", "prompt": "a", "max_tokens": 2}).json()
        assert told["model"] == "test@0"
        assert post(served, "/v1/completions", {"model": "test@1", "prompt": "a"}).status_code == 404


def test_a_key_is_asked_of_every_request_where_there_is_one(run: RunDir) -> None:
    with serving_model(run, public=True, api_key="secret") as served:
        assert httpx2.get(f"{served.url}/v1/models").status_code == 401
        assert httpx2.get(f"{served.url}/v1/models", headers={"Authorization": "Bearer Secret"}).status_code == 401
        own = {"Authorization": "Bearer secret", "Host": "model.example"}
        assert httpx2.get(f"{served.url}/v1/models", headers=own).status_code == 200


def test_other_machines_are_served_only_if_that_is_said_and_only_with_a_key() -> None:
    with pytest.raises(ConfigError, match="not loopback"):
        ListenOptions(host="0.0.0.0").check()
    with pytest.raises(ConfigError, match="SHOAL_API_KEY"):
        ListenOptions(host="0.0.0.0", public=True).check()
    ListenOptions(host="0.0.0.0", public=True, api_key="x").check()


def test_serving_writes_nothing_into_the_run(run: RunDir, served: Served) -> None:
    def seen() -> dict[str, tuple[int, int]]:
        files = [path for path in run.path.rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}

    before = seen()
    assert post(served, "/v1/completions", {"model": "test@0", "prompt": "a", "max_tokens": 2}).status_code == 200
    assert seen() == before
