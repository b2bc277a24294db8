"""Fixtures with a coordinator in this process: the same tests on SQLite and on a PostgreSQL that is started for them.

`tests/conftest.py` imports the databases and worlds, so that one PostgreSQL serves every folder; a folder whose tests
start and end many servers imports the two autouse fixtures into its own conftest.
"""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from shoal.errors import BenchError
from tests.support.coordinator_in_process import World, world_at
from tests.support.servers.postgres import postgres

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def impatient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for files that do not come."""
    monkeypatch.setattr("shoal.client.rollout_store.LONG_POLL_S", 0.02)


@pytest.fixture(autouse=True, scope="session")
def prompt_servers() -> Iterator[None]:
    """uvicorn looks ten times a second whether it is to end, and these tests end it hundreds of times."""

    class Asyncio:
        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds / 10)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.server.asyncio", Asyncio())
        yield


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with ExitStack() as stack:
        try:
            url = stack.enter_context(postgres(durable=False))
        except BenchError as error:
            pytest.skip(f"PostgreSQL is not available: {error}")
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database; of PostgreSQL a schema in one, which takes a hundredth of the time."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'state.db'}"
    server: str = request.getfixturevalue("postgres_url")
    name = f"test_{next(_numbers)}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{server}/postgres?options=-csearch_path%3D{name}"


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[World]:
    with world_at(tmp_path, database_url) as world:
        yield world


@pytest.fixture
def small_world(tmp_path: Path) -> Iterator[World]:
    """On SQLite alone, for what has nothing to do with the database."""
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}") as world:
        yield world
