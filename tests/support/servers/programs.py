"""Programs that tests and benchmarks run and pip cannot install: the machine's own, else fetched into the cache.

`python -m tests.support.servers.programs nginx` prints where the program is.
"""

import platform
import shutil
import sys
import tarfile
from pathlib import Path

from shoal.errors import BenchError, ShoalError, TaskError
from shoal.files import make_directory
from shoal.tasks.isolation.install import BUBBLEWRAP, Program, Unpack, find_or_install, need_tools, run, unpack_debian

SYSTEM_NAME = f"{platform.system().lower()}-{'arm64' if platform.machine() in ('arm64', 'aarch64') else 'amd64'}"


def unpack_npm(program: Program, scratch: Path, root: Path) -> Path:
    """Unpacks plain files only, and none outside of `root`; not every Python 3.11 has tar filters for that."""
    need_tools(program, "npm")
    run(program, ["npm", "pack", "--silent", "--ignore-scripts", program.package], scratch)
    package = next(scratch.glob("*.tgz"))
    with tarfile.open(package) as archive:
        for member in archive:
            target = root / member.name
            if member.isfile() and target.resolve().is_relative_to(root.resolve()):
                make_directory(target.parent)
                with archive.extractfile(member) as source, target.open("wb") as file:  # type: ignore[union-attr]
                    shutil.copyfileobj(source, file)
    return package


PROGRAMS: dict[str, tuple[Program, Unpack]] = {
    program.name: (program, unpack)
    for program, unpack in (
        (Program("nginx", "nginx", "usr/sbin/nginx", "-v"), unpack_debian),
        (Program("b3sum", "b3sum", "usr/bin/b3sum"), unpack_debian),
        (Program("curl", "curl", "usr/bin/curl"), unpack_debian),
        (Program("wget", "wget", "usr/bin/wget"), unpack_debian),
        (Program("postgres", "postgresql-15", "usr/lib/postgresql/15/bin/postgres"), unpack_debian),
        (Program("anvil", f"@foundry-rs/anvil-{SYSTEM_NAME}@1.7.1", "package/bin/anvil"), unpack_npm),
        (BUBBLEWRAP, unpack_debian),
    )
}


def find_program(name: str, cache: Path | None = None) -> Path:
    """The path of a program, fetched at first use where the machine does not have it; BenchError if it cannot be."""
    try:
        return find_or_install(*PROGRAMS[name], cache)
    except TaskError as error:
        raise BenchError(str(error)) from error


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
