"""The real nginx, for tests and benchmarks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.programs import find_program
from tests.support.servers.running import await_port, running


@contextmanager
def nginx(config: Path, port: int, log: Path, program: Path | None = None) -> Iterator[None]:
    """nginx with this configuration file, listening on its port inside the block; BenchError if it is not available."""
    # Its workers would otherwise run as nobody, who may not read a directory of root's.
    user = "user root;" if os.geteuid() == 0 else ""
    command = [program or find_program("nginx"), "-p", config.parent, "-c", config, "-g", f"daemon off; {user}"]
    with running([str(part) for part in command], log):
        await_port(port, "nginx")
        yield
