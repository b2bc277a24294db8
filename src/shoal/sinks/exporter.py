"""`shoal metrics`: serves GET /metrics to Prometheus from a run's files, with nothing but the standard library.

Any directory of a run will do: that of its owner has all roles, that of a machine that joined has its own. The process
has a low priority, and a scraper that stalls holds up no other. On loopback it answers to no other name than
loopback's: otherwise any web site could point a name of its own at 127.0.0.1 and read it (DNS rebinding).
"""

import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

from rich.console import Console

from shoal.errors import ConfigError
from shoal.priority import give_way
from shoal.sinks.prometheus import RunFigures
from shoal.telemetry.prometheus_text import CONTENT_TYPE
from shoal.watch.history import run_directory

REQUEST_S = 5.0
# Scrapers that come more often than this get the last page again.
FRESH_S = 0.5
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Exporter(ThreadingHTTPServer):
    """One page of metrics at /metrics; anything else is not found."""

    daemon_threads = True

    def __init__(self, run: Path, host: str, port: int) -> None:
        self._figures = RunFigures(run_directory(run))
        self._page, self._made = b"", 0.0
        self._lock = threading.Lock()
        self.is_loopback = host in LOOPBACK
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"metrics {host}:{port}: cannot listen there ({error}); give another --port") from error

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}/metrics"

    def page(self) -> bytes:
        """The page as of now."""
        with self._lock:
            now = time.monotonic()
            if not self._page or now - self._made > FRESH_S:
                self._figures.refresh()
                self._page, self._made = self._figures.page(time.time()).encode(), now
            return self._page


class _Handler(BaseHTTPRequestHandler):
    server: Exporter
    timeout = REQUEST_S
    server_version, sys_version = "shoal", ""

    def do_GET(self) -> None:
        name = self.headers.get("Host", "").removesuffix(f":{self.server.server_port}")
        if self.server.is_loopback and name not in LOOPBACK:
            self.send_error(421, "served on loopback only: ask for 127.0.0.1")
            return
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "see /metrics")
            return
        data = self.server.page()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """A scrape per few seconds is not worth a line."""


def serve_metrics(run: Path, host: str, port: int, console: Console) -> None:
    """Serves until SIGINT or SIGTERM. Reads the run's files and writes none."""
    with Exporter(run, host, port) as server:
        give_way()

        def stop(_number: int, _frame: FrameType | None) -> None:
            threading.Thread(target=server.shutdown, daemon=True).start()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        console.print(f"metrics of {run} at {server.url}", highlight=False, soft_wrap=True)
        server.serve_forever()
