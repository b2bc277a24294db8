"""Reads a run's ledger, from a file or from a chain: all entries verified, and the resulting state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import LedgerError
from shoal.ledger.chain import History, verify
from shoal.ledger.contract_file import CONTRACT_FILE, is_on_chain, remembered
from shoal.ledger.entry import Entry
from shoal.ledger.export import read_file
from shoal.ledger.interface import Line
from shoal.ledger.state import State
from shoal.ledger.store import LEDGER_FILE


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that a ledger says."""

    state: State
    lines: Sequence[Line]
    time_of: Callable[[Line], int]
    """Milliseconds since 1970."""


def ledger_file(path: Path) -> Path:
    """The ledger of a run's directory, or the file itself."""
    if is_on_chain(path):
        raise LedgerError(
            f"run {path}: its ledger is a contract ({path / CONTRACT_FILE} says which), not a file; read it from the "
            "chain"
        )
    return path / LEDGER_FILE if path.is_dir() else path


def read_record(path: Path) -> Record:
    """Of a run's directory, a ledger.db or an export."""
    if is_on_chain(path):
        from shoal.ledger.evm.deployed import reading

        known = remembered(path)
        assert known is not None
        ledger = reading(known)
        return Record(ledger.look(lambda state: state), ledger.lines(), ledger.time_of)
    entries = list(read_file(ledger_file(path)))
    return record_of(verify(entries), entries)


def record_of(history: History, entries: Sequence[Entry]) -> Record:
    lines = [Line(e.number, e.statement.author, e.statement.act, e.hash, e.time) for e in entries]
    return Record(history.state, lines, lambda line: line.at)
