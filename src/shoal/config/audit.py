"""Tables of the validators: what is recomputed, and how far an honest worker may deviate."""

from typing import Annotated, Literal

from pydantic import Field

from shoal.config.table import DeviceName, Positive, Table, Threads

MAX_VALIDATORS = 64  # of a run's owner
# A profile's name, or one with wildcards.
ProfilePattern = Annotated[str, Field(min_length=1, max_length=180, pattern=r"^[a-z0-9.+_/*?-]+$")]


class ThresholdsConfig(Table):
    """How far an honest worker may deviate; `shoal calibrate MODEL` measures it. Defaults fit float32 models."""

    shortfall: float = Field(
        0.002, ge=0, description="Largest gap between a token's noisy logit and the best one under the lease's noise."
    )
    inexact_share: float = Field(
        0.002, ge=0, le=1, description="Share of a file's tokens that may differ from the best token."
    )
    inexact_tokens: int = Field(
        2, ge=0, description="Tokens of a file that may differ from the best token, in addition to that share."
    )
    logprob: float = Field(0.002, ge=0, description="Largest error of a claimed log-prob.")
    exponents: int = Field(4, ge=0, le=128, description="Exponents that may differ, of 128 proven values.")
    mantissa_mean: float = Field(
        0.25, ge=0, description="Largest mean difference of the other values' 7-bit mantissas."
    )
    mantissa_median: float = Field(1.0, ge=0, description="Largest median difference of these mantissas.")
    surprise_sample: float = Field(
        20.0,
        gt=0,
        description="Free sampling: largest evidence against one answer, in nats; a share of e^-20 of honest "
        "answers has more.",
    )
    surprise_file: float = Field(16.0, gt=0, description="Free sampling: the same for all answers of a file together.")


class AuditConfig(Table):
    """How rollouts are checked before they are trained on."""

    rate: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Share of files that are recomputed whole; the cheap checks see every file. 0: never.",
    )
    spot_share: float = Field(
        0.0625,
        ge=0,
        le=1,
        description="Share of the answers recomputed in each other file, at least two: half drawn by tokens, half by "
        "answers. 0: none, and then cheating pays (docs/economics.md).",
    )
    probation: int = Field(20, ge=0, description="The first files of a new node that are all recomputed whole.")
    strikes: Positive = Field(2, description="Rejected files after which a node is banned.")
    token_budget: Positive = Field(4096, description="Tokens recomputed in one forward pass.")
    count: Positive = Field(
        1,
        le=MAX_VALIDATORS,
        description="Validators of the run's owner, which share the files and trust each other; shoal run starts them, "
        "or they are those that swarm.validators names.",
    )
    threads: Threads = Field(1, description="CPU threads of each validator.")
    device: DeviceName | None = Field(None, description="Device of the validator; default: the run's device.")
    engine: Literal["auto", "torch", "vllm"] = Field(
        "auto",
        description="What computes the final states of answers again; auto: vLLM on a CUDA device where it is "
        "installed and finds room beside the judge's own model, torch otherwise. Adapters (train.lora) are computed "
        "with torch, whatever it says.",
    )
    thresholds: ThresholdsConfig = ThresholdsConfig()
    proofs: bool = Field(
        True,
        description="Whether files must prove the hidden states that their tokens were drawn from. false: for stock "
        "servers, which do not give their states; docs/stock-server.md says what is then not caught.",
    )
    enforce: bool = Field(
        True,
        description="bfloat16 runs: whether numeric evidence drops files and bans nodes; false only reports it. What a "
        "file's bytes show (format, tasks, rewards, version) drops and bans all the same. float32 runs refuse false.",
    )
    shift_rate: float = Field(
        0.1,
        ge=0,
        le=1,
        description="bfloat16 runs: share of files that are also compared with another computation, such as weights in "
        "8 bits or the version before; unless it is 0, all of a node's first audit.probation files are, and those of a "
        "node that is suspected.",
    )
    profiles: list[ProfilePattern] = Field(
        default_factory=list,
        max_length=64,
        description="bfloat16 runs: profiles that may join and that odds are made for, by names or patterns such as "
        "nvidia-h100-*; each must be in the run's table of honest rates. If empty, every profile may join, and odds "
        "are fair to all that the table holds.",
    )
    rates: str = Field(
        "",
        description="bfloat16 runs: file of honest rates (shoal calibrate --out) that the run starts with, besides "
        "those that come with Shoal.",
    )
