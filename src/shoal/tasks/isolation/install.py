"""Rootless installer of bubblewrap: unpacks a program of a Debian package into the user's cache.

`python -m shoal.tasks.isolation.install` installs bubblewrap and prints where it is. Nothing is installed into the
system and no rights are needed: the package is fetched with apt, its files are unpacked, and its scripts never run.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import ShoalError, TaskError
from shoal.files import cache_dir, locked, whole_directory

FETCH_S = 300.0
INSTALL_WAIT_S = 600.0
# Where daemons are; a user's PATH often leaves them out.
SYSTEM = f"{os.defpath}{os.pathsep}/usr/sbin{os.pathsep}/usr/local/sbin"


@dataclass(frozen=True, slots=True)
class Program:
    """A program, the package that contains it and its path there; with the argument `probe` it ends at once."""

    name: str
    package: str
    path: str
    probe: str = "--version"


BUBBLEWRAP = Program("bwrap", "bubblewrap", "usr/bin/bwrap")

# Unpacks a program's package into the second directory, with the first one for scratch; gives the package's file.
Unpack = Callable[[Program, Path, Path], Path]


def unpack_debian(program: Program, scratch: Path, root: Path) -> Path:
    """Unpacks a Debian package. Where the machine's package lists are missing or stale, it fetches its own."""
    need_tools(program, "apt-get", "dpkg-deb")
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (scratch / folder).mkdir(parents=True)
    own = ["-o", f"Dir::State={scratch}/state", "-o", f"Dir::Cache={scratch}/cache"]
    apt = ["apt-get", "--quiet", "-o", "APT::Sandbox::User="]
    try:
        run(program, [*apt, "download", program.package], scratch)
    except TaskError:
        run(program, [*apt, *own, "update"], scratch)
        run(program, [*apt, *own, "download", program.package], scratch)
    package = next(scratch.glob("*.deb"))
    run(program, ["dpkg-deb", "-x", str(package), str(root)], root)
    return package


def find_or_install(program: Program, unpack: Unpack = unpack_debian, cache: Path | None = None) -> Path:
    """The path of a program: the machine's own, else the cache's, installed at first use; TaskError if neither."""
    for path in (os.environ.get("PATH", ""), SYSTEM):
        if found := shutil.which(program.name, path=path):
            return Path(found)
    home = (cache or cache_dir()) / "programs" / program.name
    binary = home / program.path
    busy = f"{program.name}: another process installs it; try again later"
    with locked(home.with_suffix(".lock"), busy, INSTALL_WAIT_S):
        if not os.access(binary, os.X_OK):
            _install(program, unpack, home)
            binary.chmod(0o755)  # last: a binary that may run is a whole one
    return binary


def _install(program: Program, unpack: Unpack, home: Path) -> None:
    sys.stderr.write(f"Installing {program.name} into {home}, once\n")
    with tempfile.TemporaryDirectory(prefix="shoal-install-") as scratch, whole_directory(home, replace=True) as root:
        package = unpack(program, Path(scratch), root)
        binary = root / program.path
        if not binary.is_file():
            raise TaskError(f"{program.name}: {package.name} holds no {program.path}; install {program.name} by hand")
        try:
            binary.chmod(0o755)
            run(program, [str(binary), program.probe], root)
        except TaskError as error:
            raise TaskError(f"{error}\ninstall {program.name} by hand, so that it is on PATH") from None


def need_tools(program: Program, *tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            raise TaskError(f"{program.name} is not on PATH, and without {tool} it cannot be fetched; install it")


def run(program: Program, command: Sequence[str], folder: Path) -> None:
    """Runs one command of an installation, with a deadline; TaskError with the end of its output if it fails."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TaskError(f"{program.name} cannot be fetched: `{' '.join(command)}`: {error}") from None
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-5:])
        raise TaskError(
            f"{program.name} cannot be fetched: `{' '.join(command)}` ended with {done.returncode}:\n{tail}"
        )


def main() -> None:
    try:
        sys.stdout.write(f"{find_or_install(BUBBLEWRAP)}\n")
    except ShoalError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
