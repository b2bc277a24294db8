"""Tables of tasks: sources, their rewards, how tasks are drawn, and length budgets."""

from decimal import Decimal
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from shoal.config.table import HAS_QUESTION, HAS_TARGET, Positive, Table

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# INTELLECT-2, arXiv:2505.07291: the targets of its two runs, and what its prompts say.
LENGTH_PRESETS: dict[str, list[int]] = {"long": [2000, 4000, 6000, 8000, 10000], "short": [1000, 2000, 3000, 4000]}
PAPERS_PROMPT = "{prompt} Think for {target} tokens before giving a response."


class RewardConfig(Table):
    """One of several rewards of a source; an answer earns their weighted sum."""

    kind: str = Field(description="math, code, exact, format, own (the source's own), or python/FILE.py:FUNCTION.")
    weight: float = Field(1.0, description="Weight of this reward in the sum.")
    name: str | None = Field(None, description="Name of this part in rollouts; default: its kind.")


class CodeConfig(Table):
    """Limits on a program that is scored, per test or for all calls of one function together."""

    seconds: float = Field(2.0, gt=0, le=600, description="Seconds of time, not counting the start of Python.")
    memory_mb: int = Field(512, ge=64, le=65536, description="MiB of memory.")
    output_kb: int = Field(1024, ge=1, le=65536, description="KiB of output.")


class SolveRateConfig(Table):
    """Which rows of a table are trained on, by a column that says how often a model has solved them."""

    column: str = Field(description="The column, such as solve_rate_qwen_r1_distill_7b.")
    min: float = Field(0.125, ge=0, le=1, description="Rows below are left out, and rows without a value.")
    max: float = Field(0.5, ge=0, le=1, description="Rows above are left out.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min = {self.min} is above max = {self.max}; no row would be left")
        return self


class TaskConfig(Table):
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


class SamplerConfig(Table):
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


class LengthConfig(Table):
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
