"""The ledger on a page while its file is being verified: two threads, and one history."""

import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shoal.ledger.acts import Deposit
from shoal.page.ledger import LedgerFollower, ledger_document
from tests.support.ledgers import COORDINATOR, key_of, sqlite_ledger

ENTRIES = 400


@pytest.fixture
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching_often")
def test_a_document_is_made_of_one_moment_while_the_ledger_grows(tmp_path: Path) -> None:
    with closing(sqlite_ledger(tmp_path)) as ledger:
        nodes = (key_of(100 + number).address for number in range(ENTRIES))
        ledger.enter_all(COORDINATOR, [Deposit(id=node, node=node, amount=1) for node in nodes])
    follower = LedgerFollower(tmp_path)
    faults: list[BaseException] = []
    heads: list[tuple[object, object]] = []
    over = threading.Event()

    def look() -> None:
        try:
            while not over.is_set():
                if (found := ledger_document(follower, tmp_path))["kind"] == "file":
                    recent = found["recent"]
                    assert isinstance(recent, list)
                    heads.append((found["head"], recent[0]["hash"]))
        except BaseException as error:
            faults.append(error)

    looking = threading.Thread(target=look)
    looking.start()
    while follower.refresh():
        pass
    over.set()
    looking.join()
    assert faults == []
    assert all(head == newest for head, newest in heads)
    assert ledger_document(follower, tmp_path)["entries"] == ENTRIES + 1
