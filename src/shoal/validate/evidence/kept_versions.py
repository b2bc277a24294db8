"""Weights that evidence needs: one copy per version, by its root hash, for as long as a verdict can be challenged.

A version of a 32B model is 65 GB, so evidence keeps few. Only a file whose maker is blamed has its version kept: hard
links to what the validator fetched, which take room once the validator prunes its own. Within the window in which a
challenge may come, none goes, because an arbiter computes with them; of older ones the newest few stay. What is gone
can be fetched again from a relay or an archive that has it, and is believed by its root hash.
"""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from shoal.errors import StorageError, WeightsError
from shoal.files import make_directory, numbered, whole_directory
from shoal.protocol.stores import Version
from shoal.protocol.version_directory import DirectoryChannel, folder_name, write_manifest
from shoal.shardcast.delta.assemble import link_or_copy
from shoal.shardcast.format.hashing import files_of

VERSIONS = "versions"


def keep_version(folder: Path, weights: Path, version: Version) -> None:
    """Links a version's files into the evidence folder, where they stay when the run prunes its own."""
    target = _place(folder, version)
    if target.exists():
        return
    try:
        with whole_directory(target) as staging:
            for name, file in files_of(weights).items():
                make_directory((staging / name).parent)
                link_or_copy(file, staging / name)
            write_manifest(staging, version.number)
    except StorageError:
        if not target.exists():  # another validator of this run was faster
            raise


def prune_versions(folder: Path, window: int, spare: int) -> None:
    """Removes all versions before `window`, the oldest that a challenge can be about, but for the newest `spare`."""
    numbers = {path: numbered(path.name, "v") for path in (folder / VERSIONS).glob("*/v*")}
    old = sorted((number, path) for path, number in numbers.items() if number is not None and number < window)
    for _, path in old[: len(old) - spare]:
        shutil.rmtree(path.parent, ignore_errors=True)


def find_version(version: Version, folder: Path) -> Path:
    """The directory with a version's files, beside the bundles or in their run: what its root hash names, and not what
    else may have its number by now."""
    for place in (_place(folder, version).parent, folder.parent / "weights"):
        with suppress(WeightsError):
            return DirectoryChannel(place, keep=1).fetch(version)
    number = version.number
    raise WeightsError(
        f"version {number} (root {version.root[:12]}) is no longer here: without its weights nothing can be computed. "
        f"Fetch it from a relay or an archive that has it (shoal fetch URL --version {number} --to DIR), and give "
        "it with shoal replay BUNDLE --weights DIR/latest"
    )


def bring_version(folder: Path, weights: Path, versions: Sequence[Version]) -> None:
    """Puts a version that was fetched again beside the bundles: the one of these that is not there and has its root
    hash. A WeightsError if none has; if all are there, nothing is done."""
    missing = [version for version in versions if not _is_kept(folder, version)]
    which = " or ".join(str(version.number) for version in missing)
    if not weights.is_dir():
        raise WeightsError(f"{weights}: is not a directory; give one with the files of version {which}")
    for version in missing:
        place = _place(folder, version).parent
        shutil.rmtree(place, ignore_errors=True)  # one that is there is damaged
        keep_version(folder, weights.resolve(), version)
        if _is_kept(folder, version):
            return
        shutil.rmtree(place, ignore_errors=True)
    if missing:
        raise WeightsError(f"{weights}: is not version {which} of this bundle: its files have another root hash")


def _is_kept(folder: Path, version: Version) -> bool:
    try:
        DirectoryChannel(_place(folder, version).parent, keep=1).fetch(version)
    except WeightsError:
        return False
    return True


def _place(folder: Path, version: Version) -> Path:
    return folder / VERSIONS / version.root[:16] / folder_name(version.number)
