"""Requests share an engine and each comes from one version; a new version waits for those that are running."""

import io
import queue
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from shoal.errors import ModelError
from shoal.generate.decoding import Decoding
from shoal.generate.engine import Completion, Request
from shoal.openai_api.errors import ApiError
from shoal.roles.model_server import ServeOptions, desk_of
from shoal.rundir import RunDir
from shoal.serve.desk import Began, Desk, Ended, News, Ticket, Tokens
from shoal.wait import wait_until
from tests.support.model_in_process import chat_run, publish

WAIT_S = 60.0
News_ = queue.SimpleQueue[News]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return chat_run(tmp_path)


@contextmanager
def desk(run: RunDir, version: int | None = None, waiting: int = 64) -> Iterator[Desk]:
    options = ServeOptions(version, "torch", None, 8, waiting)
    with desk_of(run, options, Console(file=io.StringIO())) as (found, _, _):
        yield found


def ask(at: Desk, number: int | None, tokens: int, count: int = 1, seed: int = 3) -> tuple[Ticket, News_]:
    heard: News_ = queue.SimpleQueue()
    one = Request((7, 8, 9), seed, 0, tokens, decoding=Decoding(1.0), streamed=True)
    ticket = Ticket(number, [one] * count, heard.put)
    at.take(ticket)
    return ticket, heard


def wait_for(heard: News_, kind: type) -> News:
    while not isinstance(news := heard.get(timeout=WAIT_S), kind):
        assert not isinstance(news, ApiError), news
    return news


def whole(heard: News_) -> tuple[int, list[int]]:
    """The version that answered, and the tokens."""
    version, tokens = -1, list[int]()
    while True:
        match heard.get(timeout=WAIT_S):
            case Began(found):
                version = found.number
            case Tokens(_, more, _):
                tokens += more
            case Ended():
                return version, tokens
            case ApiError() as error:
                raise error


@contextmanager
def held(at: Desk) -> Iterator[None]:
    """The engine begins no step inside the block."""
    step, go = at._engine.step, threading.Event()

    def late() -> list[Completion]:
        assert go.wait(WAIT_S)
        return step()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(at._engine, "step", late)
        try:
            yield
        finally:
            go.set()


def test_a_stream_goes_on_with_its_version_and_the_next_request_gets_the_new_one(run: RunDir) -> None:
    with desk(run) as at:
        _, alone = ask(at, None, 300)
        expected = whole(alone)
        _, long = ask(at, None, 300)
        began, first = wait_for(long, Began), wait_for(long, Tokens)
        publish(run, 2)
        _, short = ask(at, None, 4)
        assert isinstance(began, Began)
        assert isinstance(first, Tokens)
        assert (began.version.number, [*first.tokens, *whole(long)[1]]) == expected
        assert whole(short)[0] == 2


def test_requests_for_any_versions_are_answered_in_turn_and_each_by_the_one_it_names(run: RunDir) -> None:
    with desk(run) as at:
        asked = [(number, ask(at, number, 6)[1]) for number in (0, 1, 0, None, 1, 0)]
        found = [(number, whole(heard)) for number, heard in asked]
    assert [version for _, (version, _) in found] == [0, 1, 0, 1, 1, 0]
    assert len({tuple(tokens) for _, (version, tokens) in found if version == 0}) == 1
    assert len({tuple(tokens) for _, (_, tokens) in found}) == 2


def test_a_version_that_was_asked_for_by_its_number_stays_for_the_next_question(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.serve.desk.LOOK_S", 0.01)
    with desk(run) as at:
        looks: list[None] = []
        load_ahead = at._load_ahead

        def counted() -> None:
            load_ahead()
            looks.append(None)

        monkeypatch.setattr(at, "_load_ahead", counted)

        def stays_on(number: int) -> None:
            before = len(looks)
            wait_until(lambda: len(looks) > before + 2, WAIT_S, "the desk does not look about", pause_s=0.01)
            assert at.loaded is not None
            assert at.loaded.number == number

        assert whole(ask(at, 0, 4)[1])[0] == 0
        stays_on(0)
        assert whole(ask(at, None, 4)[1])[0] == 1
        publish(run, 2)
        stays_on(2)


def test_what_nobody_waits_for_is_stopped_and_its_place_is_free(run: RunDir) -> None:
    with desk(run, waiting=8) as at:
        with held(at):
            ticket, heard = ask(at, None, 900, count=8)
            wait_for(heard, Began)
            wait_until(lambda: sum(at.load) == 8, WAIT_S, "not all of them are running", pause_s=0.01)
            with pytest.raises(ApiError, match="would exceed 8") as full:
                ask(at, None, 4)
        assert full.value.status == 429
        wait_for(heard, Tokens)
        at.drop(ticket)
        until = time.monotonic() + WAIT_S
        while at.load != (0, 0):
            assert time.monotonic() < until
        assert len(whole(ask(at, None, 4)[1])[1]) == 4


def test_who_drops_an_answer_may_ask_again_at_once_and_hears_the_next_one_when_it_has_ended(run: RunDir) -> None:
    with desk(run, waiting=1) as at:
        with held(at):
            dropped, heard = ask(at, None, 900)
            wait_for(heard, Began)
            at.drop(dropped)
            ticket, again = ask(at, None, 4)
            at.drop(ticket)
            _, last = ask(at, None, 4)
            with pytest.raises(ApiError, match="1 answers are running or waiting"):
                ask(at, None, 4)
        assert len(whole(last)[1]) == 4
        assert again.empty()


def test_a_version_that_is_damaged_refuses_its_own_requests_and_no_others(run: RunDir) -> None:
    file = next((run.path / "weights" / "v000001").glob("*.safetensors"))
    file.unlink()  # may be a link of another version's file
    file.write_bytes(b"damaged")
    with desk(run) as at:
        with pytest.raises(ApiError, match="version 1 cannot be loaded") as refused:
            whole(ask(at, 1, 4)[1])
        assert refused.value.status == 503
        assert whole(ask(at, 0, 4)[1])[0] == 0


def test_a_version_that_is_gone_when_its_turn_comes_is_not_found(run: RunDir) -> None:
    with desk(run) as at:
        with held(at):
            _, long = ask(at, 1, 200)
            wait_for(long, Began)
            _, late = ask(at, 0, 4)
            shutil.move(run.path / "weights" / "v000000", run.path / "weights" / "gone")
        assert len(whole(long)[1]) > 0
        with pytest.raises(ApiError, match="does not exist"):
            whole(late)


def test_an_engine_that_fails_is_told_to_those_it_served_and_serves_the_next(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk(run) as at:
        whole(ask(at, None, 2)[1])
        step = at._engine.step

        def failing() -> list[object]:
            monkeypatch.setattr(at._engine, "step", step)
            raise ModelError("logits are not finite")

        monkeypatch.setattr(at._engine, "step", failing)
        with pytest.raises(ApiError, match="logits are not finite") as failed:
            whole(ask(at, None, 4)[1])
        assert failed.value.status == 500
        assert len(whole(ask(at, None, 4)[1])[1]) == 4


def test_closing_tells_those_who_wait(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with desk(run) as at:
        step = at._engine.step

        def slow() -> list[Completion]:
            time.sleep(0.02)  # the answer takes seconds, and is surely not whole yet
            return step()

        monkeypatch.setattr(at._engine, "step", slow)
        _, heard = ask(at, None, 900)
        wait_for(heard, Tokens)
        at.close()
        with pytest.raises(ApiError, match="shutting down"):
            whole(heard)
        with pytest.raises(ApiError, match="shutting down"):
            ask(at, None, 1)
