"""`WeightChannel` on a directory: one folder per version, complete from the moment it is visible (atomic rename).

A version's root is the one that its broadcast has: a node that fetched it and a reader of this directory mean the same.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.errors import TaskError, WeightsError
from shoal.files import (
    STAGING,
    make_directory,
    numbered,
    parse_json,
    read_regular,
    remove_staging,
    whole_directory,
    write_whole,
)
from shoal.protocol.stores import Version
from shoal.shardcast.delta.assemble import link_or_copy
from shoal.shardcast.format.hashing import (
    files_of,
    hash_pieces,
    in_parallel,
    known_content,
    note_hashes,
    piece_size_for,
)
from shoal.shardcast.format.records import digest, digest_root
from shoal.tasks.difficulty import MAX_BYTES, Table

MANIFEST = ".manifest.json"  # hidden: no part of the version
TABLE = "table.json"  # what leases draw tasks by, where they do: a part of the version like its weights
RETRACTED = "retracted.json"
ADAPTER = "adapter_config.json"  # of a version that is merged into version 0 instead of being a model itself
NOT_OF_LATER = (".safetensors", ".safetensors.index.json")  # weights, of which each version has its own


class DirectoryChannel:
    """Versions as `v000012/`, each with a manifest that names every file's hash.

    `keep` newest versions stay, and version 0, which is the base model, always does.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self._path = path
        self._keep = keep

    @contextmanager
    def publish(self, number: int) -> Iterator[Path]:
        """A staging directory that becomes the version when the block ends; a version is written once.

        Any number of processes may write files into it, each of its own name; the block ends when all are there. A
        damaged version, or whatever else has its name, is replaced.
        """
        target = self._folder(number)
        remove_staging(self._path)
        if self.is_whole(number):
            raise WeightsError(f"version {number}: already published at {target}; a version is written once")
        with whole_directory(target, replace=True) as staging:
            yield staging
            self._complete(staging, number)
            write_manifest(staging, number)
        for old in [other for other in self.numbers() if other <= number][: -self._keep]:
            if old != 0:
                self._remove(old, "pruned")

    def _complete(self, staging: Path, number: int) -> None:
        """Links what a version lacks of a whole model from the base model: its config, its tokenizer.

        So a newcomer needs no version but the newest. In a delta such files cost nothing. An adapter gets none of them:
        its readers have version 0.
        """
        if (staging / ADAPTER).exists():
            return
        base = self._folder(0)
        for name, file in files_of(base).items() if number else ():
            if not name.endswith(NOT_OF_LATER) and name != TABLE and not (staging / name).exists():
                make_directory((staging / name).parent)
                link_or_copy(file, staging / name)

    def numbers(self) -> list[int]:
        """All versions that are here, oldest first; a folder without a manifest does not count."""
        return [number for number in self._names() if self.version(number) is not None]

    def latest(self) -> Version | None:
        # A version that is being removed loses its manifest before its folder.
        found = (self.version(number) for number in reversed(self._names()))
        return next((version for version in found if version is not None), None)

    def offered(self) -> Version | None:
        return self.latest()

    def version(self, number: int) -> Version | None:
        """What is known of a version, or None if it is not here (any more)."""
        try:
            manifest = parse_json(read_regular(self._folder(number) / MANIFEST))
            return Version(number, str(manifest["root"])) if manifest["version"] == number else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def table(self, number: int) -> Table | None:
        """The table that came with a version; None if none did, or if it is not what was published."""
        path = self._folder(number) / TABLE
        try:
            manifest = parse_json(read_regular(path.with_name(MANIFEST)))
            data = read_regular(path, MAX_BYTES)
            same = digest(hash_pieces(path, int(manifest["piece_size"]))) == manifest["files"][TABLE]["blake3"]
            return Table.from_json(data) if same else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError, TaskError):
            return None

    def is_whole(self, number: int) -> bool:
        version = self.version(number)
        try:
            return version is not None and self.fetch(version).is_dir()
        except WeightsError:
            return False

    def fetch(self, version: Version) -> Path:
        folder = self._folder(version.number)
        try:
            manifest = parse_json(read_regular(folder / MANIFEST))
            piece, files = int(manifest["piece_size"]), manifest["files"]
            root = _root(version.number, piece, files)
            if root != version.root:
                raise WeightsError(f"version {version.number}: root {root[:12]}, expected {version.root[:12]}")
            found = in_parallel(lambda name: digest(hash_pieces(folder / name, piece)), files)
            for (name, facts), hash_ in zip(files.items(), found, strict=True):
                if hash_ != facts["blake3"]:
                    raise WeightsError(f"version {version.number}: {name} is not the file that was published")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise WeightsError(f"version {version.number}: no longer here or damaged ({error})") from error
        return folder

    def retract(self, after: int) -> list[int]:
        """Removes versions above `after`, which no checkpoint backs; rollouts made with them will not be accepted."""
        lost = [number for number in self.numbers() if number > after]
        remove_staging(self._path)
        roots = [version.root for number in lost if (version := self.version(number))]
        if roots:  # before they go: what was made with them is nobody's fault
            write_whole(self._path / RETRACTED, json.dumps([*self._retracted(), *roots]).encode())
        for number in lost:
            self._remove(number, "retracted")
        return lost

    def _remove(self, number: int, why: str) -> None:
        """In one move: a reader must not take half a version for a damaged one."""
        shutil.rmtree(self._folder(number).rename(self._path / f"{STAGING}{why}-{number}"), ignore_errors=True)

    def was_retracted(self, version: Version) -> bool:
        return version.root in self._retracted()

    def _retracted(self) -> list[str]:
        """Root hashes, which name a version's number too."""
        try:
            return list(map(str, parse_json(read_regular(self._path / RETRACTED))))
        except (OSError, ValueError, TypeError, RecursionError):
            return []

    def _names(self) -> list[int]:
        return sorted(n for path in self._path.glob("v*") if (n := numbered(path.name, "v")) is not None)

    def _folder(self, number: int) -> Path:
        return self._path / folder_name(number)


def folder_name(number: int) -> str:
    return f"v{number:06d}"


def write_manifest(folder: Path, number: int) -> Version:
    """Turns the content of a folder into a version, named by the hash of every file."""
    piece = piece_size_for(sum(file.stat().st_size for file in files_of(folder).values()))
    content = known_content(folder, piece)
    for name, (_, hashes) in content.items():
        note_hashes(folder / name, piece, hashes)
    files = {name: {"size": size, "blake3": digest(hashes)} for name, (size, hashes) in content.items()}
    root = _root(number, piece, files)
    manifest = {"version": number, "root": root, "time": time.time(), "piece_size": piece, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    return Version(number, root)


def _root(number: int, piece_size: int, files: dict[str, dict[str, Any]]) -> str:
    """Names a version's whole content, its number included: the same files under another number are another version."""
    return digest_root(number, piece_size, {name: (facts["size"], facts["blake3"]) for name, facts in files.items()})
