"""What is calibrated: the config that a command line names, its base model, and requests to answer."""

import random
from pathlib import Path

from shoal.config import RunConfig
from shoal.config_io import check_config, load_config
from shoal.errors import ConfigError
from shoal.generate.engine import Request
from shoal.models.load import Policy
from shoal.tasks.build import build_source

RANDOM_PROMPT = 16


def make_requests(policy: Policy, config: RunConfig, samples: int, with_tasks: bool) -> list[Request]:
    """Groups of answers to the config's tasks, or to random tokens."""
    rng = random.Random(config.seed)
    source = build_source(config.tasks) if with_tasks else None
    size, new = config.sampling.group_size, config.sampling.max_new_tokens
    requests: list[Request] = []
    while len(requests) < samples:
        group = len(requests) // size
        if source is not None:
            prompt = policy.encode_task(source.task("train", group))[: config.sampling.max_prompt_tokens]
        else:
            prompt = [rng.randrange(policy.vocab) for _ in range(RANDOM_PROMPT)]
        requests += [Request(tuple(prompt), config.seed, len(requests) + n, new) for n in range(size)]
    return requests[:samples]


def resolve(model: str, config: Path | None, dtype: str | None) -> tuple[RunConfig, bool]:
    """The config to calibrate with, and whether its tasks are the prompts."""
    if model.endswith(".toml") and config is None:
        resolved, with_tasks = load_config(Path(model)), True
    elif config is not None:
        resolved, with_tasks = load_config(config, [f"model.source='{model}'"]), True
    elif model == "tiny":
        raise ConfigError("calibrate tiny: a tiny model is built from a config; give one with --config")
    else:
        # Its tasks are never asked: prompts are random tokens.
        tasks = [{"source": "reasoning-gym/spell_backward"}]
        bare = {"name": "calibrate", "steps": 1, "tasks": tasks, "model": {"source": model}}
        resolved, with_tasks = check_config(bare, "calibrate"), False
    if dtype is not None and dtype != resolved.model.dtype:
        # Unchecked: settings that do not fit this format, such as workers.dtype, are not used here.
        model_config = resolved.model.model_copy(update={"dtype": dtype})
        resolved = resolved.model_copy(update={"model": model_config})
    return resolved, with_tasks
