"""The same tests on SQLite and on a contract on a chain that is started for them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shoal.bench.anvil import Anvil, anvil
from shoal.errors import BenchError
from shoal.ledger.interface import Ledger

from .world import KEYS, evm_ledger, sqlite_ledger


@pytest.fixture(scope="session")
def chain() -> Iterator[Anvil]:
    """A chain on which everybody has money."""
    with ExitStack() as stack:
        try:
            chain = stack.enter_context(anvil())
        except BenchError as error:
            pytest.skip(f"no anvil here, and none to be had: {error}")
        for address in KEYS:
            chain.enrich(address)
        yield chain


@pytest.fixture(params=["sqlite", "chain"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """An empty ledger under the terms of `make_terms`."""
    make: dict[str, Callable[[], Ledger]] = {
        "sqlite": lambda: sqlite_ledger(tmp_path),
        "chain": lambda: evm_ledger(request.getfixturevalue("chain"), tmp_path),
    }
    ledger = make[request.param]()
    yield ledger
    ledger.close()
