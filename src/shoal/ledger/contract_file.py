"""Which contract is the ledger of a run, as the run's directory says: read without the packages that a chain needs."""

from pathlib import Path

from pydantic import ValidationError

from shoal.errors import LedgerError
from shoal.files import read_regular
from shoal.ledger.acts import Address, Record, TxHash

CONTRACT_FILE = "contract.json"


class Deployed(Record):
    """A contract and where it is."""

    run: str
    chain: int
    contract: Address
    created: TxHash
    """The transaction that created it."""
    rpc: str


def is_on_chain(path: Path) -> bool:
    """Whether a run's directory names a contract. Its package is asked for only then: a file needs none."""
    return (path / CONTRACT_FILE).is_file()


def remembered(run_dir: Path) -> Deployed | None:
    """The contract that a run's directory names; None where the ledger is a file."""
    file = run_dir / CONTRACT_FILE
    try:
        return Deployed.model_validate_json(read_regular(file))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise LedgerError(f"{file}: does not say which contract the run's ledger is ({error}); restore it") from None
