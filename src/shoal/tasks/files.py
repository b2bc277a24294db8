"""Content-addressed task files: kept by hash, so that a run means the same ones on every machine.

A config names files as its owner does. When a run is prepared each is copied to where it is found by its hash, and the
config is given the hash; from then on the name is only a name. A node that joins the run fetches what it lacks.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.files import cache_dir, sha256_file, whole_file, write_whole

MAX_BYTES = 4 << 30
# Kinds of sources that are a file.
NAME_A_FILE = ("file", "filtered", "lm-eval", "aime", "gpqa", "ifeval", "livecodebench")
# Environments that are programs or packages of others, which need sockets and processes of their own.
FOREIGN = ("environment/harness/", "environment/verifiers/", "environment/openenv/")
# How a file is read follows from the end of its name.
SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".py")


def place_of(sha256: str, name: str) -> Path:
    """Where the file with that hash is kept."""
    suffix = Path(name).suffix
    return cache_dir() / "tasks" / (sha256 + (suffix if suffix in SUFFIXES else ""))


def keep(path: Path) -> str:
    """Keeps a copy of a file, and gives its hash."""
    sha256 = _sha256(path)
    target = place_of(sha256, path.name)
    if not is_whole(target, sha256):
        with whole_file(target) as copy:
            shutil.copyfile(path, copy)
    return sha256


def keep_bytes(data: bytes, name: str) -> str:
    """Keeps what would be a file of that name, and gives its hash."""
    sha256 = hashlib.sha256(data).hexdigest()
    write_whole(place_of(sha256, name), data)
    return sha256


def held(name: str, files: Mapping[str, str]) -> Path:
    """Where a file that a task names is stored: at its name, or, once its hash is known, wherever that hash is."""
    sha256 = files.get(name)
    if sha256 is None:
        return Path(name)
    for path in (place_of(sha256, name), Path(name)):
        if is_whole(path, sha256):
            return path
    raise TaskError(
        f"task file {name}: the one with hash {sha256[:12]}, which the run was made with, is neither there nor in "
        f"{place_of(sha256, name).parent}; put it back"
    )


def named(task: TaskConfig) -> list[str]:
    """The files that a line of a config names."""
    kind, _, rest = task.source.partition("/")
    places = [rest] if kind in NAME_A_FILE else []
    if task.source == "environment/search" and isinstance(corpus := task.options.get("corpus"), str):
        places.append(corpus)
    return [*places, *(module for module in _modules(task) if module.endswith(".py"))]


def _modules(task: TaskConfig) -> list[str]:
    kind, _, rest = task.source.partition("/")
    rewards = [reward for reward in (task.reward, *(r.kind for r in task.rewards)) if reward]
    found = [rest] if kind == "python" else [file] if (file := file_of_environment(task.source)) else []
    found += [reward[len("python/") :].rpartition(":")[0] for reward in rewards if reward.startswith("python/")]
    return list(dict.fromkeys(found))


def file_of_environment(source: str) -> str | None:
    """The Python file that an environment is, or is in."""
    kind, _, rest = source.partition("/")
    if is_foreign(source):
        inner, _, rest = rest.partition("/")
        rest = rest.rpartition(":")[0] if inner == "openenv" else rest
    return rest if kind == "environment" and rest.endswith(".py") else None


def is_foreign(source: str) -> bool:
    """Whether a source is an environment that was not written for us: a harness, or one of another package."""
    return source.startswith(FOREIGN)


def code_of(task: TaskConfig) -> list[str]:
    """The code that a line calls for, which is neither ours nor a library's that we chose."""
    environment = [task.source] if task.source.startswith("verifiers/") else []
    if task.source.startswith("environment/"):
        return [task.source] if file_of_environment(task.source) or is_foreign(task.source) else []
    return [*environment, *(f"python/{module}" for module in _modules(task))]


def is_loose(task: TaskConfig) -> bool:
    """Whether a line leads to more than the files that it names; a run carries all of it as one file instead."""
    return task.source.startswith("dataset/") or task.source.endswith((".yaml", ".yml"))


def check_foreign(tasks: Sequence[TaskConfig], whose: str, code: bool) -> None:
    """Refuses what strangers' tasks must not have of this machine: its files, and, unless `code`, to run their code."""
    for task in tasks:
        missing = next((name for name in named(task) if name not in task.files), None)
        if missing is not None or is_loose(task):
            raise TaskError(f"{whose}: task source {task.source} gives no hash of {missing or 'it'}; do not join it")
        if (called := code_of(task)) and not code:
            raise TaskError(
                f"{whose}: its tasks have this machine run code of others, {', '.join(called)}, which can do whatever "
                "you can; if you trust its author, give --allow-code"
            )


def is_whole(path: Path, sha256: str) -> bool:
    """Whether the file there has that hash."""
    try:
        return _sha256(path) == sha256
    except TaskError:
        return False


def _sha256(path: Path) -> str:
    try:
        path = path.resolve()
        found = path.stat()
        return _digest(path, found.st_ino, found.st_size, found.st_mtime_ns)
    except (OSError, ValueError) as error:
        raise TaskError(f"task file {path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


@lru_cache(maxsize=256)
def _digest(path: Path, _inode: int, size: int, _written: int) -> str:
    """The hash of a file as it is now; a large one is read once."""
    if size > MAX_BYTES:
        raise ValueError(f"of {size:,} bytes, {MAX_BYTES:,} are the most")
    return sha256_file(path)
