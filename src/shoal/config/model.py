"""Tables of the model and of how answers are sampled from it."""

from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.config.table import Positive, Table
from shoal.config.tasks import TaskConfig

# Generators of sampling noise; `generate/noise_kinds.py` says what produces each.
NoiseName = Literal["philox4x64", "vllm-0.32"]


class TinyConfig(Table):
    """The small base model that is built on this machine when `model.source` is "tiny"."""

    hidden: int = Field(128, ge=32, le=1024, multiple_of=32, description="Hidden size.")
    layers: int = Field(4, ge=1, le=32, description="Transformer blocks.")
    warm_steps: int = Field(150, ge=0, description="Steps of supervised training before the run starts.")
    warm_batch: Positive = Field(64, description="Demonstrations per warm-start step.")
    warm_lr: float = Field(2e-3, gt=0, description="Peak learning rate of the warm start.")
    warm_tasks: list[TaskConfig] = Field(
        default_factory=list, description="Tasks demonstrated in the warm start; if empty, the run's own."
    )


class ModelConfig(Table):
    """The base model, version 0 of the policy."""

    source: str = Field("tiny", description='"tiny" (built here), "smollm2", or a transformers model directory.')
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Number format of published weights; files of bfloat16 runs are judged by honest rates.",
    )
    tiny: TinyConfig = TinyConfig()


class SamplingConfig(Table):
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


class TurnsConfig(Table):
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
