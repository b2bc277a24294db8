"""The sides of `python -m benchmarks broadcast`: each brings up an origin, a relay and clients, and sends them a file.

What one send has to do is the same for all: it begins when the file is there and nobody else knows of it, and it ends
when every client has the file on its disk and has found its hash right.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from benchmarks.peers.process import Peer, peer_python
from shoal.errors import BenchError
from tests.support.servers.nginx import nginx
from tests.support.servers.programs import find_program
from tests.support.servers.running import free_port

SHARDCAST = "shardcast==0.3.2"
SCRIPT = Path(__file__).parents[1] / "peers" / "shardcast.py"
LINK_SCRIPT = Path(__file__).parents[1] / "peers" / "link.py"
# Its waits between tries, lowered to a second; it takes whole seconds only.
SHARDCAST_ENVIRONMENT = {
    "SHARDCAST_FAST_RETRY_INTERVAL": "1",
    "SHARDCAST_SLOW_RETRY_INTERVAL": "1",
    "SHARDCAST_LOG_LEVEL": "ERROR",
    "no_proxy": "*",
}
START_S = 60.0
SEND_S = 300.0

Send = Callable[[Path], list[Path]]


class Side(Protocol):
    """A way to broadcast: `swarm` is an origin, one relay and clients that wait, and gives the call that sends."""

    name: str

    def swarm(self, folder: Path, clients: int) -> AbstractContextManager[Send]: ...


class Shardcast:
    """The published package: its own processes, one per node."""

    name = "shardcast"

    def __init__(self, cache: Path) -> None:
        self._python = peer_python("shardcast", (SHARDCAST,), cache=cache)
        self._path = f"{find_program('wget').parent}{os.pathsep}{os.environ.get('PATH', '')}"

    @contextmanager
    def swarm(self, folder: Path, clients: int) -> Iterator[Send]:
        ports = [free_port(), free_port()]
        origin_url, relay_url = (f"http://127.0.0.1:{port}" for port in ports)
        with ExitStack() as stack:
            origin = stack.enter_context(self._node())
            _ask(origin, {"role": "origin", "folder": str(folder / "origin"), "port": ports[0]})
            relay = stack.enter_context(self._node())
            _ask(relay, {"role": "relay", "folder": str(folder / "relay"), "port": ports[1], "upstream": origin_url})
            nodes = [stack.enter_context(self._node()) for _ in range(clients)]
            for i, node in enumerate(nodes):  # one by one: all use the same file of /tmp for their probe
                _ask(node, {"role": "client", "folder": str(folder / f"client-{i}"), "upstream": relay_url})

            def send(data: Path) -> list[Path]:
                with ThreadPoolExecutor(clients) as pool:
                    fetched = [
                        pool.submit(node.ask, {"fetch": "v1"}, awaiting="the version", deadline_s=SEND_S)
                        for node in nodes
                    ]
                    origin.ask({"publish": str(data)}, awaiting="its publication", deadline_s=SEND_S)
                    return [_given(future.result()) for future in fetched]

            yield send

    def _node(self) -> Peer:
        return Peer("shardcast", self._python, SCRIPT, environment={**SHARDCAST_ENVIRONMENT, "PATH": self._path})


def _ask(node: Peer, question: dict[str, Any]) -> None:
    node.ask(question, awaiting=f"the start of its {question['role']}", deadline_s=START_S)


def _given(answer: dict[str, Any]) -> Path:
    if answer["file"] is None:
        raise BenchError("peer shardcast: a client got a file with a wrong checksum; nothing was measured")
    return Path(answer["file"])


class Nginx:
    """nginx before nginx, curl and b3sum, told of the file the moment it is there: no discovery, no signature.

    `pass` streams each client's bytes from the origin, which so sends them once a client. `cache` keeps slices at the
    relay, so that the origin sends each once.
    """

    def __init__(self, kind: Literal["pass", "cache"], cache: Path) -> None:
        self.name = f"nginx-{kind}"
        self._kind = kind
        self._nginx, self._curl, self._b3sum = (find_program(p, cache) for p in ("nginx", "curl", "b3sum"))

    @contextmanager
    def swarm(self, folder: Path, clients: int) -> Iterator[Send]:
        origin, relay = free_port(), free_port()
        files = folder / "origin"
        files.mkdir(parents=True)
        with self._server(folder, "origin", origin, f"root {files};"), self._relay(folder, relay, origin):

            def fetch(out: Path) -> str:
                self._run([self._curl, "--silent", "--fail", "--output", out, f"http://127.0.0.1:{relay}/data.bin"])
                return self._run([self._b3sum, "--no-names", out])

            def send(data: Path) -> list[Path]:
                os.link(data, files / "data.bin")
                outs = [folder / f"client-{i}.bin" for i in range(clients)]
                with ThreadPoolExecutor(clients + 1) as pool:
                    source = pool.submit(self._run, [self._b3sum, "--no-names", data])
                    if set(pool.map(fetch, outs)) != {source.result()}:
                        raise BenchError(f"{self.name}: a client got other bytes; nothing was measured")
                return outs

            yield send

    def _relay(self, folder: Path, port: int, origin: int) -> AbstractContextManager[None]:
        common = (
            "proxy_http_version 1.1; proxy_set_header Connection '';"
            "proxy_buffer_size 256k; proxy_buffers 16 256k; proxy_busy_buffers_size 2m;"
        )
        to = f"upstream origin {{ server 127.0.0.1:{origin}; keepalive 16; }}"
        if self._kind == "pass":
            place = f"location / {{ {common} proxy_max_temp_file_size 0; proxy_pass http://origin; }}"
            return self._server(folder, "relay", port, place, to)
        to += f" proxy_cache_path {folder}/slices levels=1 keys_zone=slices:10m max_size=8g use_temp_path=off;"
        place = (
            f"location / {{ {common} slice 4m; proxy_cache slices; proxy_cache_key $uri$slice_range;"
            "proxy_set_header Range $slice_range; proxy_cache_valid 200 206 1h; proxy_cache_lock on;"
            "proxy_pass http://origin; }"
        )
        return self._server(folder, "relay", port, place, to)

    @contextmanager
    def _server(self, folder: Path, name: str, port: int, place: str, before: str = "") -> Iterator[None]:
        config = folder / f"{name}.conf"
        config.write_text(
            f"worker_processes 2; pid {folder}/{name}.pid; error_log {folder}/{name}.log;\n"
            "events { worker_connections 512; }\n"
            "http { access_log off; sendfile on; tcp_nopush on; sendfile_max_chunk 2m;\n"
            + "".join(f"{kind}_temp_path {folder}/{name}-tmp;\n" for kind in TEMPORARY)
            + f"{before}\nserver {{ listen 127.0.0.1:{port}; {place} }} }}\n"
        )
        with nginx(config, port, folder / f"{name}.out", self._nginx):
            yield

    def _run(self, command: Sequence[str | Path]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SEND_S, check=False)
        if done.returncode != 0:
            raise BenchError(f"{self.name}: {Path(command[0]).name} ended with {done.returncode}: {done.stderr[-500:]}")
        return done.stdout.strip()


TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@contextmanager
def links() -> Iterator[Peer]:
    """The process that holds links; see `peers/link.py`."""
    with Peer("link", Path(sys.executable), LINK_SCRIPT) as peer:
        yield peer


def new_link(peer: Peer, to: int, rate: float | None) -> int:
    """The port of a link to another port that carries so many bytes per second, or as many as it can."""
    return int(peer.ask({"to": to, "rate": rate}, awaiting="a link", deadline_s=START_S)["port"])
