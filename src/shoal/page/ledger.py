"""Page "ledger": every entry is verified by the page's own process, some at a time, as the file grows."""

import itertools
import threading
import time
from collections import deque
from pathlib import Path

from shoal.crypto.keys import checksummed
from shoal.errors import LedgerError
from shoal.ledger import chain
from shoal.ledger.contract_file import is_on_chain, remembered
from shoal.ledger.entry import Entry
from shoal.ledger.explain import sentence
from shoal.ledger.interface import totals_of
from shoal.ledger.state import State
from shoal.ledger.store import LEDGER_FILE, read_entries
from shoal.page.privacy import public_text

ENTRIES_AT_ONCE = 1000
"""Verified per look, about a sixth of a second; a reader of the file for no longer than that."""
SHOWN = 50


class LedgerFollower:
    """A history that grows with its file. The first bad entry ends it, and is named from then on.

    One thread verifies, others make documents: what is read together is read under `lock`, which the one holds for an
    entry at a time.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.lock = threading.RLock()
        self._stamp: tuple[int, int] | None = None
        self._behind = True
        self.history: chain.History | None = None
        self.recent: deque[Entry] = deque(maxlen=SHOWN)
        self.fault = ""
        self.looked = 0.0
        """When entries were last verified, in seconds since 1970."""

    @property
    def state(self) -> State | None:
        return self.history.state if self.history else None

    def refresh(self) -> bool:
        """Verifies the next entries; whether there were any."""
        path = self._run_dir / LEDGER_FILE
        if self.fault or is_on_chain(self._run_dir) or not path.is_file():
            return False
        stamp = _stamp(path)
        if stamp == self._stamp and not self._behind:
            return False
        before, self._stamp = self._number(), stamp
        try:
            with_first = read_entries(path, before + 1)
            for entry in itertools.islice(with_first, ENTRIES_AT_ONCE):
                with self.lock:
                    self._take(entry)
        except LedgerError as error:
            self.fault = public_text(error)
            return True
        found = self._number() - before
        self._behind = found == ENTRIES_AT_ONCE
        self.looked = time.time()
        return found > 0

    def _take(self, entry: Entry) -> None:
        if self.history is None:
            self.history = chain.begin(entry)
        else:
            chain.extend(self.history, entry)
        self.recent.append(entry)

    @property
    def is_behind(self) -> bool:
        return self._behind

    def _number(self) -> int:
        return self.history.number if self.history else -1


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time of the file and its write-ahead log, added up: either moves when an entry is written."""
    sizes = times = 0
    for name in (path, path.with_name(f"{path.name}-wal")):
        try:
            stat = name.stat()
        except OSError:
            continue
        sizes, times = sizes + stat.st_size, times + stat.st_mtime_ns
    return sizes, times


NOT_YET = "Nothing is entered yet, because the first step is still open, or the ledger is not here."
CHECKS = (
    "each entry names the hash of the one before",
    "its author's signature",
    "the coordinator's seal",
    "the rules: who may enter what, and what it does to every account",
    "heads that validators signed are this history's own",
)
READ_IT = (
    "This run's ledger is a contract on a chain, which this page neither calls nor verifies. Read it from there: RUN "
    "is the run's directory; to show entries and earnings, the coordinator's URL will do."
)


def contract_document(run_dir: Path, why: str, *commands: str) -> dict[str, object] | None:
    """Which contract is the run's ledger, without the address of the chain's node; None where the ledger is a file.

    `why`: what this page does not say, and the contract does; `commands` read it.
    """
    try:
        known = remembered(run_dir)
    except LedgerError as error:
        return {"why": f"{why} {public_text(error)}", "pairs": [], "commands": commands}
    if known is None:
        return None
    pairs = {
        "contract": known.contract,
        "number of the chain": str(known.chain),
        "created by transaction": known.created,
        "run": public_text(known.run),
    }
    return {"why": why, "pairs": list(pairs.items()), "commands": commands}


def ledger_document(follower: LedgerFollower, run_dir: Path) -> dict[str, object]:
    """Head, signatures, sums and the newest entries, and by whom what was verified; of a contract, how to read it."""
    commands = "shoal ledger verify RUN", "shoal ledger show RUN", "shoal earnings RUN"
    if (contract := contract_document(run_dir, READ_IT, *commands)) is not None:
        return {"kind": "contract", **contract}
    with follower.lock:
        return _file_document(follower)


def _file_document(follower: LedgerFollower) -> dict[str, object]:
    history = follower.history
    if history is None:
        return {"kind": "none", "why": follower.fault or NOT_YET}
    state, totals = history.state, totals_of(history.state)
    return {
        "kind": "file",
        "entries": history.number + 1,
        "head": history.last.hash,
        "fault": follower.fault,
        "checks": CHECKS,
        "behind": follower.is_behind,
        "verified_at": follower.looked,
        "coordinator": checksummed(state.coordinator),
        "cosigned": [
            {"validator": checksummed(who), "number": number} for who, number in sorted(history.cosigned.items())
        ],
        "totals": {
            "treasury": totals.treasury,
            "held": totals.held,
            "brought_in": totals.brought_in,
            "paid_out": totals.paid_out,
            "accounts": len(state.accounts),
            "batches": totals.batches,
            "unsettled": totals.unsettled,
            "clock": totals.clock,
            "closed": totals.closed,
            "finished": totals.finished,
        },
        "judges": [
            {
                "address": checksummed(judge.address),
                "standing": judge.standing,
                "judged": judge.judged,
                "refuted": judge.refuted,
                "misjudged": judge.misjudged,
                "missed": judge.missed,
            }
            for judge in state.judges.values()
        ],
        "recent": [_row(state, entry) for entry in reversed(follower.recent)],
    }


def _row(state: State, entry: Entry) -> dict[str, object]:
    author = entry.statement.author
    role = "coordinator" if author == state.coordinator else "validator" if author in state.judges else ""
    return {
        "number": entry.number,
        "time": entry.time / 1000,
        "author": author,
        "role": role,
        "act": public_text(sentence(entry.statement.act)),
        "hash": entry.hash,
    }
