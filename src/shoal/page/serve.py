"""`shoal page`: serves the pages of a run from its files, in a process that no role waits for."""

import signal
import ssl
from pathlib import Path
from types import FrameType

from rich.console import Console

from shoal.coordinator.http.loopback import is_loopback_name
from shoal.coordinator.http.server import bind, url_of, uvicorn_server
from shoal.crypto.tls import server_context
from shoal.errors import ConfigError
from shoal.page.app import MAX_STREAMS, make_app
from shoal.page.pages import Pages
from shoal.page.source import RunFiles
from shoal.priority import give_way
from shoal.rundir import role_key

# Training comes first; a page may be a second late.
MAX_CONNECTIONS = 4 * MAX_STREAMS


def serve_page(run: Path, host: str, port: int, console: Console, *, public: bool = False) -> None:
    """Serves until SIGINT or SIGTERM. Reads the run's files and writes none."""
    if not public and not is_loopback_name(f"{host}:{port}" if ":" not in host else f"[{host}]"):
        raise ConfigError(
            f"page {host}:{port}: is not loopback; --public serves it to other machines, which then see all that "
            "docs/page.md lists"
        )
    files = RunFiles.open(run)
    listener = bind(host, port, "page", "give another --host or --port")
    give_way()
    context = _context(files, run) if public else None
    pages = Pages(files, public=public)
    server = uvicorn_server(make_app(pages), MAX_CONNECTIONS, context=context)

    def stop(_number: int, _frame: FrameType | None) -> None:
        pages.stop()
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    console.print(f"pages of {files.name} at {url_of(listener, tls=context is not None)}/", highlight=False)
    server.run(sockets=[listener])


def _context(files: RunFiles, run: Path) -> ssl.SSLContext | None:
    """TLS as the coordinator has it; None where the run speaks plain http."""
    if files.run is None or files.run.config.swarm.scheme != "https":
        return None
    swarm = files.run.config.swarm
    return server_context(role_key(run, "coordinator"), swarm.tls_cert, swarm.tls_key)
