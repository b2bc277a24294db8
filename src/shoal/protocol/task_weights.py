"""A signed table of task weights: the run, the version it came with, and the weights."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from shoal.config import RUN_NAME
from shoal.crypto.keys import Key
from shoal.crypto.signed import canonical, check_signed, message
from shoal.errors import SwarmError
from shoal.tasks.difficulty import Table

DOMAIN = "shoal table 2"


class SignedTable(BaseModel):
    """What leases of this version draw their tasks by; anyone can check who says so."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    run: str = Field(pattern=RUN_NAME, max_length=100)
    version: int = Field(ge=0, lt=10**9)
    root: str = Field(pattern=r"^[0-9a-f]{8,128}$", description="Root hash of the version that it came with.")
    table: Table
    signature: str = Field(
        max_length=200,
        description="EIP-191, over three lines: the domain; root, run and version; the table. JSON as in RFC 8785.",
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
        said = _message(self.run, self.version, self.root, self.table)
        check_signed(said, self.signature, coordinator, where, SwarmError)


def _message(run: str, version: int, root: str, table: Table) -> bytes:
    return message(DOMAIN, canonical({"root": root, "run": run, "version": version}), table.to_json())
