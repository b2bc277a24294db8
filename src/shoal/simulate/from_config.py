"""Inputs of a simulation from a run's config: its terms as they are, and speeds by the arithmetic of `shoal plan`."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shoal.config import MAX_VALIDATORS, RunConfig
from shoal.coordinator.policy import Terms
from shoal.errors import ConfigError
from shoal.simulate.inputs import Inputs, Kind, Machines, Services, Spread, Training
from shoal.simulate.models import Model, model_named
from shoal.validate.audit import spot_rate

if TYPE_CHECKING:  # they import torch, and nothing here computes
    from shoal.plan.assumptions import Assumptions
    from shoal.plan.model_shape import ModelShape

MBIT = 1e6 / 8
# Bytes of a file per token: its number and log-prob after compression, and 258 bytes of proof for every 32 tokens.
FILE_TOKEN_BYTES = 16.0
# Room on a worker's devices that weights may take; the rest is for the cache.
WEIGHTS_SHARE = 0.75
# From a version on the disk to one in the engine, bytes per second: read once for its hash and once to be loaded.
LOAD_RATE = 0.5e9
LORA_RANK = 32


@dataclass(frozen=True)
class Chosen:
    """What is not in a config: how many machines there are, and of what kind. None: what follows from the config."""

    nodes: int | None = None
    churn: float = 0.0
    uplink: float = 100.0
    downlink: float | None = None
    spread: float = 0.5
    relays: int = 4
    relay_link: float = 10_000.0
    validators: int | None = None
    trainer_gpus: int | None = None
    versions: Kind | None = None
    model: str | None = None
    steps: int | None = None
    seed: int = 0


def model_of(shape: "ModelShape", name: str, width: int) -> Model:
    """A model whose shape was measured, as a simulation sees it."""
    return Model(name, float(shape.parameters), shape.blocks, shape.hidden, shape.kv_values, width)


def inputs_of(config: RunConfig, assumed: "Assumptions", chosen: Chosen, model: Model) -> Inputs:
    """All inputs. A worker is as many devices as hold the model; the trainer has the config's ranks unless told
    otherwise; validators are as many as keep up once no node is a newcomer any more, if a run may have so many."""
    nodes = chosen.nodes or config.workers.count
    terms = replace(Terms.of(config, "trainer", frozenset({"validator"})), steps=chosen.steps or config.steps)
    if nodes > terms.max_nodes:
        terms = replace(terms, max_nodes=nodes)
    machines = _machines(config, assumed, chosen, model, nodes)
    kind = chosen.versions or _kind(config)
    gpus = chosen.trainer_gpus or config.train.ranks
    train = gpus * assumed.trainer.flops * assumed.train_use
    passes = _passes(config)
    forward_s = 2 * model.parameters / (assumed.worker.flops * assumed.prefill_use * _devices(model, assumed))
    tokens_per_s = machines.places / (machines.pass_s + machines.places * machines.answer_s)
    needed_s = forward_s * tokens_per_s * nodes
    return Inputs(
        name=f"{config.name}, {model.name}, {kind} versions",
        terms=terms,
        group_size=config.sampling.group_size,
        answer=Spread(assumed.answer_tokens, 0.35, config.sampling.max_new_tokens),
        target_sigma=0.35,
        file_token_bytes=FILE_TOKEN_BYTES,
        machines=machines,
        services=Services(
            relays=chosen.relays,
            relay_rate=chosen.relay_link * MBIT,
            origin_rate=chosen.relay_link * MBIT,
            coordinator_rate=chosen.relay_link * MBIT,
            validators=chosen.validators or min(MAX_VALIDATORS, max(1, math.ceil(_checked(config) * needed_s))),
            hold_s=config.patience_s,
            judge_s=0.5,
            judge_token_s=forward_s,
            verdict_s=1.0,
        ),
        training=Training(
            1.0,
            passes * 2 * model.parameters / train,
            model.version_bytes,
            _update(config, assumed, model, kind),
            kind,
            publish_s=2.0,
            keep=config.keep.versions,
        ),
        signal=assumed.signal,
        audit=config.audit,
        seed=chosen.seed,
    )


def _machines(config: RunConfig, assumed: "Assumptions", chosen: Chosen, model: Model, nodes: int) -> Machines:
    """Decoding reads all weights and the cache of every running answer for each token, or computes if that is more."""
    devices, device = _devices(model, assumed), assumed.worker
    context = assumed.prompt_tokens + assumed.answer_tokens / 2
    room = devices * device.memory - model.version_bytes
    places = max(1, min(config.workers.max_batch, int(room * 0.9 / (model.cache_bytes * 2 * context))))
    bandwidth = devices * device.bytes_per_s * assumed.decode_use
    computed = 2 * model.parameters / (devices * device.flops * assumed.prefill_use)
    return Machines(
        count=nodes,
        places=places,
        pass_s=model.version_bytes / bandwidth,
        answer_s=max(model.cache_bytes * context / bandwidth, computed),
        speed=Spread(1.0, chosen.spread / 2),
        download=Spread((chosen.downlink or assumed.mbit) * MBIT, chosen.spread),
        upload=Spread(chosen.uplink * MBIT, chosen.spread),
        churn=chosen.churn / 100,
        load_s=model.version_bytes / LOAD_RATE,
        score_s=1.0,
    )


def _devices(model: Model, assumed: "Assumptions") -> int:
    """Devices of one worker: as many as hold the weights with room for a cache."""
    return max(1, math.ceil(model.version_bytes / (WEIGHTS_SHARE * assumed.worker.memory)))


def _passes(config: RunConfig) -> int:
    """Forward passes that training a token costs, as `plan.step_time.training_passes` counts those of matrices."""
    ahead = config.train.optimizer_steps > 1
    reference = config.train.loss.kl_coef > 0
    return (2 if config.train.lora else 3) + ahead + reference + config.train.activation_checkpointing


def _checked(config: RunConfig) -> float:
    """Share of tokens that are computed again by validators, once nodes have a record."""
    answers = config.workers.groups_per_submission * config.sampling.group_size
    return min(1.0, config.audit.rate + spot_rate(config.audit, answers))


def _kind(config: RunConfig) -> Kind:
    if config.train.lora is not None:
        return "lora"
    return "delta" if config.model.dtype == "bfloat16" else "full"


def _update(config: RunConfig, assumed: "Assumptions", model: Model, kind: Kind) -> float:
    if kind == "lora":
        rank = config.train.lora.rank if config.train.lora else LORA_RANK
        return model.adapter_bytes(rank)
    share = assumed.delta_share if assumed.delta_share < 1 else 0.02
    return model.version_bytes * (share if kind == "delta" else 1.0)


def find_model(config: RunConfig, name: str | None) -> Model:
    """The model of that size, or the config's own by its config.json."""
    if name is not None:
        return model_named(name)
    from shoal.plan.model_shape import find_config, measure_shape, policy_on_meta

    found = find_config(config)
    shape = measure_shape(policy_on_meta(found.config, config.model.dtype), config.train.lora)
    return model_of(shape, config.model.source.rpartition("/")[2], 2 if config.model.dtype == "bfloat16" else 4)


def check_chosen(chosen: Chosen) -> None:
    """Refuses what cannot be simulated, with the flag that says it."""
    bounds: list[tuple[str, float, float, float]] = [
        ("--nodes", 1 if chosen.nodes is None else chosen.nodes, 1, 1_000_000),
        ("--churn", chosen.churn, 0, 1000),
        ("--uplink", chosen.uplink, 0.001, 1e6),
        ("--downlink", 1.0 if chosen.downlink is None else chosen.downlink, 0.001, 1e6),
        ("--spread", chosen.spread, 0, 2),
        ("--relays", chosen.relays, 1, 64),
        ("--relay-link", chosen.relay_link, 0.001, 1e7),
        ("--validators", 1 if chosen.validators is None else chosen.validators, 1, MAX_VALIDATORS),
        ("--trainer-gpus", 1 if chosen.trainer_gpus is None else chosen.trainer_gpus, 1, 1_000_000),
        ("--steps", 1 if chosen.steps is None else chosen.steps, 1, 1_000_000),
        ("--seed", chosen.seed, 0, 1_000_000_000),
    ]
    for flag, value, least, most in bounds:
        if not least <= value <= most:
            raise ConfigError(f"{flag} {value:g}: must be from {least:g} to {most:g}")
    if chosen.versions not in (None, "full", "delta", "lora"):
        raise ConfigError(f"--versions {chosen.versions}: must be full, delta or lora")
