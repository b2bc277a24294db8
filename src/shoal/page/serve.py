"""`shoal page`: serves the pages of a run from its files, in a process that no role waits for."""

import signal
from pathlib import Path
from types import FrameType

from rich.console import Console

from shoal.coordinator.http.loopback import is_loopback_name
from shoal.coordinator.http.run_certificate import run_context
from shoal.coordinator.http.server import bind, url_of, uvicorn_server
from shoal.errors import ConfigError
from shoal.page.app import MAX_STREAMS, make_app
from shoal.page.pages import Pages
from shoal.page.source import RunFiles
from shoal.priority import give_way

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
    context = run_context(files.run, "page") if public and files.run is not None else None
    listener = bind(host, port, "page", "give another --host or --port")
    give_way()
    pages = Pages(files, public=public)
    server = uvicorn_server(make_app(pages), MAX_CONNECTIONS, context=context)

    handle_exit = server.handle_exit

    def stop(number: int, frame: FrameType | None) -> None:
        pages.stop()  # the server waits for open streams, and cuts them off with an error
        handle_exit(number, frame)

    # While it serves, uvicorn listens to signals with this, whatever was there before.
    setattr(server, "handle_exit", stop)  # noqa: B010
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    console.print(f"pages of {files.name} at {url_of(listener, tls=context is not None)}/", highlight=False)
    server.run(sockets=[listener])
