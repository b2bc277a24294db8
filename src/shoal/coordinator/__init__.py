"""The coordinator: grants leases, takes uploads, records verdicts, and writes the ledger."""
