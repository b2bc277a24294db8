"""One typed tree describes a run; TOML in, a checked and frozen value out.

Every error names the key, its value, the rule and, for a key that does not exist, the nearest one that does.
"""

import difflib
import json
import tomllib
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, Union

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from shoal.errors import ConfigError
from shoal.rl.loss_config import LossConfig
from shoal.tls import Mode, is_served

Positive = Annotated[int, Field(ge=1, lt=2**31)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Decay = Annotated[float, Field(ge=0, lt=1)]
RUN_NAME = r"^[a-z0-9][a-z0-9._-]*$"
# Of about so many files one is planted as good and one as bad, where validators may be somebody else's.
PLANTS = 20
HAS_QUESTION = r"\{question\}"
HAS_TARGET = r"\{target\}"
RPC_URL = r"^(https?://\S+)?$"
CONTRACT = r"^(0x[0-9a-f]{40})?$"
TRANSACTION = r"^(0x[0-9a-f]{64})?$"
IN_WORDS = {
    RUN_NAME: "must be made of small letters, digits, dots, dashes and underscores, and begin with a letter or digit",
    RPC_URL: "must be the URL of a chain's node, as in http://127.0.0.1:8545, or empty",
    CONTRACT: "must be an address in small letters, 0x and 40 hexadecimal digits, or empty",
    TRANSACTION: "must be a transaction's hash in small letters, 0x and 64 hexadecimal digits, or empty",
    HAS_QUESTION: "must contain {question}, which stands for the task's own text",
    HAS_TARGET: "must contain {target}, which stands for the number of tokens",
}


class _Table(BaseModel):
    # Strict: `steps = true` is a slip, not one step.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RewardConfig(_Table):
    """One of several rewards of a source; the sum of all, by weight, is what an answer earns."""

    kind: str = Field(description="math, code, exact, format, own (the source's), or python/FILE.py:FUNCTION.")
    weight: float = Field(1.0, description="What its value is multiplied with.")
    name: str | None = Field(None, description="Name of the part in rollouts; its kind if not given.")


class CodeConfig(_Table):
    """What a program that is judged may take, for one test, or for all calls of one function."""

    seconds: float = Field(2.0, gt=0, le=600, description="Time; starting Python does not count.")
    memory_mb: int = Field(512, ge=64, le=65536, description="Memory, in MiB.")
    output_kb: int = Field(1024, ge=1, le=65536, description="Output, in KiB.")


class TaskConfig(_Table):
    """One source of tasks; several are mixed by weight."""

    source: str = Field(
        description="Where tasks come from: reasoning-gym/GENERATOR, file/PATH, dataset/NAME, lm-eval/FILE.yaml, "
        "verifiers/NAME, python/FILE.py, or what shoal filter left of one: filtered/FILE."
    )
    name: str | None = Field(None, description="Name in rollouts and metrics; the source's own if not given.")
    weight: float = Field(1.0, gt=0, description="Share of the tasks drawn from this source, relative to the others.")
    options: dict[str, JsonValue] = Field(default_factory=dict, description="The source's own options.")
    difficulty: Annotated[int, Field(ge=0, le=100)] | list[Annotated[int, Field(ge=0, le=100)]] | None = Field(
        None, description="Level of the generator's curriculum, or several, which are asked equally often."
    )
    columns: dict[str, str] = Field(
        default_factory=dict, description="Columns of a table: which one is question, answer, tests or split."
    )
    reward: str | None = Field(None, description="math, code, exact, format, python/FILE.py:FUNCTION; else its own.")
    rewards: list[RewardConfig] = Field(default_factory=list, description="Several rewards in the place of one.")
    thinking: bool = Field(False, description="An answer must close its thinking part with </think>; else it earns 0.")
    code: CodeConfig = CodeConfig()
    sha256: str | None = Field(None, description="Hash of the source's content; with any other it is refused.")
    files: dict[str, Sha256] = Field(
        default_factory=dict, description="Hashes of the files that it names, noted when a run is prepared."
    )
    binary: bool = Field(True, description="Reward 1 for a fully right answer and 0 otherwise: no partial credit.")
    answer: Literal["whole", "tagged", "boxed"] = Field(
        "whole", description="The whole completion, between <answer> tags, or in \\boxed{}."
    )
    template: str = Field(
        "{question}", pattern=HAS_QUESTION, description="The prompt, with {question} where the task's text goes."
    )

    @model_validator(mode="after")
    def _one_or_several_rewards(self) -> Self:
        if self.reward is not None and self.rewards:
            raise ValueError(
                f"reward = {self.reward!r} and rewards are both given; write the first as one of the others"
            )
        return self


class TinyConfig(_Table):
    """The small base model that is built on this machine when `model.source` is "tiny"."""

    hidden: int = Field(128, ge=32, le=1024, multiple_of=32, description="Hidden size.")
    layers: int = Field(4, ge=1, le=32, description="Transformer blocks.")
    warm_steps: int = Field(150, ge=0, description="Steps of supervised warm start.")
    warm_batch: Positive = Field(64, description="Demonstrations in a warm-start step.")
    warm_lr: float = Field(2e-3, gt=0, description="Peak learning rate of the warm start.")
    warm_tasks: list[TaskConfig] = Field(
        default_factory=list, description="Tasks demonstrated in the warm start; the run's own if empty."
    )


class ModelConfig(_Table):
    """The base model, version 0 of the policy."""

    source: str = Field("tiny", description='"tiny" (built here), "smollm2", or a transformers model directory.')
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Number format of published weights; bfloat16 needs thresholds of shoal calibrate."
    )
    tiny: TinyConfig = TinyConfig()


class SamplingConfig(_Table):
    """How answers are drawn: the same distribution in generation, verification and loss. No top-k, no top-p."""

    group_size: int = Field(16, ge=2, le=65536, description="Answers to one prompt.")
    temperature: float = Field(1.0, gt=0, le=10, description="Logits are divided by it, in the loss as well.")
    mode: Literal["seeded", "free"] = Field(
        "seeded",
        description="Noise redrawn from the lease, so that every token can be checked, or the worker's own, which only "
        "statistics can judge.",
    )
    max_new_tokens: Positive = Field(64, description="Longest answer.")
    max_prompt_tokens: Positive = Field(256, description="Longest prompt; a longer one is an error.")


class TrainConfig(_Table):
    """The optimiser and the step. Defaults are INTELLECT-2's (arXiv:2505.07291) where they carry over."""

    groups_per_step: Positive = Field(32, description="Groups with signal that a step waits for.")
    online_filter: bool = Field(
        True,
        description="Ask for more in the place of groups without signal; false fills a step with whatever comes.",
    )
    optimizer_steps: Positive = Field(1, description="Optimizer steps made of one step's rollouts.")
    token_budget: Positive = Field(4096, description="Tokens packed into one forward pass.")
    lr: float = Field(3e-7, gt=0, description="Learning rate after warm-up.")
    warmup_steps: int = Field(25, ge=0, description="Optimizer steps of linear warm-up; constant afterwards.")
    cooldown_steps: int = Field(
        0, ge=0, description="Last optimizer steps of the run over which the rate falls linearly; 0 keeps it."
    )
    betas: tuple[Decay, Decay] = Field((0.9, 0.99), strict=False, description="AdamW's moment decay rates.")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's weight decay.")
    grad_clip: float = Field(0.1, gt=0, description="Largest gradient norm.")
    old_logprobs: Literal["recomputed", "sampled"] = Field(
        "recomputed",
        description="What the loss measures its ratio from: the policy as the step finds it, or as it was when it "
        "sampled. The second lets the clip bound what stale rollouts may still change.",
    )
    advantage_std: bool = Field(True, description="Divide advantages by the group's std; false gives Dr. GRPO.")
    oversample: float = Field(16.0, ge=1, description="Most groups to sample for a step, in multiples of its need.")
    max_bad_steps: Positive = Field(3, description="Stop after this many non-finite steps in a row.")
    checkpoint_every: Positive = Field(1, description="Steps between checkpoints.")
    threads: Threads = Field(1, description="CPU threads of the trainer.")
    loss: LossConfig = LossConfig()

    @property
    def most_groups(self) -> int:
        """Groups after which a step asks for no more."""
        return int(self.oversample * self.groups_per_step)


Credits = Annotated[int, Field(ge=0, lt=1 << 112)]
Batch = Annotated[int, Field(ge=1, le=65536)]


class WorkerConfig(_Table):
    """The machines that generate."""

    count: int = Field(1, ge=1, le=1024, description="Workers started by shoal run.")
    threads: Threads = Field(1, description="CPU threads of each worker.")
    max_batch: Batch = Field(128, description="Sequences generated side by side.")
    batches: list[Batch] = Field(
        default_factory=list, description="The same for each worker of shoal run, for machines that differ."
    )
    groups_per_submission: Positive = Field(8, description="Groups in one rollout file.")
    lease_s: float = Field(240.0, gt=0, description="Seconds after which an unfinished lease goes back to the pool.")

    def batch_of(self, worker: int) -> int:
        return self.batches[worker] if worker < len(self.batches) else self.max_batch


class ThresholdsConfig(_Table):
    """How far an honest worker may be off; `shoal calibrate MODEL` measures them. Defaults fit float32 models."""

    shortfall: float = Field(0.002, ge=0, description="Most a token may lie below the best under the lease's noise.")
    inexact_share: float = Field(0.002, ge=0, le=1, description="Share of a file's tokens that may not be the best.")
    inexact_tokens: int = Field(2, ge=0, description="Tokens of a file that may not be the best, besides that share.")
    logprob: float = Field(0.002, ge=0, description="Most a claimed log-prob may be off.")
    exponents: int = Field(4, ge=0, le=128, description="Of 128 proven values, how many exponents may differ.")
    mantissa_mean: float = Field(0.25, ge=0, description="Mean difference of the other values' 7-bit mantissas.")
    mantissa_median: float = Field(1.0, ge=0, description="Median difference of these mantissas.")
    surprise_sample: float = Field(
        20.0,
        gt=0,
        description="Free sampling: most evidence, in nats, against an answer; e^-20 of draws have more.",
    )
    surprise_file: float = Field(16.0, gt=0, description="Free sampling: the same for all answers of a file together.")

    def float32_only(self, dtype: str) -> list[str]:
        """Thresholds that were not measured for `dtype`; none if that of log-probs was, where rounding always shows."""
        names = ("shortfall", "logprob", "exponents", "mantissa_mean")
        if dtype == "float32" or self.logprob > DEFAULT_THRESHOLDS.logprob:
            return []
        same = [name for name in names if getattr(self, name) <= getattr(DEFAULT_THRESHOLDS, name)]
        return [f"audit.thresholds.{name}" for name in same]


DEFAULT_THRESHOLDS = ThresholdsConfig()


class LengthConfig(_Table):
    """Length budgets: a target for each prompt, drawn from the lease, told to the model and part of the reward."""

    targets: list[Positive] = Field(
        default_factory=list, description="Lengths in tokens to draw from; none: no budget."
    )
    alpha: float = Field(0.0003, ge=0, description="What a token too many or too few costs (arXiv:2505.07291).")
    form: Literal["exact", "max"] = Field(
        "exact", description="As long as the target, or no longer (arXiv:2503.04697)."
    )
    prompt: str = Field(
        "{prompt}\nAnswer in {target} tokens.",
        pattern=HAS_TARGET,
        description="The prompt with its budget: {prompt} is the prompt without, {target} the length.",
    )


class SamplerConfig(_Table):
    """Which tasks are asked: all alike, or those more often that are solved sometimes."""

    kind: Literal["uniform", "difficulty"] = Field(
        "uniform", description="difficulty draws by a table of weights that is published with every version."
    )
    floor: float = Field(0.1, ge=0.001, le=1, description="Weight of what is always or never solved; the most is 1.")
    smoothing: float = Field(2.0, gt=0, description="Answers that a task's rate is taken to have had at its source's.")
    memory: float = Field(0.98, ge=0, le=1, description="What an answer counts for after each step, of before.")


class AuditConfig(_Table):
    """The judgement of rollouts before they are trained on."""

    rate: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of files that are computed again, whole; the cheap checks see every file. 0: none, ever.",
    )
    spot: int = Field(
        1, ge=0, description="Answers of every other file that are computed again; if one fails, the whole file is."
    )
    probation: int = Field(20, ge=0, description="Files of a new node that are all computed again, whole.")
    strikes: Positive = Field(2, description="Rejected files after which a node gets no more leases.")
    token_budget: Positive = Field(4096, description="Tokens computed again in one forward pass.")
    threads: Threads = Field(1, description="CPU threads of the validator.")
    thresholds: ThresholdsConfig = ThresholdsConfig()


class CheaterConfig(_Table):
    """A worker of this run that cheats, to see it caught."""

    attack: str = Field(description="What it does; shoal attacks lists them.")


class EvalConfig(_Table):
    """The held-out measurement that runs beside training, without holding it up."""

    tasks: Positive = Field(256, description="Held-out tasks, the same for every version.")
    every: Positive = Field(
        10, description="Versions between two evaluations, at least; first and last are always evaluated."
    )
    at: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(
        default_factory=list, description="Versions to evaluate besides first and last, each of them; every is unused."
    )
    samples: Positive = Field(1, description="Answers to each held-out task; with k of them pass@k is measured too.")
    suite: str = Field("", description="Asked of the same versions: words, arithmetic, reasoning, or a suite's file.")
    threads: Threads = Field(1, description="CPU threads of the evaluator.")


class KeepConfig(_Table):
    """How much of the past stays on disk."""

    versions: Positive = Field(5, description="Policy versions kept besides the base model.")
    checkpoints: Positive = Field(2, description="Checkpoints kept.")
    rollouts: int = Field(
        0,
        ge=0,
        description="Trained steps whose rollouts are kept; 0 keeps all. An accepted file that is removed before its "
        "window closes, up to 2 * (ledger.patience + ledger.window) + 2 steps, can no longer be ruled on.",
    )
    rejected_mib: int = Field(
        1024,
        ge=0,
        description="MiB of rejected files that the coordinator keeps while they can be challenged.",
    )
    evidence: Positive = Field(
        50,
        description="Steps for which bundles of evidence and the versions they need are kept; longer where a challenge "
        "may take longer.",
    )


class SwarmConfig(_Table):
    """The front door of a run: where it is, what it keeps where, and whom it trusts with what."""

    host: str = Field("127.0.0.1", description="Address that coordinator and relay listen on; 0.0.0.0 for all.")
    public: str = Field("", description="Name or address under which other machines reach this one; host if empty.")
    port: int = Field(0, ge=0, le=65535, description="Port that the coordinator listens on; 0 takes a free one.")
    tls: Mode = Field(
        "auto", description="Whether coordinator and relay serve https; auto: unless they listen on loopback alone."
    )
    tls_cert: str = Field(
        "", description="PEM file with a certificate of an authority's; one that URL#0xADDRESS vouches for if empty."
    )
    tls_key: str = Field("", description="PEM file with the key of tls_cert.")
    database: str = Field(
        "",
        description="postgresql://USER@HOST/NAME; a SQLite file in the run's directory if empty. Its password: in the "
        "environment (PGPASSWORD, PGPASSFILE).",
    )
    store: str = Field("", description="Where uploads lie: s3://BUCKET, or a directory; one of the run's if empty.")
    store_options: dict[str, str] = Field(
        default_factory=dict, description="The object store's own, as endpoint and region; secrets: in the environment."
    )
    trainer: str = Field("", description="Address of the trainer; the key in RUN/keys if empty.")
    validators: list[str] = Field(
        default_factory=list, description="Addresses whose verdicts count; the key in RUN/keys if empty."
    )
    origin: str = Field("", description="Address that signs the versions; the run's own origin if empty.")
    relays: list[str] = Field(default_factory=list, description="URLs of relays that serve versions.")
    allow: list[str] = Field(default_factory=list, description="Addresses that may join; anybody if empty.")
    leases: Positive = Field(
        4, description="Leases that a node may hold at once; more than one only with stake (ledger.stake_per_lease)."
    )
    probation_files: Positive = Field(
        4,
        description="Files of a node with fewer accepted ones than audit.probation that may wait for a verdict; all "
        "new nodes of one network share as many.",
    )
    most_nodes: Positive = Field(
        10_000,
        description="Nodes at once; then one that had no file accepted, and is gone, makes room for another.",
    )
    heartbeat_s: float = Field(10.0, ge=0.1, le=30, description="Seconds between a node's heartbeats.")
    requests_per_s: float = Field(
        100.0,
        ge=1,
        description="Requests that a node, or all strangers of one IP address together, may make each second; for a "
        "moment twenty times as many.",
    )

    @property
    def public_host(self) -> str:
        """The host in URLs that others are told; loopback for a run that listens everywhere and has no name."""
        host = self.public or {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host

    @property
    def scheme(self) -> Literal["http", "https"]:
        """What coordinator and relay speak."""
        return "https" if is_served(self.tls, self.host) else "http"

    @model_validator(mode="after")
    def _has_both(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key: give both, or neither")
        return self


class LedgerConfig(_Table):
    """Who earns and loses what. Credits are whatever the run's owner makes of them."""

    rate: Credits = Field(1, description="Credits for each accepted token.")
    fund: Credits = Field(100_000_000, description="Credits that the treasury begins with.")
    judge_pay: Credits = Field(50, description="Credits for a validator for each file that it judged as was decided.")
    welcome: Credits = Field(
        2000,
        description="Credits that a node is given with its first accepted file: a reject or a refuted challenge takes "
        "them, and they can never be withdrawn.",
    )
    stake_per_lease: Annotated[int, Field(ge=1, lt=1 << 112)] = Field(
        2000, description="Stake that a node pays in for each lease that it holds besides the first."
    )
    slash: Credits = Field(1000, description="Credits that a rejected file costs at least, or what there is.")
    slash_files: int = Field(
        10, ge=0, lt=1 << 32, description="How many times its own pay a rejected file costs of paid-in stake."
    )
    suspend_steps: int = Field(2, ge=0, lt=1 << 32, description="Steps without leases after a rejected file.")
    window: Positive = Field(4, description="Steps for which a verdict can be challenged, at least.")
    patience: Positive = Field(2, description="Steps that a drawn validator has to commit, and again to reveal.")
    bond: Credits = Field(1000, description="Credits that a challenger puts up, and a refuted challenge costs.")
    stall: Positive = Field(
        21_600,
        description="Seconds without a step after which anybody may move the clock of a contract on by one; longer "
        "than a step takes.",
    )
    drawn: int = Field(1, ge=1, le=32, description="Validators drawn for each step's files.")
    quorum: int = Field(1, ge=1, le=32, description="Equal votes that decide; more than half of those drawn.")
    plants: int = Field(
        0,
        ge=0,
        description="Of about so many files one is planted as good and one as bad, to see who judges them right; "
        "shoal run starts a planter for it, and shoal planter is one elsewhere. 0: none. "
        f"Unless it is given: {PLANTS} where swarm.validators names any, else none.",
    )
    arbiter: str = Field("", description="Address that rules on challenges; the coordinator if empty.")
    rpc: str = Field(
        "",
        pattern=RPC_URL,
        description="URL of an EVM chain's node, which the run card tells everybody: the ledger is a contract there, "
        "and credits are wei. The coordinator's own file if empty.",
    )
    contract: str = Field(
        "", pattern=CONTRACT, description="Address of the contract; the coordinator deploys one if empty."
    )
    created: str = Field(
        "", pattern=TRANSACTION, description="Hash of the transaction that created the contract; needed with it."
    )
    gas: Credits = Field(
        10**16, description="Wei that the coordinator keeps each validator in, for its votes on a chain; 0: nothing."
    )
    confirmations: int = Field(1, ge=1, le=1000, description="Blocks that a transaction must be deep to be believed.")

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


class RunConfig(_Table):
    """A whole run."""

    name: str = Field(pattern=RUN_NAME, description="Name of the run and of its directory.")
    seed: int = Field(0, ge=0, lt=2**63, description="All of the run's randomness follows from it.")
    steps: Positive = Field(description="Training steps; step k yields policy version k + 1.")
    async_level: int = Field(2, ge=0, le=64, description="Step k accepts rollouts of versions k - async_level .. k.")
    wait_s: float = Field(
        600.0,
        gt=0,
        description="Longest wait, in s, for a coordinator or relay that does not answer before a role gives up; for "
        "files and versions a role waits on, and says so each time this has passed.",
    )
    model: ModelConfig = ModelConfig()
    tasks: list[TaskConfig] = Field(min_length=1, description="What is asked.")
    sampling: SamplingConfig = SamplingConfig()
    length: LengthConfig = LengthConfig()
    sampler: SamplerConfig = SamplerConfig()
    train: TrainConfig = TrainConfig()
    workers: WorkerConfig = WorkerConfig()
    cheaters: list[CheaterConfig] = Field(default_factory=list, description="Workers that cheat, one a table.")
    audit: AuditConfig = AuditConfig()
    eval: EvalConfig = EvalConfig()
    keep: KeepConfig = KeepConfig()
    swarm: SwarmConfig = SwarmConfig()
    ledger: LedgerConfig = LedgerConfig()

    @property
    def max_len(self) -> int:
        """The longest sequence, prompt and answer."""
        return self.sampling.max_prompt_tokens + self.sampling.max_new_tokens

    @model_validator(mode="before")
    @classmethod
    def _watches_strangers(cls, tree: Any) -> Any:
        """Plants samples by default where the config names validators: they may be somebody else's."""
        if not isinstance(tree, dict) or not isinstance(swarm := tree.get("swarm", {}), dict):
            return tree
        ledger = tree.get("ledger", {})
        if not swarm.get("validators") or not isinstance(ledger, dict) or "plants" in ledger:
            return tree
        return {**tree, "ledger": {**ledger, "plants": PLANTS}}

    def check_dtype(self, who: str) -> None:
        """Refuses a number format in which honest workers would be rejected by this run's thresholds."""
        if unfit := self.audit.thresholds.float32_only(self.model.dtype):
            raise ValueError(
                f"{who}: honest workers would be rejected, for {', '.join(unfit)} fit float32 alone; measure them with "
                f"shoal calibrate MODEL --dtype {self.model.dtype} and paste its table into the config, or use float32"
            )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.train.token_budget < self.max_len:
            raise ValueError(
                f"train.token_budget = {self.train.token_budget}: must hold the longest sample, "
                f"sampling.max_prompt_tokens + sampling.max_new_tokens = {self.max_len}; raise it or shorten the sample"
            )
        if self.length.targets and max(self.length.targets) > self.sampling.max_new_tokens:
            raise ValueError(
                f"length.targets = {self.length.targets}: the longest answer, sampling.max_new_tokens, is "
                f"{self.sampling.max_new_tokens}; raise that or lower the targets"
            )
        if self.length.targets and "{prompt}" not in self.length.prompt:
            raise ValueError(f"length.prompt = {self.length.prompt!r}: must contain {{prompt}}, the prompt without it")
        self._judged_by_enough()
        if self.train.optimizer_steps > self.train.groups_per_step:
            raise ValueError(
                f"train.optimizer_steps = {self.train.optimizer_steps}: each needs a group, and "
                f"train.groups_per_step is {self.train.groups_per_step}; lower the first or raise the second"
            )
        self.check_dtype(f"model.dtype = {self.model.dtype!r}")
        # After a resume from the oldest checkpoint that may be the newest, its rollouts' versions must still be there.
        fewest = self.async_level + self.train.checkpoint_every + 1
        if self.keep.versions < fewest:
            raise ValueError(
                f"keep.versions = {self.keep.versions}: async_level {self.async_level} and train.checkpoint_every "
                f"{self.train.checkpoint_every} need at least {fewest} versions on disk; raise keep.versions"
            )
        return self

    def _judged_by_enough(self) -> None:
        """One of several validators alone decides on nothing, and as many can vote as are needed.

        The run card does not tell who the validators are, so none may be named here.
        """
        count, quorum = len({address.lower() for address in self.swarm.validators}), self.ledger.quorum
        if count > 1 and quorum == 1:
            drawn = min(count, 3)
            raise ValueError(
                f"ledger.quorum = 1: swarm.validators names {count}, and what the fastest of them says would stand; "
                f"set ledger.quorum = 2 and ledger.drawn = {drawn}"
            )
        if count and quorum > count:
            raise ValueError(
                f"ledger.quorum = {quorum}: swarm.validators names {count}, so nothing would ever be decided; name "
                "more, or lower it"
            )


# Nobody's business outside: databases with their passwords, and who plays the cheat.
PRIVATE = {"swarm", "cheaters"}


def public_tree(config: RunConfig) -> dict[str, Any]:
    """A config as strangers may see it."""
    return config.model_dump(mode="json", exclude_none=True, exclude=PRIVATE)


def load_config(path: Path, settings: Sequence[str] = ()) -> RunConfig:
    """Reads a TOML file, applies `a.b=c` settings over it and checks the whole."""
    try:
        tree = tomllib.loads(path.read_text("utf-8-sig"))  # some editors begin a file with a byte-order mark
    except OSError as error:
        raise ConfigError(f"config {path}: cannot be read ({error.strerror}); give the path of a TOML file") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"config {path}: not valid TOML: {error}") from error
    for setting in settings:
        _apply(tree, setting)
    return check_config(tree, str(path))


def check_config(tree: dict[str, Any], origin: str) -> RunConfig:
    """A RunConfig out of plain values, or a ConfigError that lists every fault."""
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        faults = "\n".join(f"  {_fault(dict(item))}" for item in error.errors())
        raise ConfigError(f"config {origin}:\n{faults}") from None


def _apply(tree: dict[str, Any], setting: str) -> None:
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {setting}: must read key=value, as in --set train.lr=1e-5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text  # a bare word stands for itself, so that --set model.source=tiny needs no quotes
    node: Any = tree
    *path, last = key.strip().split(".")
    for part in path:
        node = _item(node, part, setting) if isinstance(node, list) else node.setdefault(part, {})
        if not isinstance(node, dict | list):
            raise ConfigError(f"--set {setting}: {part} is a value, not a table")
    if isinstance(node, list):
        _item(node, last, setting)
        node[int(last)] = value
    else:
        node[last] = value


def _item(items: list[Any], part: str, setting: str) -> Any:
    if not part.isdecimal() or int(part) >= len(items):
        raise ConfigError(f"--set {setting}: {part} must be an index from 0 to {len(items) - 1}")
    return items[int(part)]


def _fault(error: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        parent, _, key = where.rpartition(".")
        keys = _keys(error["loc"][:-1])
        close = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
        near = _elsewhere(key) or [f"{parent}.{name}" if parent else name for name in close]
        hint = f"did you mean {' or '.join(near)}?" if near else f"known here: {', '.join(keys)}"
        return f"{where} = {error['input']!r}: unknown key; {hint}"
    if error["type"] == "missing":
        return f"{where}: is missing and has no default; add it"
    if error["type"] == "string_pattern_mismatch":
        return f"{where} = {error['input']!r}: {IN_WORDS[error['ctx']['pattern']]}"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{where} = {error['input']!r}: {message}" if where and "input" in error else message


def _keys(path: Sequence[str | int]) -> list[str]:
    """The keys known at a place in the tree."""
    node: Any = RunConfig
    for part in path:
        if isinstance(part, int):
            continue
        if not (isinstance(node, type) and issubclass(node, BaseModel)) or part not in node.model_fields:
            return []
        node = _inner(node.model_fields[part].annotation)
    return list(node.model_fields) if isinstance(node, type) and issubclass(node, BaseModel) else []


def _inner(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (list, Union, types.UnionType):
        return _inner(typing.get_args(annotation)[0])
    return annotation


def _elsewhere(key: str) -> list[str]:
    """Full names of a key or table that is right in another place: those nearest to the top."""
    parts = [name.split(".") for name, _ in describe()]
    places = sorted(dict.fromkeys(tuple(p[: p.index(key) + 1]) for p in parts if key in p), key=len)
    return [".".join(place) for place in places if len(place) == len(places[0])]


def describe(model: type[BaseModel] = RunConfig, prefix: str = "") -> list[tuple[str, str]]:
    """Every key of the tree with its description."""
    rows: list[tuple[str, str]] = []
    for key, field in model.model_fields.items():
        inner = _inner(field.annotation)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            rows += describe(inner, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", field.description or ""))
    return rows


def to_toml(config: RunConfig) -> str:
    """The resolved config as TOML that `load_config` reads back to the same value."""
    lines: list[str] = []
    _write_table(config.model_dump(mode="json", exclude_none=True), "", lines)
    return "\n".join(lines).strip() + "\n"


def _write_table(table: dict[str, Any], prefix: str, lines: list[str]) -> None:
    subtables = {}
    for key, value in table.items():
        is_table = isinstance(value, dict) and key not in ("options", "columns", "files")
        is_array_of_tables = isinstance(value, list) and value and isinstance(value[0], dict)
        if is_table or is_array_of_tables:
            subtables[key] = value
        else:
            lines.append(f"{key} = {_toml(value)}")
    for key, value in subtables.items():
        name = f"{prefix}{key}"
        for item in value if isinstance(value, list) else [value]:
            lines += ["", f"[[{name}]]" if isinstance(value, list) else f"[{name}]"]
            _write_table(item, f"{name}.", lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which JSON allows and TOML does not
