"""A signed table of task weights: the run, the version it came with, and the weights."""

import json
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from shoal.config import RUN_NAME
from shoal.errors import IdentityError, SwarmError
from shoal.keys import Key, signer_of
from shoal.tasks.difficulty import Table

DOMAIN = "shoal table 1"


class SignedTable(BaseModel):
    """What leases whose oldest version is this one draw their tasks by; anyone can check who says so."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    run: str = Field(pattern=RUN_NAME, max_length=100)
    version: int = Field(ge=0, lt=10**9)
    root: str = Field(pattern=r"^[0-9a-f]{8,128}$", description="Root hash of the version that it came with.")
    table: Table
    signature: str = Field(
        max_length=200,
        description="EIP-191, over three lines: the domain; root, run and version; the table, both canonical JSON.",
    )

    @classmethod
    def sign(cls, run: str, version: int, root: str, table: Table, key: Key) -> Self:
        signature = key.sign(_message(run, version, root, table))
        return cls(run=run, version=version, root=root, table=table, signature=signature)

    def check(self, run: str, version: int, coordinator: str) -> None:
        """A SwarmError unless it is what was asked for, and the coordinator signed it."""
        where = f"table of weights of version {version}"
        if (self.run, self.version) != (run, version):
            raise SwarmError(f"{where}: came with that of version {self.version} of run {self.run}, not of {run}")
        try:
            signer = signer_of(_message(self.run, self.version, self.root, self.table), self.signature)
        except IdentityError as error:
            raise SwarmError(f"{where}: {error}") from None
        if signer != coordinator:
            raise SwarmError(f"{where}: signed by {signer}, the coordinator is {coordinator}")


def _message(run: str, version: int, root: str, table: Table) -> bytes:
    head = json.dumps({"root": root, "run": run, "version": version}, sort_keys=True, separators=(",", ":"))
    return f"{DOMAIN}\n{head}\n{table.to_json()}".encode()
