"""What every table of a config has in common: strict, frozen, and patterns that are explained in words."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1, lt=2**31)]
Threads = Annotated[int, Field(ge=1, le=1024)]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]
MAY_BE_CUDA: frozenset[DeviceName] = frozenset({"auto", "cuda"})
"""Settings that choose a CUDA device on a machine that has one."""
# The tables of roles that compute.
DeviceTable = Literal["train", "workers", "audit", "eval"]
RUN_NAME = r"^[a-z0-9][a-z0-9._-]*$"
HAS_QUESTION = r"\{question\}"
HAS_TARGET = r"\{target\}"
SERVER_URL = r"^(https?://[^\s/]+/?)?$"
RPC_URL = r"^(https?://\S+)?$"
CONTRACT = r"^(0x[0-9a-f]{40})?$"
TRANSACTION = r"^(0x[0-9a-f]{64})?$"
IN_WORDS = {
    RUN_NAME: "must be made of small letters, digits, dots, dashes and underscores, and begin with a letter or digit",
    SERVER_URL: "must be the URL of a vLLM server, as in http://127.0.0.1:8000, or empty",
    RPC_URL: "must be the URL of a chain's node, as in http://127.0.0.1:8545, or empty",
    CONTRACT: "must be an address in small letters, 0x and 40 hexadecimal digits, or empty",
    TRANSACTION: "must be a transaction's hash in small letters, 0x and 64 hexadecimal digits, or empty",
    HAS_QUESTION: "must contain {question}, which stands for the task's own text",
    HAS_TARGET: "must contain {target}, which stands for the number of tokens",
}


class Table(BaseModel):
    # Strict: `steps = true` is a slip, not one step.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
