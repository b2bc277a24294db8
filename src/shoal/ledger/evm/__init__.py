"""The ledger on an EVM chain: the contract, the JSON-RPC client, and the log of entries read back from events."""
