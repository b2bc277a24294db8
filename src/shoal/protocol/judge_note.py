"""What one validator tells those that it shares the files with: its vote, whether it blamed, and what bets won.

Validators that share the files are one owner's. Each judges a part of them, and goes by what all of them found: strikes
and evidence against a node add up, and any of them can vote on the ledger for a file that another one judged.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_BETS = 64
Bet = Annotated[str, Field(min_length=1, max_length=100)]
# More than any file can show, and few enough to be written in JSON.
MAX_NATS = 1e9
Won = Annotated[float, Field(ge=-MAX_NATS, le=MAX_NATS, allow_inf_nan=False)]


class WeighedNote(BaseModel):
    """Numeric evidence of a file, by bets, as one more file of its node counts it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nats: dict[Bet, Won] = Field(max_length=MAX_BETS)
    tokens: int = Field(ge=0, lt=1 << 53)
    rates: int = Field(ge=0, lt=1 << 31, description="Version of the honest rates that odds were made by.")


class JudgeNote(BaseModel):
    """What was found of one file, for the other validators."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    letter: Literal["a", "r", "v"] = Field(description="The vote: accepted, blamed with evidence, or void.")
    tokens: int = Field(0, ge=0, lt=1 << 53, description="Generated tokens, as they were counted.")
    proof: str = Field("", pattern=r"^([0-9a-f]{64})?$", description="SHA-256 of the evidence bundle.")
    blamed: bool = Field(False, description="Whether it is a strike against the file's node.")
    check: str = Field("", max_length=64, description="The check that it was blamed for.")
    audited: bool = False
    weighed: WeighedNote | None = None


class FiledNote(BaseModel):
    """A note as the coordinator files it, with the place and the bytes of the file that it is about."""

    number: int = Field(description="Grows with each verdict; what a validator has read up to.")
    judge: str
    step: int
    submission: int
    node: str
    ordinal: int = Field(description="Which of its node's files this is, from 1 on.")
    sha256: str
    note: JudgeNote


class FiledNotes(BaseModel):
    notes: list[FiledNote]
