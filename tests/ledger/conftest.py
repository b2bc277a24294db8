"""The same tests on SQLite and on a contract on a chain."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.ledger.interface import Ledger

from .world import sqlite_ledger


@pytest.fixture(params=["sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """An empty ledger under the terms of `make_terms`."""
    ledger = sqlite_ledger(tmp_path)
    yield ledger
    ledger.close()
