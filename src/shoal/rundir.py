"""A run on disk: one directory holds its config, policy versions, checkpoints, metrics, status and coordinator.

Everything a role needs is found here, so any role can be started alone, killed and started again.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from shoal.config import RunConfig
from shoal.config_io import check_config, load_config
from shoal.crypto.keys import Key
from shoal.errors import ConfigError, StorageError, WeightsError
from shoal.files import disk_errors, locked, parse_json, read_regular, write_whole
from shoal.protocol.lease import NODE_NAME
from shoal.protocol.rates.rates_file import Architecture, read_architecture
from shoal.protocol.rates.rates_table import RatesTable
from shoal.protocol.rollout_rules import Limits
from shoal.protocol.spans import span_tokens
from shoal.protocol.stores import Version, WeightSource
from shoal.protocol.version_directory import TABLE, DirectoryChannel
from shoal.tasks.difficulty import Sampler, Table
from shoal.telemetry.metrics import MetricsWriter
from shoal.telemetry.status import StatusFile

RUN_FILE = "run.json"
# Of the directory and all that is signed in it. A run of another format is refused, for it cannot be continued.
FORMAT = 3
LOCK = "lock"
ROLES = ("trainer", "evaluator", "supervisor", "validator", "coordinator", "origin", "relay", "planter")
VALIDATOR = "validator"
# A role that was killed may take a moment to be gone.
TAKEOVER_S = 10.0
# A base model may have to be built first.
PREPARE_S = 300.0
# A run may be continued with these changed; anything else would make its past and its future two different runs.
MAY_CHANGE = (
    "steps",
    "wait_s",
    "workers",
    "eval",
    "keep",
    "swarm",
    "log",
    "ledger.rpc",
    "ledger.gas",
    "ledger.confirmations",
    "train.threads",
    "train.checkpoint_every",
    "train.ranks",
    "train.activation_checkpointing",
    "train.offload_activations",
    "train.offload_optimizer",
    "train.device_tflops",
    "train.watch",
)
# Two configs that differ in these alone judge a file alike.
DECIDES_NO_VERDICT = (*MAY_CHANGE, "cheaters", "ledger")


@dataclass(frozen=True, slots=True)
class RunDir:
    """A prepared run."""

    path: Path
    config: RunConfig

    @property
    def base_model(self) -> Path:
        """The base model's own directory: config, tokenizer and weights."""
        return self.path / "weights" / "v000000"

    def architecture(self) -> Architecture | None:
        """That of the base model; None where it is not, as on a coordinator's own machine."""
        path = self.base_model / "config.json"
        return read_architecture(self.base_model) if path.is_file() else None

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def origin_key(self) -> Key:
        """Signs the run's versions; made at first use."""
        return Key.load_or_create(self.path / "origin.key")

    def channel(self) -> DirectoryChannel:
        return DirectoryChannel(self.path / "weights", self.config.keep.versions)

    def first_version(self, source: WeightSource) -> tuple[Version, Path]:
        """The version that a role begins with, and its files: the newest one, or version 0 where that is an adapter."""
        from shoal.models.adapter_files import is_adapter

        version = source.offered()
        while version is not None:
            try:
                folder = source.fetch(version)
                if not is_adapter(folder):
                    return version, folder
                version = source.version(0)
            except WeightsError:
                before, version = version, source.offered()
                if version == before:  # otherwise it was pushed out or taken back meanwhile
                    raise
        raise WeightsError(f"run {self.path}: its base model, version 0, is missing; start a new run")

    def metrics(self, role: str) -> MetricsWriter:
        return MetricsWriter(self.path / "metrics" / f"{role}.jsonl")

    def status(self, role: str) -> StatusFile:
        return StatusFile(self.path / "status" / f"{role}.json", role)

    @contextmanager
    def role(self, name: str) -> Iterator[tuple[StatusFile, MetricsWriter]]:
        """Where a role says what it is doing; whatever ends it is said there too."""
        with self.metrics(name) as metrics:
            status = self.status(name)
            try:
                yield status, metrics
            except Exception as error:
                if not (self.path / RUN_FILE).exists():
                    raise run_removed(self.path) from error
                status.failed(str(error))
                raise


def run_removed(path: Path) -> StorageError:
    return StorageError(f"run {path}: its directory was removed while it ran; nothing of it can go on. Start a new run")


def check_worker_name(name: str) -> None:
    """Refuses a name that is not a valid file name, or that another role has."""
    if not NODE_NAME.fullmatch(name) or name in ROLES or name.startswith(f"{VALIDATOR}-"):
        raise ConfigError(
            f"worker name {name!r}: must be letters, digits, dots and dashes, 64 at most, and not another role's name"
        )


def validator_names(config: RunConfig) -> list[str]:
    """Names of the validators that a run's own machine starts: one, or `audit.count` with a number each."""
    count = config.audit.count
    return [VALIDATOR] if count == 1 else [f"{VALIDATOR}-{number}" for number in range(count)]


def limits_of(config: RunConfig, vocab: int) -> Limits:
    """What a sample of this run may look like."""
    sampling = config.sampling
    every = span_tokens(sampling.max_new_tokens) if config.workers.in_flight else 0
    lengths = sampling.max_prompt_tokens, sampling.max_new_tokens
    return Limits(sampling.group_size, vocab, *lengths, every, config.max_turns)


def open_run(path: Path) -> RunDir:
    """A run that was prepared before."""
    file = path / RUN_FILE
    try:
        tree = parse_json(read_regular(file))
        config, found = tree["config"], tree.get("format", 1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"run {path}: no usable {RUN_FILE} there; give a directory made by shoal run") from error
    if found != FORMAT:
        raise ConfigError(
            f"run {path}: its directory has format {found!r:.20}, this release reads {FORMAT}; start a new run with "
            "--out, or continue with the release that made it"
        )
    return RunDir(path, check_config(config, str(file)))


def prepare_run(config: RunConfig, path: Path, console: Console) -> RunDir:
    """Makes a run directory with the base model as version 0, or goes on with the one that is there."""
    from shoal.models.base import ensure_base_model, write_base_version
    from shoal.tasks.environments.resets import check_resets

    config = settled(config, path)
    file = path / RUN_FILE
    if not file.exists():
        check_resets(config.tasks)
    run = RunDir(path, config)
    channel = run.channel()
    if file.exists():
        console.print(f"resuming the run in {path}")
    elif run.checkpoints.exists() or channel.numbers():
        raise ConfigError(
            f"run {path}: holds the remains of a run that lost its {RUN_FILE}; restore that file, delete the rest, "
            "or give another one with --out"
        )
    newest = _newest_whole(channel)
    if newest is not None and newest.number > config.steps:
        raise ConfigError(
            f"run {path}: steps = {config.steps}, but it has reached version {newest.number}; "
            "give at least as many steps, or another directory with --out"
        )
    base = ensure_base_model(config, console) if newest is None else None
    if base is not None and config.model.dtype == "bfloat16":
        RatesTable.first(config.audit, read_architecture(base))  # before anything is made
    if base is not None and config.train.lora is not None:
        from shoal.models.lora import check_targets

        check_targets(base, config.train.lora)
    created = parse_json(file.read_text()).get("created", time.time()) if file.exists() else time.time()
    write_run_file(path, config, created)
    if base is not None:
        with channel.publish(0) as staging:
            write_base_version(base, staging, config.model.dtype)
            (staging / TABLE).unlink(missing_ok=True)  # of another run, whose version the base model is
            if (table := _first_table(config)) is not None:
                (staging / TABLE).write_text(table.to_json())
    return run


def write_run_file(path: Path, config: RunConfig, created: float) -> None:
    """Says in a directory which run it belongs to. The config may hold a password: it is for its owner alone."""
    tree = {"format": FORMAT, "created": created, "config": config.model_dump(mode="json", exclude_none=True)}
    write_whole(path / RUN_FILE, json.dumps(tree, indent=1).encode(), durable=True, private=True)


def created_at(path: Path) -> float:
    """When a run was first prepared, Unix seconds; 0 if its file does not say."""
    created = parse_json(read_regular(path / RUN_FILE)).get("created")
    return float(created) if isinstance(created, int | float) else 0.0


def settled(config: RunConfig, path: Path, may_change: Sequence[str] = MAY_CHANGE) -> RunConfig:
    """The config with hashes of what its tasks hold; a ConfigError if that makes it another run than the one there."""
    from shoal.tasks.build import pinned

    config = config.model_copy(update={"tasks": pinned(config.tasks)})
    with disk_errors(path):
        prepared = (path / RUN_FILE).exists()
    if prepared:
        check_unchanged(open_run(path).config, config, path, may_change)
    return config


def _first_table(config: RunConfig) -> Table | None:
    """The weights that come with the base model: all alike, but for the sources' own."""
    from shoal.tasks.build import build_source

    if config.sampler.kind == "uniform":
        return None
    sampler = Sampler(build_source(config.tasks), config.sampler)
    return sampler.table(sampler.start())


def _newest_whole(channel: DirectoryChannel) -> Version | None:
    """The newest version that is what was published. Damaged ones after it go: the trainer publishes them again."""
    while (newest := channel.latest()) is not None and not channel.is_whole(newest.number):
        if newest.number == 0:
            return None
        channel.retract(newest.number - 1)
    return newest


def locate_config(target: Path, settings: list[str], out: Path | None) -> tuple[RunConfig, Path]:
    """Config and directory of the run that a command line names by its directory or by a TOML config."""
    if target.is_dir():
        if settings or out:
            raise ConfigError(f"run {target}: --set and --out go with a config file; a prepared run has its own config")
        return open_run(target).config, target
    config = load_config(target, settings)
    return config, out or default_path(config)


def locate_run(target: Path, settings: list[str], out: Path | None, console: Console) -> RunDir:
    """The run a command line names: a run directory, or a TOML config whose run is prepared if need be."""
    config, path = locate_config(target, settings, out)
    if target.is_dir():
        return RunDir(path, config)
    with disk_errors(path):
        prepared = (path / RUN_FILE).exists()
    if prepared:
        settled(config, path, may_change=())
        return open_run(path)
    with claimed(path, f"run {path}: another process is preparing it and did not finish", wait_s=PREPARE_S):
        return prepare_run(config, path, console)


@contextmanager
def claimed(path: Path, refusal: str, wait_s: float = 0.0) -> Iterator[None]:
    """Holds a run's lock. Directories that were made for the lock go again if no run came of it."""
    with disk_errors(path):
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
    with locked(path / LOCK, refusal, wait_s):
        try:
            yield
        except BaseException:
            with suppress(OSError):
                if made and [entry.name for entry in path.iterdir()] == [LOCK]:
                    (path / LOCK).unlink()
                    for folder in made:
                        folder.rmdir()
            raise


def default_path(config: RunConfig) -> Path:
    """Where a run lives if nothing else is said."""
    return Path("runs") / config.name


def changes(old: RunConfig, new: RunConfig, may_change: Sequence[str]) -> list[str]:
    """In what one config differs from another, but for `may_change`: a line per key, with both values."""
    before, after = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    return [
        f"  {key}: {before.get(key)!r} there, {after.get(key)!r} now"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not any(key == may or key.startswith(f"{may}.") for may in may_change)
    ]


def check_unchanged(old: RunConfig, new: RunConfig, path: Path, may_change: Sequence[str]) -> None:
    """Refuses a config that differs from the run's own in anything but `may_change`."""
    if changed := changes(old, new, may_change):
        raise ConfigError(
            f"run {path}: was made with another config; give it another directory with --out, or delete it\n"
            + "\n".join(changed)
        )


def _flat(tree: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def key_path(run: Path, name: str) -> Path:
    """Where the key of a role that runs in a run's own directory is stored."""
    return run / "keys" / f"{name}.key"


def role_key(run: Path, name: str) -> Key:
    """The key itself, made at first use."""
    return Key.load_or_create(key_path(run, name))


def is_own(run: Path) -> bool:
    """Whether a run's coordinator works in this directory, where its key is."""
    return key_path(run, "coordinator").exists()
