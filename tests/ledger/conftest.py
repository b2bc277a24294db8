"""The same tests on SQLite and on a contract on a chain that is started for them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.ledger.interface import Ledger
from tests.conftest import chain_or_skip
from tests.support.ledgers import KEYS, evm_ledger, sqlite_ledger
from tests.support.servers.anvil import Anvil


@pytest.fixture(scope="session")
def chain() -> Iterator[Anvil]:
    """A chain on which everybody has money."""
    with chain_or_skip() as chain:
        for address in KEYS:
            chain.enrich(address)
        yield chain


@pytest.fixture
def terms() -> dict[str, int]:
    """What is other than in `make_terms`."""
    return {}


@pytest.fixture(params=["sqlite", "chain"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, terms: dict[str, int]) -> Iterator[Ledger]:
    """An empty ledger under the terms of `make_terms`."""
    make: dict[str, Callable[[], Ledger]] = {
        "sqlite": lambda: sqlite_ledger(tmp_path, **terms),
        "chain": lambda: evm_ledger(request.getfixturevalue("chain"), tmp_path, **terms),
    }
    ledger = make[request.param]()
    yield ledger
    ledger.close()
