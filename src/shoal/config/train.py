"""Tables of the trainer and of what is measured beside it."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shoal.config.table import DeviceName, Positive, Table, Threads
from shoal.rl.loss_config import LossConfig

Decay = Annotated[float, Field(ge=0, lt=1)]


class LoraConfig(Table):
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


class WatchConfig(Table):
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


class TrainConfig(Table):
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


class EvalConfig(Table):
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
