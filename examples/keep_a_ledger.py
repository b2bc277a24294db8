"""The ledger alone: entries that are signed, linked and verified by anybody who has the file.

    python examples/keep_a_ledger.py

A history that was changed afterwards is refused, and the error names the first bad entry.
"""

import tempfile
from pathlib import Path

from shoal.crypto.keys import Key
from shoal.errors import LedgerError
from shoal.ledger import Deposit, Fund, SqliteLedger, Terms, verify_file
from shoal.ledger.export import export, read_file


def main() -> None:
    coordinator, node = Key.create(), Key.create()
    terms = Terms(arbiter=coordinator.address, validators=(coordinator.address,), beacon="00" * 32)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "ledger.db"
        ledger = SqliteLedger.open(path, coordinator, "demo", terms)
        ledger.enter(coordinator, Fund(id="budget", amount=1_000_000))  # durable when it returns
        ledger.enter(coordinator, Deposit(id="first", node=node.address, amount=2_000))
        ledger.close()

        state = verify_file(path).state
        print(f"treasury {state.treasury:,}, stake of the node {state.accounts[node.address].stake:,}")

        copy = Path(scratch) / "ledger.jsonl"
        export(read_file(path), copy)
        copy.write_text(copy.read_text().replace('"amount":2000', '"amount":9000'))
        try:
            verify_file(copy)
        except LedgerError as error:
            print("a changed copy:", error)


if __name__ == "__main__":
    main()
