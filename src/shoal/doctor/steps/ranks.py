"""Step `ranks`: FSDP2 ranks, one per GPU over NCCL or two on the CPU over gloo, learn what one process learns.

This file is also the program of one rank: python -m shoal.doctor.steps.ranks, with a line of JSON on standard input.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from shoal.config_io import check_config
from shoal.devices import CPU, collectives, set_up, this_machine
from shoal.doctor.steps.context import Context, StepFailed, StepSkipped, Values
from shoal.doctor.steps.training import random_groups
from shoal.roles.rank_group import rank_environment
from shoal.train.distributed import World, joined_world
from shoal.train.learner import build_learner
from shoal.train.publishing import gathered
from shoal.train.step import train_step

CPU_RANKS = 2
MAX_RANKS = 8
# Orders of addition differ between ranks and one process, and AdamW turns a gradient's sign into a whole step: a weight
# may be off by a share of all steps.
MAX_SHARE = 0.1
WAIT_S = 600.0


def run(context: Context) -> Values:
    count = CPU_RANKS if context.device.type == "cpu" else min(MAX_RANKS, this_machine().cuda)
    if count < 2:
        raise StepSkipped(f"needs two GPUs of one kind, {this_machine().cuda} found on {context.device.type}")
    config = context.changed(train={"lr": 1e-4, "warmup_steps": 0, "optimizer_steps": 2})
    file, store = context.scratch / "ranks.safetensors", context.scratch / "store"
    task = {
        "config": config.model_dump(mode="json"),
        "model": str(context.model),
        "device": context.device.type,
        "file": str(file),
    }
    ranks = [_started(task, rank_environment(rank, count, store)) for rank in range(count)]
    try:
        ended = [rank.wait(WAIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(ended):
        raise StepFailed(f"{count} ranks ended with codes {ended}; expected zeros")
    learner = build_learner(context.model, config, World(device=context.device), torch.float32)
    train_step(learner, random_groups(config, full=False), config, 0)
    alone = {name: tensor.detach().to(CPU) for name, tensor in learner.policy.weights().items()}
    together = load_file(file)
    gap = max(float((together[name] - tensor).abs().max()) for name, tensor in alone.items())
    allowed = config.train.lr * config.train.optimizer_steps * MAX_SHARE
    if not gap <= allowed:
        raise StepFailed(f"weights of {count} ranks and of one process differ by {gap:.2g}, allowed {allowed:.2g}")
    return {"ranks": count, "collectives": collectives(context.device), "weights_gap": gap, "allowed": allowed}


def _started(task: Mapping[str, object], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "shoal.doctor.steps.ranks"]
    rank = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sys.stderr, env={**os.environ, **environment})
    assert rank.stdin is not None
    rank.stdin.write(json.dumps(task).encode())
    rank.stdin.close()
    return rank


def one_rank() -> None:
    task = json.load(sys.stdin)
    config = check_config(task["config"], "report")
    device = set_up(task["device"], threads=1)
    with joined_world(device) as world:
        learner = build_learner(Path(task["model"]), config, world, torch.float32)
        train_step(learner, random_groups(config, full=False) if world.is_first else None, config, 0)
        weights = gathered(learner.policy.weights(), world)
        if world.is_first:
            save_file({name: tensor.to(CPU).contiguous() for name, tensor in weights.items()}, task["file"])


if __name__ == "__main__":
    one_rank()
