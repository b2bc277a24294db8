"""The table of the ledger: what nodes earn and lose, and where that is entered."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from shoal.config.table import CONTRACT, RPC_URL, TRANSACTION, Positive, Table

Credits = Annotated[int, Field(ge=0, lt=1 << 112)]
# Default of ledger.plants if validators may belong to someone else.
PLANTS = 20


class LedgerConfig(Table):
    """What nodes earn and lose. What a credit is worth is up to the run's owner."""

    rate: Credits = Field(1, description="Credits per accepted token.")
    fund: Credits = Field(100_000_000, description="Credits in the treasury at the start.")
    judge_pay: Credits = Field(
        50, description="Credits a validator earns per file that it judged as the quorum decided."
    )
    welcome: Credits = Field(
        2000,
        description="Credits granted with a node's first accepted file: a rejected file or a refuted challenge "
        "forfeits them, and they can never be withdrawn.",
    )
    stake_per_lease: Annotated[int, Field(ge=1, lt=1 << 112)] = Field(
        2000, description="Stake required for each lease after the first that a node holds at once."
    )
    slash: Credits = Field(
        1000, description="Minimum number of credits that a rejected file costs, as far as the node has them."
    )
    slash_files: int = Field(
        10,
        ge=0,
        lt=1 << 32,
        description="A rejected file costs this many times its own pay, taken from deposited stake.",
    )
    suspend_steps: int = Field(2, ge=0, lt=1 << 32, description="Steps without leases after a rejected file.")
    window: Positive = Field(4, description="Minimum number of steps for which a verdict can be challenged.")
    patience: Positive = Field(
        2, description="Steps that a drawn validator has to commit its votes, and again to reveal them."
    )
    bond: Credits = Field(1000, description="Credits that a challenger puts up, and loses if the challenge is refuted.")
    stall: Positive = Field(
        21_600,
        description="Seconds without a step after which anyone may advance a contract's clock by one; must be "
        "longer than a step takes.",
    )
    drawn: int = Field(1, ge=1, le=32, description="Validators drawn per step.")
    quorum: int = Field(1, ge=1, le=32, description="Equal votes that decide; more than half of drawn.")
    plants: int = Field(
        0,
        ge=0,
        description="Honeypots: one planted good file and one planted bad file per about this many files, to see which "
        "validators judge them correctly. shoal run starts a planter for them, shoal planter runs one elsewhere. "
        f"0: none. Default: {PLANTS} if swarm.validators names any, otherwise none.",
    )
    arbiter: str = Field("", description="Address that rules on challenges; if empty, the coordinator.")
    rpc: str = Field(
        "",
        pattern=RPC_URL,
        description="URL of an EVM chain's node, published in the run card: the ledger is then a contract on "
        "that chain, and credits are wei. If empty, the ledger is the coordinator's own file.",
    )
    contract: str = Field(
        "", pattern=CONTRACT, description="Address of the contract; if empty, the coordinator deploys one."
    )
    created: str = Field(
        "",
        pattern=TRANSACTION,
        description="Hash of the transaction that created the contract; required with contract.",
    )
    gas: Credits = Field(
        10**16,
        description="Wei up to which the coordinator tops up each validator, to pay for its votes on a chain; 0: "
        "nothing.",
    )
    confirmations: int = Field(
        1, ge=1, le=1000, description="Blocks on top of a transaction after which it counts as final."
    )

    @property
    def challenge_steps(self) -> int:
        """Steps after its own in which a verdict may still be challenged, at most: two until the file is entered, the
        time that validators are given, and the windows."""
        return 2 + 2 * self.patience + 2 * self.window

    @model_validator(mode="after")
    def _decides(self) -> Self:
        if not self.quorum <= self.drawn < 2 * self.quorum:
            raise ValueError(
                f"ledger.quorum = {self.quorum}: must be more than half of ledger.drawn = {self.drawn}, or all of them"
            )
        if bool(self.contract) != bool(self.created):
            raise ValueError(
                "ledger.contract: a contract is believed by the transaction that created it; give ledger.created too, "
                "or neither of them"
            )
        return self
