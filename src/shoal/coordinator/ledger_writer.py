"""Ledger writer: drains the outbox into the run's ledger, moves its clock, and settles batches.

What is to be entered is noted in the database with the change itself, and entered afterwards until it is done. An act
has a name, and entering it twice is entering it once: the ledger may be slow or down, nothing is lost or counts twice.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection

from shoal.config import LedgerConfig, RunConfig
from shoal.coordinator import nodes
from shoal.coordinator.db.database import Database, read_fact, write_fact
from shoal.coordinator.outbox import CLOSE, noted, told
from shoal.coordinator.policy import Terms
from shoal.coordinator.retention import first_open
from shoal.coordinator.vote_deadline import Patience, first_unsettled
from shoal.crypto.keys import Key
from shoal.errors import LedgerError, StorageError
from shoal.files import write_whole
from shoal.ledger.acts import NO_HASH, Act, Close, Fund, Leaf, Refund, Settle, Work, beacons, plants_hash
from shoal.ledger.acts import Terms as LedgerTerms
from shoal.ledger.contract_file import is_on_chain
from shoal.ledger.court import is_due
from shoal.ledger.entry import Statement
from shoal.ledger.interface import Ledger, Standing, standing_of
from shoal.ledger.jury import draw
from shoal.ledger.state import State, in_standing
from shoal.ledger.store import SqliteLedger

T = TypeVar("T")
# Steps that a run's chain of beacons is long enough for.
MAX_STEPS = 1 << 16
GAS_EVERY_S = 10.0


class LedgerWriter:
    """Enters on the ledger what the coordinator has decided. The only writer of a run's ledger that is a file."""

    def __init__(
        self, path: Path, ledger: Ledger, key: Key, config: LedgerConfig, links: Sequence[bytes], wait_s: float
    ) -> None:
        self._path = path
        self._began = time.monotonic()
        self._ledger = ledger
        self._key = key
        self.config = config
        """With the contract, where the ledger is one."""
        self._beacons = links
        self._seen: State | None = None
        self._open = 0  # batches before this one are settled in the state that was seen
        self._begun = False
        self._gas_at = 0.0
        self._patience = Patience(wait_s)

    @classmethod
    def open(cls, path: Path, key: Key, config: RunConfig, terms: Terms) -> "LedgerWriter":
        """The ledger of a run in a file, or the contract that its config names, begun if there is none."""
        links = run_beacons(key, config.name)
        law, wanted, is_known = ledger_terms(config, key, terms, links[0]), config.ledger, is_on_chain(path.parent)
        if not wanted.rpc and is_known:
            raise LedgerError(f"run {path.parent}: its ledger is a contract; set ledger.rpc to a node of its chain")
        if not wanted.rpc:
            writer = cls(path, SqliteLedger.open(path, key, config.name, law), key, wanted, links, config.patience_s)
        else:
            from shoal.ledger.evm.deployed import contract_of  # needs more packages than a file

            ledger = contract_of(
                path.parent,
                key,
                config.name,
                law,
                rpc=wanted.rpc,
                contract=wanted.contract,
                created=wanted.created,
                confirmations=wanted.confirmations,
            )
            place = {"contract": ledger.address, "created": ledger.created}
            writer = cls(path, ledger, key, wanted.model_copy(update=place), links, config.patience_s)
        if not is_known:  # else its chain may be away
            writer._begin()
        return writer

    def _begin(self) -> None:
        if not self._begun:
            self._enter([Fund(id="treasury", amount=self.config.fund)])
            self._begun = True

    def stop(self) -> None:
        """Ends what waits for the ledger."""
        self._ledger.stop()

    def close(self) -> None:
        """Also notes what the ledger took of the coordinator's time, beside it."""
        self._ledger.close()
        took = {"spent_s": self._ledger.spent_s, "wall_s": time.monotonic() - self._began}
        with suppress(StorageError):  # a full disk must not hide why the coordinator ends
            write_whole(self._path.with_suffix(".json"), json.dumps(took).encode())

    def keep(self, database: Database) -> None:
        """Enters what was noted, and settles what was judged. Not from the database's own thread.

        Whatever goes wrong on the way, what was not entered stays noted.
        """
        try:
            self._ledger.catch_up()
            self._begin()
            self.look(self._patience.look)
            self._tell(database)
            self._settle(database)
        except BaseException:
            self._patience.pause()
            raise
        if time.monotonic() >= self._gas_at:
            self._gas_at = time.monotonic() + GAS_EVERY_S
            self._ledger.give_gas(self._key, self.config.gas)

    def _tell(self, database: Database) -> None:
        """Enters what was noted, in order, up to a step that has to wait for validators."""
        for number, kind, body in noted(database):
            tree = json.loads(body)
            if kind == CLOSE:
                if not self._close(database):
                    return
            elif self._must_wait(database, tree["step"]):
                return
            else:
                self._enter([self._work(database, tree)])
            told(database, number)

    def _close(self, database: Database) -> bool:
        """Ends the ledger of a run that is over: empty steps close the last windows, then the rest of the treasury goes
        back to the run's owner. Whether that is done; validators may be yet to speak."""
        if not self.look(lambda state: state.closed):
            self._enter([Close()])
        while True:
            self._settle(database)
            finished, batch, step = self.look(lambda state: (state.finished, len(state.batches), len(state.links)))
            if finished:
                break
            if self._must_wait(database, step):
                return False
            self._enter([Work(batch=batch, step=step, leaves=(), beacon=self._beacons[step + 1].hex())])
        if self.look(lambda state: state.funded.get(self._key.address, 0) and state.treasury > state.forfeited):
            self._enter([Refund()])
        return True

    def _must_wait(self, database: Database, step: int) -> bool:
        present = database.ask(nodes.validators_present)  # first: the database's thread may wait for the ledger's
        return self.look(lambda state: self._patience.holds(state, step, present))

    @property
    def arbiter(self) -> str:
        return self.config.arbiter or self._key.address

    def take(self, statement: Statement) -> bool:
        """Enters what somebody else signed; False if it was there already. Refused says which rule it breaks."""
        return self._ledger.take(statement)

    def standing(self, node: str) -> Standing | None:
        """As of when the ledger was asked last; None for a node that it does not know, or if it was never asked."""
        try:
            return self.look(lambda state: standing_of(state, node))
        except LedgerError:
            return None

    def look(self, reader: Callable[[State], T]) -> T:
        """Reads the state while nothing is entered."""
        return self._ledger.look(reader)

    def first_open(self) -> int:
        """The first step with a verdict that can still be challenged; 0 while the ledger cannot be asked."""
        try:
            return self.look(first_open)
        except LedgerError:
            return 0

    def first_unsettled(self) -> int:
        """The first step on which validators may be yet to speak; 0 while the ledger cannot be asked."""
        try:
            return self.look(first_unsettled)
        except LedgerError:
            return 0

    def stored_lines(self, first: int, max_bytes: int) -> list[str]:
        """Entries from a number on, each a JSON string; at least one if there is one."""
        return self._ledger.stored_lines(first, max_bytes)

    def _work(self, database: Database, noted: dict[str, Any]) -> Work:
        """What is entered for a batch that was noted."""
        files = tuple(Leaf.model_validate(leaf) for leaf in noted["leaves"])
        batch, beacon = noted["batch"], self._beacons[noted["step"] + 1].hex()
        plants = NO_HASH
        if letters := self._letters(database, batch, beacon, len(files), noted.get("plants", [])):
            plants = plants_hash(self._ledger.run, batch, letters, self._salt(batch))
        return Work(batch=batch, step=noted["step"], leaves=files, beacon=beacon, plants=plants)

    def _letters(
        self, database: Database, batch: int, beacon: str, files: int, planted: Sequence[tuple[str, Sequence[str]]]
    ) -> str:
        """What each file of a batch was planted as, also if none was: nobody sees in which batches a lie is safe.

        A sample counts where everybody who is drawn has judged it: a validator that was away is not taken for a liar.
        The commitment is written down first, so that it is opened as it was, whichever process is killed meanwhile.
        """
        if not self.config.plants or not files:
            return ""

        jury = self.look(lambda state: set(draw(beacon, in_standing(state), state.terms.drawn)))
        found = "".join(letter if jury <= set(judges) else "." for letter, judges in planted) or "." * files

        def note(db: Connection) -> str:
            if (known := read_fact(db, f"plants {batch}")) is None:
                write_fact(db, f"plants {batch}", known := found)
            return known

        return database.ask(note)

    def _salt(self, batch: int) -> str:
        """The same after a restart, and nobody else's to know."""
        secret = f"shoal plants\n{self._ledger.run}\n{batch}\n{self._key.export()}"
        return hashlib.sha256(secret.encode()).hexdigest()

    def _enter(self, acts: Sequence[Act]) -> None:
        self._ledger.enter_all(self._key, acts)

    def _settle(self, database: Database) -> None:
        """Settles every batch whose validators have all said what they found, or were given long enough."""

        def due(state: State) -> list[tuple[int, bool]]:
            if state is not self._seen:  # a chain that was reorganised may have unsettled something
                self._seen, self._open = state, 0
            while self._open < len(state.batches) and state.batches[self._open].is_closed:
                self._open += 1
            batches = [batch for batch in state.batches[self._open :] if is_due(state, batch)]
            return [(batch.number, batch.plants != NO_HASH) for batch in batches]

        self._enter([self._opened(database, n) if planted else Settle(batch=n) for n, planted in self.look(due)])

    def _opened(self, database: Database, batch: int) -> Settle:
        letters = database.ask(lambda db: read_fact(db, f"plants {batch}")) or ""
        return Settle(batch=batch, plants=letters, salt=self._salt(batch))


def run_beacons(key: Key, run: str) -> tuple[bytes, ...]:
    """The chain from which validators are drawn: the same after a restart, and nobody else can compute it."""
    return beacons(hashlib.sha256(f"shoal beacons\n{run}\n{key.export()}".encode()).digest(), MAX_STEPS)


def ledger_terms(config: RunConfig, key: Key, terms: Terms, beacon: bytes) -> LedgerTerms:
    """The terms of a run's ledger: most are settings of its config, under the same names."""
    from_others = {
        "arbiter": config.ledger.arbiter or key.address,
        "validators": tuple(sorted(terms.validators)),
        "leases": config.swarm.leases,
        "ban_after": config.audit.strikes,
        "beacon": beacon.hex(),
    }
    return LedgerTerms(**config.ledger.model_dump(include=set(LedgerTerms.model_fields)) | from_others)
