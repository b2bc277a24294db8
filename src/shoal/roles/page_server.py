"""The run's web pages in a process of their own: nothing waits for it, and its end ends nothing.

Serving pages inside the coordinator would put strangers' reading beside nodes' leases, in one process. A process of
its own has its own memory, a low priority, and no key, lock or connection that a role needs.
"""

import json
import time
from pathlib import Path

from shoal.files import parse_json, read_regular, write_whole
from shoal.process import Child, free_ports, stop_all
from shoal.rundir import RunDir

FILE = "page.json"  # the port of the last time, so that an open page finds the run again
MAX_RESTARTS = 3
WINDOW_S = 600.0


class PageServer:
    """`shoal page` beside the roles of `shoal run`, as `swarm.pages` asks for."""

    def __init__(self, run: RunDir) -> None:
        swarm = run.config.swarm
        self.is_public = swarm.pages == "public"
        self._port = swarm.page_port or _free_port(run.path / FILE)
        write_whole(run.path / FILE, json.dumps({"port": self._port}).encode())
        listen = ["--host", swarm.host, "--public"] if self.is_public else []
        self._arguments = ["page", str(run.path), "--port", str(self._port), *listen]
        self._log = run.path / "logs" / "page.log"
        self.url = f"http://127.0.0.1:{self._port}/"
        if self.is_public:
            self.url = f"{swarm.scheme}://{swarm.public_host}:{self._port}/"
        self.reaches_others = self.is_public or swarm.host in ("127.0.0.1", "::1", "localhost")
        """Whether everybody who reaches the coordinator reaches this URL too, so that it may send them there."""
        self._ends: list[float] = []
        self._child: Child | None = None

    def start(self) -> None:
        self._child = Child("page", self._arguments, 1, self._log, is_service=True)

    def look(self) -> str | None:
        """Starts a page that ended again, some times; a sentence if something is to be told."""
        if self._child is None or (code := self._child.poll()) is None:
            return None
        now = time.monotonic()
        self._ends = [*(at for at in self._ends if now - at < WINDOW_S), now]
        if len(self._ends) > MAX_RESTARTS:
            self.close()
            return (
                f"the page ended {len(self._ends)} times, with code {code}: see {self._log}; the run goes on without it"
            )
        self._child.restart()
        return None

    def close(self) -> None:
        if self._child is not None:
            stop_all([self._child])
            self._child = None


def _free_port(file: Path) -> int:
    try:
        last = int(parse_json(read_regular(file))["port"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        last = 0
    return free_ports([last])[0]
