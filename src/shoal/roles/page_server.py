"""The run's web pages in a process of their own: nothing waits for it, and its end ends nothing.

Serving pages inside the coordinator would put strangers' reading beside nodes' leases, in one process. A process of
its own has its own memory, a low priority, and no lock or connection that a role needs. Of keys it loads the
coordinator's alone, and that only to serve others over TLS.
"""

import json
from pathlib import Path

from shoal.files import parse_json, read_regular, write_whole
from shoal.process import free_ports
from shoal.roles.side_process import SideProcess
from shoal.rundir import RunDir

FILE = "page.json"  # the port of the last time, so that an open page finds the run again


class PageServer(SideProcess):
    """`shoal page` beside the roles of `shoal run`, as `swarm.pages` asks for."""

    def __init__(self, run: RunDir) -> None:
        swarm = run.config.swarm
        self.is_public = swarm.pages == "public"
        port = swarm.page_port or _free_port(run.path / FILE)
        write_whole(run.path / FILE, json.dumps({"port": port}).encode())
        listen = ["--host", swarm.host, "--public"] if self.is_public else []
        arguments = ["page", str(run.path), "--port", str(port), *listen]
        super().__init__("page", arguments, run.path / "logs" / "page.log", "the page")
        self.url = f"http://127.0.0.1:{port}/"
        if self.is_public:
            self.url = f"{swarm.scheme}://{swarm.public_host}:{port}/"
        self.reaches_others = self.is_public or swarm.host in ("127.0.0.1", "::1", "localhost")
        """Whether everybody who reaches the coordinator reaches this URL too, so that it may send them there."""


def _free_port(file: Path) -> int:
    try:
        last = int(parse_json(read_regular(file))["port"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        last = 0
    return free_ports([last])[0]
