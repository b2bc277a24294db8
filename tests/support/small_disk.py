"""A disk that is soon full: a small tmpfs, mounted in its own namespace."""

import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest


def run_on_small_disk(mount: Path, kib: int, code: str, *arguments: str) -> str:
    """What Python code prints while `mount` is a disk of `kib` KiB; a namespace hides the mount from everyone else."""
    prefix = own_mounts()
    if prefix is None:
        pytest.skip("this machine does not allow mounting a tmpfs, not even in a namespace")
    mount.mkdir(exist_ok=True)
    command = f'mount -t tmpfs -o size={kib}k tmpfs "$0" && exec "$@"'
    result = subprocess.run(
        [*prefix, "sh", "-c", command, str(mount), sys.executable, "-c", code, str(mount), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@lru_cache(maxsize=1)
def own_mounts() -> list[str] | None:
    for prefix in (["unshare", "-m"], ["unshare", "-rm"]):
        probe = [*prefix, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        try:
            if subprocess.run(probe, capture_output=True, timeout=10).returncode == 0:
                return prefix
        except FileNotFoundError:
            return None
    return None
