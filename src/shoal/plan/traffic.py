"""Bytes on disk and over the network, per role: pure arithmetic on a config, a model's shape and file sizes."""

from dataclasses import dataclass

from shoal.config import RunConfig
from shoal.plan.assumptions import Assumptions
from shoal.plan.memory import FLOAT32, Items, trained_parameters, update_bytes, version_bytes
from shoal.plan.model_shape import ModelShape

MIB = 1 << 20
# Numbers of a checkpoint per parameter: the weight and two moments.
CHECKPOINTED = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """What travels: a full version, what of it travels per step, and one step's rollout files."""

    version: int
    update: int
    """A delta, or the full version where deltas do not pay; an adapter, where those are trained."""
    file: int
    files: int
    """Per step, with those whose groups turn out without signal."""
    adapters: bool = False

    @property
    def uploads(self) -> int:
        return self.file * self.files

    def versions(self, count: int) -> int:
        """The base model and so many versions after it, on a disk."""
        return self.version + count * (self.update if self.adapters else self.version)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one machine: what it keeps on its disk, and what it sends and receives per step."""

    disk: Items
    sends: Items
    receives: Items


def sizes_of(config: RunConfig, shape: ModelShape, file: int, assumed: Assumptions) -> Sizes:
    version = version_bytes(config, shape)
    groups = min(config.train.max_groups, config.train.groups_per_step / assumed.signal)
    return Sizes(
        version=version,
        update=update_bytes(config, shape, assumed.delta_share),
        file=file,
        files=-(-round(groups) // config.workers.groups_per_submission),
        adapters=shape.adapter_parameters > 0,
    )


def trainer_traffic(config: RunConfig, shape: ModelShape, sizes: Sizes) -> Traffic:
    checkpoint = CHECKPOINTED * FLOAT32 * trained_parameters(shape)
    return Traffic(
        {
            "versions": sizes.versions(config.keep.versions),
            "checkpoints, one being written": (config.keep.checkpoints + 1) * checkpoint,
            "exported model": FLOAT32 * shape.parameters,
        },
        {},
        {"accepted files": sizes.uploads},
    )


def origin_traffic(config: RunConfig, sizes: Sizes) -> Traffic:
    """Versions are links to the trainer's own files; a store on another disk takes their size again."""
    has_deltas = sizes.update < sizes.version and not sizes.adapters
    deltas = config.keep.versions * sizes.update if has_deltas else 0
    return Traffic({"deltas, beside the trainer's versions": deltas}, {"updates, per relay": sizes.update}, {})


def relay_traffic(config: RunConfig, sizes: Sizes, nodes: int) -> Traffic:
    """The base model, a full version and the deltas after it; without deltas, every version that is kept."""
    has_deltas = sizes.update < sizes.version and not sizes.adapters
    kept = config.keep.versions
    disk = {"base and a full version": 2 * sizes.version, "deltas": kept * sizes.update}
    return Traffic(
        disk if has_deltas else {"base and versions": sizes.versions(kept)},
        {f"updates to {nodes} nodes": nodes * sizes.update},
        {"updates": sizes.update},
    )


def worker_traffic(sizes: Sizes, workers: int) -> Traffic:
    return Traffic(
        {"version in use and the next": sizes.versions(1), "updates": sizes.update},
        {"files with proofs": round(sizes.uploads / workers)},
        {"updates": sizes.update},
    )


def validator_traffic(config: RunConfig, sizes: Sizes) -> Traffic:
    """Versions that files may be made with, and those that evidence keeps: as many as a challenge can be about, if a
    file of each is blamed."""
    versions = {"base and versions": sizes.versions(config.async_level + 1)}
    window = config.ledger.challenge_steps + config.async_level + 1 + config.keep.evidence_versions
    kept = sizes.versions(window) - sizes.version
    return Traffic(
        {**versions, "evidence, at most": kept + sizes.file},
        {},
        {"uploads": sizes.uploads, "updates": sizes.update},
    )


def coordinator_traffic(config: RunConfig, sizes: Sizes) -> Traffic:
    """Uploads are kept for keep.rollouts steps, or to the end; a validator and the trainer read each of them."""
    steps = config.keep.rollouts or config.steps
    return Traffic(
        {f"uploads of {steps} steps": steps * sizes.uploads, "rejected files": config.keep.rejected_mib * MIB},
        {"files, to validator and trainer": 2 * sizes.uploads},
        {"uploads": sizes.uploads},
    )
