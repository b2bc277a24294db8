"""The run's table of honest rates in the database: made when the run starts, and loosened by its owner.

Functions of a transaction; each decides before it writes.
"""

from sqlalchemy import Connection

from shoal.config import RunConfig
from shoal.coordinator.db.database import read_fact, write_fact
from shoal.crypto.keys import Key
from shoal.errors import ConfigError
from shoal.protocol.rates.rates_file import Architecture, RatesFile
from shoal.protocol.rates.rates_table import RatesTable, SignedRates
from shoal.protocol.refusal import Refusal

FACT = "rates"


def opened(db: Connection, config: RunConfig, key: Key, architecture: Architecture | None) -> SignedRates:
    """The table as it was left, or the one that a run of this config starts with."""
    stored = read_fact(db, FACT)
    if stored is not None:
        return SignedRates.model_validate_json(stored)
    return _store(db, SignedRates.sign(config.name, RatesTable.first(config.audit, architecture), key))


def loosen(
    db: Connection, key: Key, config: RunConfig, version: int, added: RatesFile, architecture: Architecture | None
) -> tuple[SignedRates, bool]:
    """The table with rates added as this version, and whether that is new. Idempotent: the same again is not.

    Nothing is ever taken out again, and no validator starts with rates of another model than the run's, whose
    `architecture` is this where it is known here.
    """
    stored = SignedRates.model_validate_json(read_fact(db, FACT) or "")
    table = stored.rates
    if version == table.version and table.additions[-1:] == (added,):
        return stored, False
    if version != table.version + 1:
        raise Refusal(
            "taken",
            f"honest rates version {version}: the table has version {table.version}, so the next is "
            f"{table.version + 1}; ask for it again",
        )
    try:
        name = f"honest rates version {version}"
        loosened = table.loosened(added, name, architecture, proofs=config.audit.proofs)
    except ConfigError as error:
        raise Refusal("not-allowed", str(error)) from None
    return _store(db, SignedRates.sign(config.name, loosened, key)), True


def _store(db: Connection, signed: SignedRates) -> SignedRates:
    write_fact(db, FACT, signed.model_dump_json())
    return signed
