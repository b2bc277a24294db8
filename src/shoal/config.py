"""The typed tree that describes a run: every setting with its type, bounds, default and meaning. Values are frozen.

`config_io` reads it from TOML, and `docs/config.md` is generated from it.
"""

from decimal import Decimal
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from shoal import clocks
from shoal.crypto.tls import Mode, is_served
from shoal.rl.loss_config import LossConfig
from shoal.rollout_size import MAX_BYTES, PROOF_TOKENS, file_room

Positive = Annotated[int, Field(ge=1, lt=2**31)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]
# Generators of sampling noise; `generate/noise_kinds.py` says what produces each.
NoiseName = Literal["philox4x64", "vllm-0.32"]
# The tables of roles that compute.
DeviceTable = Literal["train", "workers", "audit", "eval"]
Decay = Annotated[float, Field(ge=0, lt=1)]
# A profile's name, or one with wildcards.
ProfilePattern = Annotated[str, Field(min_length=1, max_length=180, pattern=r"^[a-z0-9.+_/*?-]+$")]
RUN_NAME = r"^[a-z0-9][a-z0-9._-]*$"
# Default of ledger.plants if validators may belong to someone else.
PLANTS = 20
MAX_VALIDATORS = 64  # of a run's owner
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


class _Table(BaseModel):
    # Strict: `steps = true` is a slip, not one step.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RewardConfig(_Table):
    """One of several rewards of a source; an answer earns their weighted sum."""

    kind: str = Field(description="math, code, exact, format, own (the source's own), or python/FILE.py:FUNCTION.")
    weight: float = Field(1.0, description="Weight of this reward in the sum.")
    name: str | None = Field(None, description="Name of this part in rollouts; default: its kind.")


class CodeConfig(_Table):
    """Limits on a program that is scored, per test or for all calls of one function together."""

    seconds: float = Field(2.0, gt=0, le=600, description="Seconds of time, not counting the start of Python.")
    memory_mb: int = Field(512, ge=64, le=65536, description="MiB of memory.")
    output_kb: int = Field(1024, ge=1, le=65536, description="KiB of output.")


class SolveRateConfig(_Table):
    """Which rows of a table are trained on, by a column that says how often a model has solved them."""

    column: str = Field(description="The column, such as solve_rate_qwen_r1_distill_7b.")
    min: float = Field(0.125, ge=0, le=1, description="Rows below are left out, and rows without a value.")
    max: float = Field(0.5, ge=0, le=1, description="Rows above are left out.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min = {self.min} is above max = {self.max}; no row would be left")
        return self


def _whole(value: JsonValue) -> JsonValue:
    """A value whose whole numbers are integers. Canonical JSON writes 1.0 and 1 alike, so that a signature over a run
    card holds for both: if a source drew other tasks for one than for the other, changing it would go unnoticed."""
    match value:
        case float() if value.is_integer() and abs(value) < 1e21:
            return int(Decimal(repr(value)))  # the digits that are signed: beyond 2**53, those of no other float
        case list():
            return [_whole(part) for part in value]
        case dict():
            return {name: _whole(part) for name, part in value.items()}
    return value


class TaskConfig(_Table):
    """One source of tasks; several are mixed by weight."""

    source: str = Field(
        description="Where tasks come from: reasoning-gym/GENERATOR, file/PATH, dataset/NAME, lm-eval/FILE.yaml, "
        "verifiers/NAME, python/FILE.py, environment/NAME or environment/FILE.py (docs/turns.md), filtered/FILE, which "
        "shoal filter writes, or an exam (docs/evals.md)."
    )
    name: str | None = Field(None, description="Name in rollouts and metrics; default: the source's own.")
    weight: float = Field(1.0, gt=0, description="Share of the tasks drawn from this source, relative to the others.")
    options: dict[str, JsonValue] = Field(default_factory=dict, description="Options of the source itself.")
    difficulty: Annotated[int, Field(ge=0, le=100)] | list[Annotated[int, Field(ge=0, le=100)]] | None = Field(
        None, description="Level of the generator's curriculum, or a list of levels, drawn equally often."
    )
    columns: dict[str, str] = Field(
        default_factory=dict, description="For a table: which column is question, answer, tests or split."
    )
    reward: str | None = Field(
        None,
        description="math, code, exact, contains, format, row (by each row's task_type) or python/FILE.py:FUNCTION; "
        "default: the source's own.",
    )
    rewards: list[RewardConfig] = Field(default_factory=list, description="Several rewards instead of one.")
    thinking: bool = Field(False, description="An answer must close its thinking part with </think>, or it earns 0.")
    system: str = Field("", max_length=20_000, description="Text of a system turn before each prompt; empty: none.")
    prefill: str = Field(
        "", max_length=1000, description='How each answer begins, such as "<think>\\n"; it is part of the prompt.'
    )
    solve_rate: SolveRateConfig | None = None
    code: CodeConfig = CodeConfig()
    sha256: str | None = Field(None, description="Hash of the source's content; content with another hash is refused.")
    files: dict[str, Sha256] = Field(
        default_factory=dict, description="Hashes of the files that the source names, recorded when a run is prepared."
    )
    binary: bool = Field(True, description="Reward 1 for a fully correct answer and 0 otherwise: no partial credit.")
    answer: Literal["whole", "tagged", "boxed"] = Field(
        "whole", description="Where the answer is: the whole completion, between <answer> tags, or in \\boxed{}."
    )
    template: str = Field(
        "{question}", pattern=HAS_QUESTION, description="The prompt; {question} is replaced by the task's text."
    )
    unverified: Literal["refuse", "accept"] = Field(
        "refuse",
        description="For an environment that is not deterministic, whose answers and scores no validator can check: "
        "whether its episodes are taken on trust. What its reset asks must follow from the seed all the same.",
    )

    @property
    def environment_name(self) -> str:
        """Of the tasks of an environment: `name`, or the last part of the source without its ending."""
        return self.name or PurePath(self.source.partition("/")[2]).stem

    @field_validator("options", mode="after")
    @classmethod
    def _has_one_form(cls, options: dict[str, JsonValue]) -> dict[str, JsonValue]:
        return {name: _whole(value) for name, value in options.items()}

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
    warm_steps: int = Field(150, ge=0, description="Steps of supervised training before the run starts.")
    warm_batch: Positive = Field(64, description="Demonstrations per warm-start step.")
    warm_lr: float = Field(2e-3, gt=0, description="Peak learning rate of the warm start.")
    warm_tasks: list[TaskConfig] = Field(
        default_factory=list, description="Tasks demonstrated in the warm start; if empty, the run's own."
    )


class ModelConfig(_Table):
    """The base model, version 0 of the policy."""

    source: str = Field("tiny", description='"tiny" (built here), "smollm2", or a transformers model directory.')
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Number format of published weights; files of bfloat16 runs are judged by honest rates.",
    )
    tiny: TinyConfig = TinyConfig()


class SamplingConfig(_Table):
    """How answers are sampled: the same distribution in generation, validation and loss. No top-k, no top-p."""

    group_size: int = Field(16, ge=2, le=65536, description="Answers per prompt (a group).")
    temperature: float = Field(
        1.0, gt=0, le=10, description="Sampling temperature; the loss divides logits by it as well."
    )
    mode: Literal["seeded", "free"] = Field(
        "seeded",
        description="seeded: noise derived from the lease, so that every token can be checked. free: the "
        "worker's own noise, which can be checked only statistically.",
    )
    noise: NoiseName = Field(
        "philox4x64",
        description="Where seeded noise comes from. philox4x64: Shoal's own engines. vllm-0.32: the V2 sampler of vLLM "
        "0.32, which a stock server has (docs/stock-server.md); workers with other releases cannot take part.",
    )
    max_new_tokens: Positive = Field(64, description="Longest answer, in tokens.")
    max_prompt_tokens: Positive = Field(256, description="Longest prompt, in tokens; a longer one is an error.")

    @model_validator(mode="after")
    def _draws_by_the_noise_that_it_names(self) -> Self:
        if self.mode == "free" and self.noise != "philox4x64":
            raise ValueError(
                f"noise = {self.noise!r}: with mode = 'free' each worker draws its own noise; leave noise out, or set "
                "mode = 'seeded'"
            )
        return self


class TurnsConfig(_Table):
    """Limits of episodes, for tasks that are played in turns (docs/turns.md)."""

    max: int = Field(8, ge=1, le=256, description="Most turns of the policy in an episode.")
    tokens: Positive = Field(
        64, description="Most tokens of one turn. All turns, and what is inserted between them, share max_new_tokens."
    )
    observation: Positive = Field(1000, description="Most characters that an environment inserts at once.")
    seconds: float = Field(
        10.0,
        gt=0,
        le=600,
        description="Seconds per step of an environment; n actions that are played at once may take n + 1 times as "
        "long. An episode that takes longer is void.",
    )
    memory_mb: int | None = Field(
        None,
        ge=1024,
        le=65536,
        description="MiB of address space of the process that plays environments; default: 2048, or 8192 where it "
        "plays harnesses or environments of other packages. An episode that needs more is void. Programs of the "
        "Python tool have a limit of their own (tasks.code.memory_mb).",
    )


class LoraConfig(_Table):
    """Training of small matrices beside frozen layers (arXiv:2106.09685): a version is an adapter of megabytes.

    A layer W becomes W + alpha / rank * B A. Without this table, all weights are trained.
    """

    rank: int = Field(8, ge=1, le=4096, description="Rows of A and columns of B; at most the smaller side of a layer.")
    alpha: float = Field(16.0, gt=0, le=1e6, description="Scale of an adapter, as a multiple of 1 / rank.")
    targets: list[str] = Field(
        default_factory=list,
        description='Names of the linear layers that get an adapter, as in ["q_proj", "v_proj"]; if empty, '
        "every linear layer but the output head.",
    )


class WatchConfig(_Table):
    """Warning signs of a training that will collapse (docs/training.md#warning-signs): named in log, pages and metrics.

    A sign shows while the median of the last steps is a factor above the lowest such median before.
    """

    window: int = Field(10, ge=2, le=1000, description="Steps of a median.")
    skip: int = Field(20, ge=0, description="Steps at the start of a run that are not looked at.")
    grad_norm: float = Field(3.0, gt=1, description="Factor of the gradient norm, before clipping.")
    entropy: float = Field(1.5, gt=1, description="Factor of the entropy.")
    clip: float = Field(4.0, gt=1, description="Factor of the share of clipped tokens.")
    kl: float = Field(3.0, gt=1, description="Factor of the KL divergence to the base model, to the window before.")
    stop: int = Field(0, ge=0, le=4, description="Stop the run once this many signs show at the same time; 0: never.")


class TrainConfig(_Table):
    """The optimizer and the training step.

    Defaults are those of INTELLECT-2 (arXiv:2505.07291), except groups_per_step (32 here, 256 there) and
    optimizer_steps (1 here, 8 there), which suit a small machine.
    """

    groups_per_step: Positive = Field(
        32, description="Groups with signal (rewards that differ) that a step waits for; INTELLECT-2: 256."
    )
    online_filter: bool = Field(
        True,
        description="Sample more groups in place of those without signal; false fills a step with whatever arrives.",
    )
    optimizer_steps: Positive = Field(
        1, description="Optimizer steps per training step, each on a part of its rollouts; INTELLECT-2: 8."
    )
    token_budget: Positive = Field(4096, description="Tokens packed into one forward pass.")
    lr: float = Field(3e-7, gt=0, description="Learning rate after warm-up.")
    warmup_steps: int = Field(
        25, ge=0, description="Optimizer steps of linear warm-up; the rate is constant afterwards."
    )
    cooldown_steps: int = Field(
        0,
        ge=0,
        description="Optimizer steps at the end of the run over which the rate falls linearly to 0; 0: no cool-down.",
    )
    betas: tuple[Decay, Decay] = Field((0.9, 0.99), strict=False, description="AdamW's moment decay rates.")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's weight decay.")
    grad_clip: float = Field(0.1, gt=0, description="Largest gradient norm.")
    old_logprobs: Literal["recomputed", "sampled"] = Field(
        "recomputed",
        description="Denominator of the policy ratio: recomputed with the policy at the start of the step, or as "
        "sampled by the worker. With sampled, the clip also limits what stale rollouts can change.",
    )
    advantage_std: bool = Field(
        True, description="Divide advantages by the group's standard deviation; false gives Dr. GRPO."
    )
    oversample: float = Field(
        16.0, ge=1, description="Upper limit on groups sampled for a step, as a multiple of groups_per_step."
    )
    max_bad_steps: Positive = Field(
        3, description="Stop after this many consecutive steps with a non-finite loss or gradient."
    )
    checkpoint_every: Positive = Field(1, description="Steps between checkpoints.")
    threads: Threads = Field(1, description="CPU threads of the trainer.")
    device: DeviceName | None = Field(None, description="Device of the trainer; default: the run's device.")
    ranks: int = Field(
        1,
        ge=1,
        le=1024,
        description="Processes that shoal run splits the trainer into, each with its share of the model. Elsewhere: "
        "torchrun --nproc-per-node N -m shoal trainer RUN --join URL.",
    )
    activation_checkpointing: bool = Field(
        False, description="Keep only the input of each block and compute the rest again for gradients: less memory."
    )
    offload_activations: bool = Field(
        False, description="Keep these inputs in host memory; needs activation_checkpointing."
    )
    offload_optimizer: bool = Field(
        False, description="Keep the optimizer's moments, 8 bytes per parameter, in host memory."
    )
    device_tflops: float = Field(
        0.0,
        ge=0,
        description="Peak TFLOP/s of one of the trainer's devices, of which the metric mfu is a share; 0: the known "
        "figure of its model, if there is one.",
    )
    loss: LossConfig = LossConfig()
    lora: LoraConfig | None = Field(None, description="Train adapters instead of all weights.")
    watch: WatchConfig = WatchConfig()

    @model_validator(mode="after")
    def _offloads_what_it_keeps(self) -> Self:
        if self.offload_activations and not self.activation_checkpointing:
            raise ValueError(
                "offload_activations = true: only the inputs of recomputed blocks are offloaded; set "
                "activation_checkpointing = true too"
            )
        return self

    @property
    def max_groups(self) -> int:
        """Groups after which a step asks for no more."""
        return int(self.oversample * self.groups_per_step)


Credits = Annotated[int, Field(ge=0, lt=1 << 112)]
Batch = Annotated[int, Field(ge=1, le=65536)]


EngineName = Literal["auto", "torch", "vllm", "vllm-server"]


class WorkerConfig(_Table):
    """The machines that generate."""

    count: int = Field(1, ge=1, le=1024, description="Workers started by shoal run.")
    threads: Threads = Field(1, description="CPU threads per worker.")
    device: DeviceName | None = Field(
        None, description="Device of the workers started by shoal run; default: the run's device."
    )
    max_batch: Batch = Field(128, description="Sequences generated at once.")
    batches: list[Batch] = Field(
        default_factory=list, description="max_batch for each worker of shoal run, if they differ."
    )
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="Number format that workers compute in; default: model.dtype."
    )
    server: str = Field(
        "",
        pattern=SERVER_URL,
        description='URL of the stock vLLM server of engine = "vllm-server", on this machine (docs/stock-server.md); '
        "needs audit.proofs = false. A machine that joins gives its own (--server).",
    )
    engine: EngineName = Field(
        "auto",
        description="What generates: our own engine (torch), vLLM, or a stock server of it (vllm-server). auto is vLLM "
        "where it is installed and the device is a CUDA one, torch elsewhere.",
    )
    engines: list[EngineName] = Field(
        default_factory=list, description="engine for each worker of shoal run, if they differ."
    )
    tensor_parallel: int = Field(
        1, ge=1, le=64, description="Devices that vLLM splits the model over; part of the node's profile."
    )
    kv_cache_gb: float | None = Field(
        None,
        gt=0,
        description="GiB per device for vLLM's KV cache. Default: on a CUDA device what max_batch answers take at "
        "their longest, or what is free if that is less; 1 on a CPU.",
    )
    groups_per_submission: Positive = Field(8, description="Groups per rollout file.")
    in_flight: bool = Field(
        False,
        description="Whether answers that are being generated go on with a new version when it comes, at one of at "
        "most 16 places, instead of ending with the version that they began with.",
    )
    lease_s: float | None = Field(
        None,
        gt=0,
        description="Seconds after which an unfinished lease goes back to the pool. Default: three times what answers "
        "of full length take at the node's measured speed; for a node without accepted files, what they take at 200 "
        "tokens per second; at least 240.",
    )

    def batch_of(self, worker: int) -> int:
        return self.batches[worker] if worker < len(self.batches) else self.max_batch

    def engine_of(self, worker: int) -> "EngineName":
        return self.engines[worker] if worker < len(self.engines) else self.engine


class ThresholdsConfig(_Table):
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


# INTELLECT-2, arXiv:2505.07291: the targets of its two runs, and what its prompts say.
LENGTH_PRESETS: dict[str, list[int]] = {"long": [2000, 4000, 6000, 8000, 10000], "short": [1000, 2000, 3000, 4000]}
PAPERS_PROMPT = "{prompt} Think for {target} tokens before giving a response."


class LengthConfig(_Table):
    """Length budgets: a target per prompt, derived from the lease, stated in the prompt and part of the reward."""

    preset: Literal["none", "long", "short"] = Field(
        "none",
        description="long or short: targets (2000 .. 10000, 1000 .. 4000) and prompt of INTELLECT-2 "
        "(arXiv:2505.07291) where this table does not give its own.",
    )
    targets: list[Positive] = Field(
        default_factory=list, description="Lengths in tokens to draw from; if empty, no budget."
    )
    alpha: float = Field(
        0.0003, ge=0, description="Reward lost per token above or below the target (arXiv:2505.07291)."
    )
    form: Literal["exact", "max"] = Field(
        "exact", description="exact: as long as the target; max: no longer than it (arXiv:2503.04697)."
    )
    prompt: str = Field(
        "{prompt}\nAnswer in {target} tokens.",
        pattern=HAS_TARGET,
        description="The prompt with its budget: {prompt} is the original prompt, {target} the length.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fills_in_the_preset(cls, tree: Any) -> Any:
        targets = LENGTH_PRESETS.get(tree.get("preset", "")) if isinstance(tree, dict) else None
        return tree if targets is None else {"targets": targets, "prompt": PAPERS_PROMPT, **tree}


class SamplerConfig(_Table):
    """How tasks are drawn: all equally often, or more often those that are solved sometimes."""

    kind: Literal["uniform", "difficulty"] = Field(
        "uniform", description="difficulty draws by a table of weights that is published with each version."
    )
    floor: float = Field(
        0.1, ge=0.001, le=1, description="Weight of a task that is always or never solved; the largest weight is 1."
    )
    smoothing: float = Field(
        2.0,
        gt=0,
        description="Prior strength: each task starts as if it had this many answers at its source's mean pass rate.",
    )
    memory: float = Field(0.98, ge=0, le=1, description="Decay applied to past answers at each training step.")


class AuditConfig(_Table):
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


class CheaterConfig(_Table):
    """A worker of this run that cheats, to see that it is caught."""

    attack: str = Field(description="How it cheats; shoal attacks lists the ways.")


class EvalConfig(_Table):
    """Evaluation on held-out tasks, beside training and without delaying it."""

    tasks: Positive = Field(256, description="Held-out tasks, the same for every version.")
    every: Positive = Field(
        10,
        description="Minimum number of versions between two evaluations; the first and last are always evaluated.",
    )
    at: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(
        default_factory=list,
        description="Versions to evaluate besides the first and the last; if given, every is ignored.",
    )
    samples: Positive = Field(1, description="Answers per held-out task; with k of them, pass@k is measured too.")
    suite: str = Field(
        "",
        description="Suite to measure at the same versions: words, arithmetic, reasoning, or a file; if empty, none.",
    )
    threads: Threads = Field(1, description="CPU threads of the evaluator.")
    device: DeviceName | None = Field(None, description="Device of the evaluator; default: the run's device.")


class KeepConfig(_Table):
    """How much history is kept on disk."""

    versions: Positive = Field(5, description="Policy versions kept in addition to the base model.")
    checkpoints: Positive = Field(2, description="Checkpoints kept.")
    rollouts: int = Field(
        0,
        ge=0,
        description="Trained steps whose rollouts are kept, and those since the last whole checkpoint; 0 keeps all. An "
        "accepted file that is removed before its challenge window closes, up to 2 * (ledger.patience + ledger.window) "
        "+ 2 steps, can no longer be ruled on.",
    )
    rejected_mib: int = Field(
        1024,
        ge=0,
        description="MiB of rejected files that the coordinator keeps while they can be challenged.",
    )
    evidence: Positive = Field(
        50,
        description="Steps for which evidence bundles are kept; longer if a challenge may take longer.",
    )
    evidence_versions: int = Field(
        1,
        ge=0,
        description="Versions of blamed files whose weights are kept after nobody can challenge the verdict any more. "
        "Until then all are.",
    )


class SwarmConfig(_Table):
    """The coordinator: where it listens, where it stores its state, and which addresses have which role."""

    host: str = Field(
        "127.0.0.1", description="Address that the coordinator and the relay listen on; 0.0.0.0: all interfaces."
    )
    public: str = Field(
        "", description="Host name or address under which other machines reach this one; if empty, host."
    )
    port: int = Field(0, ge=0, le=65535, description="Port that the coordinator listens on; 0 picks a free one.")
    pages: Literal["loopback", "public", "off"] = Field(
        "loopback",
        description="Who may open the run's web pages: this machine alone, everybody who reaches swarm.host "
        "(docs/page.md lists what they see), or nobody.",
    )
    page_port: int = Field(0, ge=0, le=65535, description="Port of the web pages; 0 picks a free one.")
    tls: Mode = Field(
        "auto",
        description="Whether the coordinator and the relay serve https; auto: unless they listen on loopback only.",
    )
    tls_cert: str = Field(
        "",
        description="PEM file with a certificate from a public authority; if empty, a self-signed one, which the "
        "address in URL#0xADDRESS vouches for.",
    )
    tls_key: str = Field("", description="PEM file with the private key of tls_cert.")
    database: str = Field(
        "",
        description="postgresql://USER@HOST/NAME, with the password in the environment (PGPASSWORD, PGPASSFILE); "
        "if empty, a SQLite file in the run's directory.",
    )
    store: str = Field(
        "", description="Where uploads are stored: s3://BUCKET or a directory; if empty, in the run's directory."
    )
    store_options: dict[str, str] = Field(
        default_factory=dict,
        description="Options of the object store, such as endpoint and region; secrets belong in the environment.",
    )
    trainer: str = Field("", description="Address of the trainer; if empty, that of the key in RUN/keys.")
    validators: list[str] = Field(
        default_factory=list, description="Addresses whose verdicts count; if empty, that of the key in RUN/keys."
    )
    origin: str = Field("", description="Address that signs versions; if empty, the run's own origin.")
    relays: list[str] = Field(default_factory=list, description="URLs from which versions can be fetched.")
    allow: list[str] = Field(
        default_factory=list,
        description="Allow-list of addresses that may join, beside nodes with an invite; if empty, anyone may, unless "
        "the run is closed.",
    )
    closed: bool = Field(
        False, description="Whether only nodes of the allow-list and nodes with an invite (shoal invite) may join."
    )
    leases: Positive = Field(
        4,
        description="Leases that a node may hold at once. More than one needs accepted files, more than three stake "
        "(ledger.stake_per_lease).",
    )
    probation_files: Positive = Field(
        4,
        description="Files that may await a verdict per node on probation (fewer accepted files than "
        "audit.probation); all new nodes of one network share as many.",
    )
    max_nodes: Positive = Field(
        10_000,
        description="Largest number of nodes; beyond it, a lost node without an accepted file makes room for a "
        "new one.",
    )
    heartbeat_s: float = Field(10.0, ge=0.1, le=30, description="Seconds between a node's heartbeats.")
    requests_per_s: float = Field(
        100.0,
        ge=1,
        description="Rate limit (token bucket) per node, and per IP address for all strangers together; bursts "
        "of twenty times as many.",
    )

    @property
    def is_closed(self) -> bool:
        """Whether a stranger needs an invite."""
        return self.closed or bool(self.allow)

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


class TensorBoardConfig(_Table):
    """Curves as TensorBoard event files; needs `pip install 'shoal-rl[tensorboard]'`."""

    dir: str = Field(
        "", description="Directory in which the run gets a folder of its own; if empty, RUN/sinks/tensorboard."
    )


class WandbConfig(_Table):
    """Curves to Weights & Biases; needs `pip install 'shoal-rl[wandb]'` and, unless offline, a login."""

    project: str = Field("shoal", min_length=1, max_length=128, description="Project that the run belongs to.")
    entity: str = Field("", description="User or team; if empty, the default of the login.")
    mode: Literal["online", "offline"] = Field(
        "online", description="offline: files in RUN/sinks/wandb, which `wandb sync` sends later."
    )


class TrackioConfig(_Table):
    """Curves to trackio, in files on this machine; needs `pip install 'shoal-rl[trackio]'`."""

    project: str = Field("shoal", min_length=1, max_length=128, description="Project that the run belongs to.")
    dir: str = Field("", description="Directory of trackio's files (TRACKIO_DIR); if empty, RUN/sinks/trackio.")


class LogConfig(_Table):
    """Where metrics go besides the run's own files, each from a process of its own that no role waits for."""

    prometheus: int = Field(
        0, ge=0, le=65535, description="Port on 127.0.0.1 at which Prometheus finds /metrics of all roles; 0: none."
    )
    tensorboard: TensorBoardConfig | None = Field(None, description="TensorBoard.")
    wandb: WandbConfig | None = Field(None, description="Weights & Biases.")
    trackio: TrackioConfig | None = Field(None, description="trackio.")


class RunConfig(_Table):
    """A whole run."""

    name: str = Field(pattern=RUN_NAME, description="Name of the run and of its directory.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of all of the run's randomness.")
    steps: Positive = Field(description="Training steps; step k yields policy version k + 1.")
    async_level: int = Field(2, ge=0, le=64, description="Step k accepts rollouts of versions k - async_level .. k.")
    wait_s: float | None = Field(
        None,
        gt=0,
        description="Seconds after which a role gives up on a coordinator or relay that does not answer, and which "
        "validators have for a vote. For files and versions roles keep waiting, and report it each time this has "
        "passed. Default: a quarter of a new node's lease, at least 600 and at most 3600.",
    )
    device: DeviceName = Field(
        "auto",
        description="What roles of this run compute on: cpu, cuda or mps; auto: the first of cuda, mps and cpu that "
        "their machine has. A machine that joins from elsewhere chooses for itself (--device).",
    )
    model: ModelConfig = ModelConfig()
    tasks: list[TaskConfig] = Field(min_length=1, description="Sources of tasks.")
    sampling: SamplingConfig = SamplingConfig()
    turns: TurnsConfig = TurnsConfig()
    length: LengthConfig = LengthConfig()
    sampler: SamplerConfig = SamplerConfig()
    train: TrainConfig = TrainConfig()
    workers: WorkerConfig = WorkerConfig()
    cheaters: list[CheaterConfig] = Field(default_factory=list, description="Workers that cheat, one table per worker.")
    audit: AuditConfig = AuditConfig()
    eval: EvalConfig = EvalConfig()
    keep: KeepConfig = KeepConfig()
    swarm: SwarmConfig = SwarmConfig()
    ledger: LedgerConfig = LedgerConfig()
    log: LogConfig = LogConfig()

    @property
    def max_len(self) -> int:
        """The longest sequence, prompt and answer."""
        return self.sampling.max_prompt_tokens + self.sampling.max_new_tokens

    @property
    def file_tokens(self) -> int:
        """Most tokens that are generated for a rollout file."""
        return self.workers.groups_per_submission * self.sampling.group_size * self.sampling.max_new_tokens

    @property
    def new_lease_s(self) -> float:
        """Seconds that a lease of a node without accepted files lasts."""
        return self.workers.lease_s or clocks.newcomer_lease_s(self.file_tokens)

    @property
    def patience_s(self) -> float:
        """Seconds that roles wait: `wait_s`, or what follows from the longest file."""
        return self.wait_s or clocks.wait_s(self.new_lease_s)

    @property
    def max_file_bytes(self) -> int:
        """Most bytes of a rollout file of this run."""
        sampling = self.sampling
        samples = self.workers.groups_per_submission * sampling.group_size
        return file_room(samples, sampling.max_prompt_tokens, sampling.max_new_tokens, self.max_turns)

    @property
    def max_turns(self) -> int:
        """Most turns of an answer: one, unless tasks are environments."""
        return self.turns.max if self.has_environments else 1

    @property
    def has_environments(self) -> bool:
        """Whether answers to some tasks are episodes, whatever their most turns are."""
        return any(task.source.startswith("environment/") for task in self.tasks)

    @property
    def unverified(self) -> list[str]:
        """Names of the environments whose observations and rewards are taken on their workers' word."""
        lines = [task for task in self.tasks if task.unverified == "accept"]
        return [task.environment_name for task in lines]

    def device_of(self, role: DeviceTable) -> DeviceName:
        """What a role of this run computes on."""
        own: DeviceName | None = getattr(self, role).device
        return own or self.device

    @model_validator(mode="before")
    @classmethod
    def _watches_strangers(cls, tree: Any) -> Any:
        """Plants samples by default if the config names validators: they may belong to someone else."""
        if not isinstance(tree, dict) or not isinstance(swarm := tree.get("swarm", {}), dict):
            return tree
        ledger = tree.get("ledger", {})
        if not swarm.get("validators") or not isinstance(ledger, dict) or "plants" in ledger:
            return tree
        return {**tree, "ledger": {**ledger, "plants": PLANTS}}

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
        if self.max_file_bytes > MAX_BYTES:
            raise ValueError(
                f"workers.groups_per_submission = {self.workers.groups_per_submission}: with "
                f"{self.sampling.group_size} answers per group of up to {self.sampling.max_new_tokens} tokens its "
                f"file may have {self.max_file_bytes:,} bytes, and at most {MAX_BYTES:,} are read; lower one of them"
            )
        self._in_flight_can_work()
        self._engines_fit()
        self._numbers_fit()
        self._clocks_can_work()
        self._judged_by_enough()
        if self.train.optimizer_steps > self.train.groups_per_step:
            raise ValueError(
                f"train.optimizer_steps = {self.train.optimizer_steps}: each needs a group, and "
                f"train.groups_per_step is {self.train.groups_per_step}; lower the first or raise the second"
            )
        # After a resume from the oldest checkpoint that may be the newest, its rollouts' versions must still be there.
        fewest = self.async_level + self.train.checkpoint_every + 1
        if self.keep.versions < fewest:
            raise ValueError(
                f"keep.versions = {self.keep.versions}: async_level {self.async_level} and train.checkpoint_every "
                f"{self.train.checkpoint_every} need at least {fewest} versions on disk; raise keep.versions"
            )
        return self

    def _in_flight_can_work(self) -> None:
        if not self.workers.in_flight:
            return
        if self.async_level < 1:
            raise ValueError(
                "workers.in_flight = true: async_level = 0 takes rollouts of one version only, so no answer can go on "
                "with another; raise async_level, or leave workers.in_flight out"
            )
        if self.sampling.max_new_tokens <= PROOF_TOKENS:
            raise ValueError(
                f"workers.in_flight = true: answers change versions after whole chunks of {PROOF_TOKENS} tokens, and "
                f"sampling.max_new_tokens is {self.sampling.max_new_tokens}; raise that, or leave it out"
            )
        if self.has_environments:
            raise ValueError(
                "workers.in_flight = true: episodes of environments keep the version that they began with; leave it "
                "out, or the environments"
            )

    def _engines_fit(self) -> None:
        foreign = {"vllm", "vllm-server"} & {self.workers.engine, *self.workers.engines}
        if foreign and self.has_environments:
            raise ValueError(
                f"workers.engine = {min(foreign)!r}: episodes of environments are generated by our own engine alone; "
                "set workers.engine = 'torch', or leave the environments out"
            )
        has_server = "vllm-server" in (self.workers.engine, *self.workers.engines)
        if has_server != bool(self.workers.server):
            raise ValueError(
                f"workers.server = {self.workers.server!r}: goes with workers.engine = 'vllm-server', which is "
                f"{self.workers.engine!r}; give both, or neither"
            )
        if self.workers.server and self.audit.proofs:
            raise ValueError(
                "workers.server: a stock server does not give its hidden states, so its files have no proofs; set "
                "audit.proofs = false if that is meant, and read what is then not caught (docs/stock-server.md)"
            )
        if self.workers.server and self.train.lora is not None:
            raise ValueError("workers.server: a stock server loads whole versions; leave train.lora out")

    def _numbers_fit(self) -> None:
        if self.model.dtype != "float32":
            return
        if not self.audit.enforce:
            raise ValueError(
                "audit.enforce = false: only reports what bfloat16 numbers show, and model.dtype is 'float32', whose "
                "files are judged by audit.thresholds; leave it out, or set model.dtype = 'bfloat16'"
            )
        if self.workers.dtype == "bfloat16":
            raise ValueError(
                "workers.dtype = 'bfloat16': honest workers would be rejected, for model.dtype is 'float32', whose "
                "thresholds bfloat16 does not keep; set model.dtype = 'bfloat16' too, or leave workers.dtype out"
            )
        if self.audit.profiles or self.audit.rates:
            which = "profiles" if self.audit.profiles else "rates"
            raise ValueError(
                f"audit.{which}: is for bfloat16 runs, and model.dtype is 'float32', which is judged by "
                f"audit.thresholds; leave it out, or set model.dtype = 'bfloat16'"
            )

    def _clocks_can_work(self) -> None:
        fastest_s = self.sampling.max_new_tokens / clocks.FASTEST_ANSWER
        if self.workers.lease_s is not None and self.workers.lease_s < fastest_s:
            raise ValueError(
                f"workers.lease_s = {self.workers.lease_s:g}: an answer of sampling.max_new_tokens = "
                f"{self.sampling.max_new_tokens} takes at least {fastest_s:g} s, for no engine gives one answer more "
                f"than {clocks.FASTEST_ANSWER:,.0f} tokens per second; raise it, or leave it out: leases then follow "
                "each node's measured speed"
            )
        checked_s = self.file_tokens / clocks.FASTEST_CHECK
        if self.wait_s is not None and self.ledger.drawn > 1 and self.wait_s < checked_s:
            raise ValueError(
                f"wait_s = {self.wait_s:g}: no validator could vote in time, for a file of up to {self.file_tokens:,} "
                f"tokens takes at least {checked_s:g} s to check; raise it, or leave it out"
            )

    def _judged_by_enough(self) -> None:
        """One of several validators alone decides on nothing, and as many can vote as are needed.

        The run card does not tell who the validators are, so none may be named here.
        """
        count, quorum = len({address.lower() for address in self.swarm.validators}), self.ledger.quorum
        own = self.audit.count
        if own > 1 and quorum > 1:
            raise ValueError(
                f"audit.count = {own}: validators that share the files decide on them alone, and ledger.quorum = "
                f"{quorum} wants several votes on each; name them in swarm.validators, or set ledger.quorum = 1"
            )
        if count > 1 and quorum == 1 and count != own:
            drawn = min(count, 3)
            raise ValueError(
                f"ledger.quorum = 1: swarm.validators names {count}, and what the fastest of them says would stand; "
                f"set ledger.quorum = 2 and ledger.drawn = {drawn}, or audit.count = {count} if all of them are yours"
            )
        if own > 1 and count not in (0, own):
            raise ValueError(f"audit.count = {own}: swarm.validators names {count}; name as many, or none")
        if count and quorum > count:
            raise ValueError(
                f"ledger.quorum = {quorum}: swarm.validators names {count}, so nothing would ever be decided; name "
                "more, or lower it"
            )
