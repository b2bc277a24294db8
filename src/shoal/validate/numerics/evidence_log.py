"""Append-only log of numeric evidence: one line per file, from which the accounts of all nodes are rebuilt.

A file is counted once, however often it is judged again after a crash. A torn last line is passed over.
"""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.files import disk_errors, make_directory, parse_json
from shoal.validate.numerics.account import Account
from shoal.validate.numerics.judge import BETS, Weighed


class EvidenceLog:
    """Accounts of nodes, on disk as the files they were made of."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._accounts: dict[str, Account] = {}
        self._counted: set[tuple[int, int]] = set()
        self._rates = 0
        make_directory(path.parent)
        if path.exists():
            with path.open("rb") as file:  # line by line: a long run's log is larger than what is made of it
                for line in file:
                    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                        self._read(parse_json(line))

    def of(self, node: str) -> Account:
        """What there is against a node; an empty account if nothing was computed yet."""
        return self._accounts.get(node, Account())

    def with_file(self, node: str, step: int, submission: int, weighed: Weighed) -> Account:
        """What there would be against a node with this file, which is counted once; nothing is written."""
        account = self.of(node)
        if (step, submission) in self._counted:
            return account
        account = replace(account, won=dict(account.won))
        account.add(_rounded(weighed).nats, weighed.tokens, BETS)
        return account

    def add(self, node: str, step: int, submission: int, weighed: Weighed) -> Account:
        """Counts a file against its node, on disk first; the same one again changes nothing."""
        if (step, submission) not in self._counted:
            weighed = _rounded(weighed)
            tree = {"node": node, "step": step, "submission": submission, "tokens": weighed.tokens}
            line = json.dumps({**tree, "nats": weighed.nats})
            with disk_errors(self._path), self._path.open("a") as file:
                file.write(f"\n{line}\n")
            self._count(node, step, submission, weighed)
        return self.of(node)

    def loosened(self, version: int) -> None:
        """Forgets what odds of an earlier version of the honest rates have won: they may have been too strict.

        Files stay counted, so that stakes of a node's life still add up to 1.
        """
        if version > self._rates:
            with disk_errors(self._path), self._path.open("a") as file:
                file.write(f"\n{json.dumps({'rates': version})}\n")
            self._acquit(version)

    def _read(self, tree: Any) -> None:
        if "rates" in tree:
            self._acquit(int(tree["rates"]))
            return
        weighed = Weighed({str(bet): float(won) for bet, won in tree["nats"].items()}, int(tree["tokens"]))
        self._count(str(tree["node"]), int(tree["step"]), int(tree["submission"]), weighed)

    def _acquit(self, version: int) -> None:
        self._rates = version
        for account in self._accounts.values():
            account.forget()

    def _count(self, node: str, step: int, submission: int, weighed: Weighed) -> None:
        if (step, submission) not in self._counted:
            self._counted.add((step, submission))
            self._accounts.setdefault(node, Account()).add(weighed.nats, weighed.tokens, BETS)


def _rounded(weighed: Weighed) -> Weighed:
    """As it is written, so that a restart comes to the same sum."""
    return replace(weighed, nats={bet: round(won, 4) for bet, won in weighed.nats.items()})
