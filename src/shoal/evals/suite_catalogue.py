"""Suites: what is asked in an evaluation, and how. Those built in need no network; others are files."""

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal.config import TaskConfig
from shoal.errors import ConfigError
from shoal.evals.paper_suites import PAPER_SUITES, PaperSuite
from shoal.extras import require

# A prompt of lm-eval is as long as it is: what the model can handle is the bound.
MAX_PROMPT_TOKENS = 1 << 20
# No exam has as many; a suite asks those that there are.
ALL_TASKS = 1 << 20


class Suite(BaseModel):
    """A named list of sources, with the number of tasks of each and how answers are drawn."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str = Field(description="Name in tables.")
    sources: list[TaskConfig] = Field(min_length=1, description="What is asked, held-out tasks only.")
    tasks: int = Field(100, ge=1, description="Tasks of each source.")
    samples: int = Field(8, ge=1, description="Answers to each task.")
    temperature: float = Field(1.0, ge=0, le=10, description="0 decodes greedily.")
    max_new_tokens: int = Field(64, ge=1, description="Longest answer.")
    max_prompt_tokens: int = Field(512, ge=1, description="Longest prompt.")
    seed: int = Field(0, ge=0, description="The same noise for every model.")


def _gym(generator: str, *levels: int, **changes: object) -> TaskConfig:
    fields = {"source": f"reasoning-gym/{generator}", "difficulty": list(levels) or None, **changes}
    return TaskConfig.model_validate(fields)


BUILT_IN = {
    suite.name: suite
    for suite in (
        Suite(
            name="words",
            sources=[
                TaskConfig(
                    source="reasoning-gym/spell_backward",
                    name=f"{n} letters",
                    options={"min_word_len": n, "max_word_len": n},
                )
                for n in (3, 4, 5, 6, 7, 8)
            ],
            max_new_tokens=12,
        ),
        Suite(
            name="arithmetic",
            sources=[_gym("chain_sum", 0, 1, 2), _gym("products", 0, 1), _gym("decimal_chain_sum", 0)],
            max_new_tokens=32,
        ),
        Suite(
            name="reasoning",
            sources=[
                _gym(name, answer="tagged")
                for name in ("letter_counting", "number_sorting", "leg_counting", "calendar_arithmetic", "countdown")
            ],
            max_new_tokens=256,
            max_prompt_tokens=1024,
        ),
    )
}


def find_suite(name: str) -> Suite:
    """A built-in suite, one of the paper's, which has a file in the cache, the one that a TOML file describes, or a
    task of lm-evaluation-harness by its YAML file."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name in PAPER_SUITES:
        return _of_paper(PAPER_SUITES[name])
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return _of_lm_eval(path)
    if path.suffix != ".toml":
        raise ConfigError(
            f"--suite {name}: not one of {', '.join([*BUILT_IN, *PAPER_SUITES])}, and no .toml or .yaml file"
        )
    try:
        tree = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"--suite {name}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"--suite {name}: not valid TOML: {error}") from error
    try:
        return Suite.model_validate({"name": path.stem} | tree)
    except ValidationError as error:
        faults = "\n".join(f"  {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ConfigError(f"--suite {name}:\n{faults}") from None


def _of_paper(found: PaperSuite) -> Suite:
    """All questions of the file, asked as reports on these suites ask them."""
    source = TaskConfig.model_validate(found.source())
    drawn = {name: value for name, value in found.settings.items() if name != "source"}
    return Suite.model_validate({"name": found.name, "sources": [source], "tasks": ALL_TASKS} | drawn)


def _of_lm_eval(path: Path) -> Suite:
    """All tasks of the file, asked as it says."""
    require("lmeval", f"--suite {path}")
    from shoal.tasks.sources.lmeval.recipe import read_recipe
    from shoal.tasks.sources.lmeval.source import LmEval

    recipe = read_recipe(path)
    return Suite(
        name=recipe.task,
        sources=[TaskConfig(source=f"lm-eval/{path}")],
        tasks=LmEval(path).heldout_size,
        samples=recipe.repeats,
        temperature=recipe.temperature,
        max_new_tokens=recipe.max_new_tokens,
        max_prompt_tokens=MAX_PROMPT_TOKENS,
    )
