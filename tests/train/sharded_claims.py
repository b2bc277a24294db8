"""What ranks do together, tried once in forks of this process; `test_sharded.py` reads the result and makes claims.

python -m tests.train.sharded_claims MODEL SCRATCH
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.ranks import forked_ranks
from benchmarks.training.ranks import random_groups
from shoal.config import RunConfig
from shoal.errors import ConfigError
from shoal.files import sha256_file
from shoal.train import distributed
from shoal.train.checkpoint import Progress, load_checkpoint, save_checkpoint
from shoal.train.distributed import ALONE, World, check_same_config
from shoal.train.learner import Learner, build_learner
from shoal.train.publishing import gathered, write_version
from shoal.train.step import train_step
from tests.support.roles_in_process import make_config


def settings(model: Path, **changes: Any) -> RunConfig:
    train = {"lr": 1e-3, "token_budget": 40, "loss": {"kl_coef": 0.01, "entropy_coef": 0.01}, **changes}
    return make_config(model, train=train)


def weights(learner: Learner) -> dict[str, list[float]]:
    return {name: t.flatten().tolist() for name, t in gathered(learner.policy.trained_weights(), learner.world).items()}


def steps(learner: Learner, config: RunConfig, counts: list[int], first: int = 0) -> list[Any]:
    """Trains on so many groups per step, and says what every step reported."""
    said = []
    for step, count in enumerate(counts, first):
        groups = random_groups(count, step) if learner.world.is_first else None
        result = train_step(learner, groups, config, step)
        metrics = result.metrics()
        said.append([len(result.losses), result.skipped, metrics["loss"], metrics["kl"], result.tokens])
    return said


def trained(model: Path, counts: list[int], options: dict[str, Any], world: World = ALONE) -> Any:
    config = settings(model, **options)
    learner = build_learner(model, config, world)
    said = steps(learner, config, counts)
    return {"said": said, "weights": weights(learner), "bytes": learner.state_bytes()}


def resumed(model: Path, path: Path, first: int, world: World = ALONE) -> Any:
    """Goes on from the last checkpoint, if there is one, for two steps, and keeps another."""
    config = settings(model)
    learner = build_learner(model, config, world)
    progress, damaged = load_checkpoint(path, learner)
    assert (progress.version if progress else 0) == (first if world.is_first else 0)
    steps(learner, config, [5, 5], first)
    done = Progress(first + 2, 0, {first: {0: 0}})
    save_checkpoint(path, learner, done if world.is_first else None, keep=9)
    return {"weights": weights(learner), "damaged": damaged}


def poisoned(model: Path, world: World = ALONE) -> Any:
    """A step in which one micro-batch, which one rank computes, has an advantage that is not finite."""
    config = settings(model)
    learner = build_learner(model, config, world)
    before = weights(learner)
    groups = random_groups(6)
    groups[0] = replace(groups[0], advantages=[float("inf"), *groups[0].advantages[1:]])
    result = train_step(learner, groups if world.is_first else None, config, 0)
    after = weights(learner)
    fine = train_step(learner, random_groups(6, 1) if world.is_first else None, config, 1)
    return {"skipped": result.skipped, "same": before == after, "then": [fine.skipped, len(fine.losses)]}


def turned_down(model: Path, world: World = ALONE) -> Any:
    """A step with files of the newest version whose log-probs are not the policy's."""
    config = settings(model)
    learner = build_learner(model, config, world)
    before = weights(learner)
    groups = random_groups(6)
    groups[2], groups[5] = replace(groups[2], version=0), replace(groups[5], version=0)
    result = train_step(learner, groups if world.is_first else None, config, 0)
    return {"off": sorted(result.off), "same": before == weights(learner)}


def other_config(model: Path, world: World) -> Any:
    config = settings(model, lr=1e-3 if world.rank == 0 else 2e-3)
    try:
        check_same_config(world, config)
    except ConfigError as error:
        return str(error)
    return ""


def published(model: Path, folder: Path, world: World = ALONE) -> Any:
    """A version in several files, of which the last round leaves a rank none, and their hashes."""
    learner = build_learner(model, settings(model), world)
    if world.is_first:
        folder.mkdir()
    world.all(True)
    write_version(folder, learner.policy.weights(), torch.bfloat16, world, file_bytes=35_000)
    return {file.name: sha256_file(file) for file in sorted(folder.iterdir())} if world.is_first else {}


def in_bfloat16(model: Path, options: dict[str, Any], world: World = ALONE) -> Any:
    """Computes in bfloat16 with master weights in float32."""
    config = settings(model, **options)
    learner = build_learner(model, config, world, compute=torch.bfloat16)
    said = steps(learner, config, [6, 6])
    dtypes = {str(p.dtype) for p in learner.policy.model.parameters()}
    assert learner.reference is not None
    of_reference = {str(p.dtype) for p in learner.reference.policy.model.parameters()}
    return {"said": said, "dtypes": sorted(dtypes), "reference": sorted(of_reference), "weights": weights(learner)}


def late(model: Path, world: World) -> bool:
    """Rank 0 comes later than the other would wait for it in an exchange of weights."""
    if world.is_first:
        time.sleep(distributed.JOIN.total_seconds() * 1.4)
    build_learner(model, settings(model), world)
    return True


def main(model: Path, scratch: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    sparing = {"activation_checkpointing": True, "offload_activations": True, "offload_optimizer": True}
    adapters = {"lora": {"rank": 4, "alpha": 8.0}, "activation_checkpointing": True}
    one: dict[str, Callable[..., Any]] = {
        "odd": partial(trained, model, [5, 1, 3, 2], {}),
        "several": partial(trained, model, [7], {"optimizer_steps": 3}),
        "sparing": partial(trained, model, [5, 4], sparing),
        "poisoned": partial(poisoned, model),
        "turned_down": partial(turned_down, model),
        "bfloat16": partial(in_bfloat16, model, {}),
        "adapters": partial(trained, model, [5, 1, 3, 2], adapters),
        "adapters_bfloat16": partial(in_bfloat16, model, adapters),
        "published": partial(published, model, scratch / "published-by-two"),
        "config": partial(other_config, model),
        "resumed": partial(resumed, model, scratch / "checkpoints", 0),
    }
    ranks = forked_ranks(2, lambda world: {name: work(world) for name, work in one.items()})
    alone = {name: one[name](ALONE) for name in ("odd", "several", "sparing", "adapters")}
    alone["published"] = published(model, scratch / "published-by-one")
    alone["plain"] = trained(model, [5, 4], {})
    alone["resumed"] = resumed(model, scratch / "checkpoints", 2)
    third = forked_ranks(3, partial(resumed, model, scratch / "checkpoints", 4))
    config = settings(model)
    learner = build_learner(model, config, ALONE)
    steps(learner, config, [5] * 6)
    distributed.JOIN = timedelta(seconds=8)
    came = forked_ranks(2, partial(late, model))
    return {"ranks": ranks, "alone": alone, "third": third, "whole": weights(learner), "late": came}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))  # noqa: T201
