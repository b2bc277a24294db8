"""A memory that no party controls: who joined, who did what, who judged it, what was earned and lost.

    from shoal.ledger import Deposit, SqliteLedger, Terms, verify_file

    ledger = SqliteLedger.open(path, key, "run", terms)          # the coordinator's file
    ledger.enter(key, Deposit(id="1", node=address, amount=10))  # durable when it returns; a refusal names the rule
    verify_file(path)                                            # anybody, with the file alone

`rules.py` holds all rules, as one fold over entries; `acts.py` what can be entered; `entry.py` how it is signed and
linked; `store.py` the embedded ledger; `evm/` the same as a contract. Nothing here needs torch or a web server.

Names are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.ledger.acts import Deposit, Fund, Terms
    from shoal.ledger.export import verify_file
    from shoal.ledger.store import SqliteLedger

__all__ = ["Deposit", "Fund", "SqliteLedger", "Terms", "verify_file"]

_HOMES = {
    "Deposit": "acts",
    "Fund": "acts",
    "SqliteLedger": "store",
    "Terms": "acts",
    "verify_file": "export",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
