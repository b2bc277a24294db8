"""An origin with a version, relays that are honest, and relays that are not."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from shoal.crypto.keys import Key
from shoal.errors import WaitError
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.format.hashing import files_of
from shoal.shardcast.format.records import MIB
from shoal.shardcast.format.store import Store
from shoal.shardcast.origin.publish import Publisher
from shoal.shardcast.serve.rate_limit import Limits
from shoal.shardcast.serve.server import Server, serving
from tests.support.servers.http_answers import answering

KEY = Key(b"\x11" * 32)
RUN = "test"
LATE_S = 60.0


def write_version(folder: Path, mib: float = 3.5, seed: int = 1) -> Path:
    """A model directory: one large file that does not split into whole pieces, a small one and an empty one."""
    folder.mkdir(parents=True)
    block = bytes((seed + i) % 256 for i in range(4096)) + os.urandom(4096)
    size = int(mib * MIB) + 123
    (folder / "model.safetensors").write_bytes((block * (size // len(block) + 1))[:size])
    (folder / "config.json").write_text(f'{{"seed": {seed}}}')
    (folder / "empty.txt").touch()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def publish_directory(publisher: Publisher, number: int, directory: Path) -> None:
    """Publishes all files under a directory as a full version."""
    size = sum(path.stat().st_size for path in files_of(directory).values())
    with publisher.publish(number, size=size) as package:
        package.add_directory(directory)


class Origin:
    """A publisher and a server over one store."""

    def __init__(self, path: Path, limits: Limits | None = None, key: Key = KEY) -> None:
        self.path = path
        self.store = Store(path / "origin")
        self.publisher = Publisher(self.store, key, RUN)
        self.server = Server(self.store, limits=limits)
        self.versions: dict[int, Path] = {}

    def publish(self, number: int, mib: float = 3.5) -> Path:
        folder = write_version(self.path / f"v{number}-{len(list(self.path.iterdir()))}", mib, number)
        publish_directory(self.publisher, number, folder)
        self.versions[number] = folder
        return folder


@contextmanager
def origin_at(path: Path, limits: Limits | None = None, key: Key = KEY) -> Iterator[Origin]:
    origin = Origin(path, limits, key)
    with origin.publisher, serving(origin.server):
        yield origin


@contextmanager
def relay_at(path: Path, *sources: str, name: str = "relay", limits: Limits | None = None) -> Iterator[Server]:
    store = Store(path)
    with serving(Server(store, name=name, limits=limits)) as server:
        puller = Puller(store, sources, KEY.address, RUN, mirror=True, name=name, own_url=server.url)
        server.facts = puller.facts
        with puller:
            yield server


def client_of(path: Path, *sources: str, stall_s: float = 10.0, seed: int = 0) -> Puller:
    return Puller(Store(path), sources, KEY.address, RUN, stall_s=stall_s, seed=seed)


def fails_to_fetch(client: Puller, number: int | None, why: str) -> None:
    """A fetch ends with an error that says why, at the latest once its sources have said so."""
    deadline = time.monotonic() + LATE_S
    while True:
        with pytest.raises(WaitError) as failed:
            client.fetch(number, wait_s=1.0)
        if re.search(why, str(failed.value)):
            return
        assert time.monotonic() < deadline, failed.value


def metric(server: Server, name: str) -> float:
    with urlopen(f"{server.url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return float(next((line.split()[-1] for line in lines if line.startswith(f"shoal_cast_{name} ")), "0"))


Change = Callable[[str, bytes], bytes | None]  # path and what an honest relay sends -> what this one does


@contextmanager
def changing_relay(honest: str, change: Change) -> Iterator[str]:
    """A relay that alters what it passes on; None breaks the connection off after half of it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = Request(f"{honest}{self.path.partition('?')[0]}")  # answers at once, as a plain web server does
            if wanted := self.headers.get("Range"):
                asked.add_header("Range", wanted)
            try:
                with urlopen(asked, timeout=30) as answer:
                    status, data = answer.status, answer.read()
            except OSError as error:
                status, data = getattr(error, "code", 502), b""
            sent = change(self.path, data) if status in (200, 206) else data
            self.send_response(status)
            self.send_header("Content-Length", str(len(data if sent is None else sent)))
            self.end_headers()
            if status != 304:
                self.wfile.write(data[: len(data) // 2] if sent is None else sent)
            self.close_connection |= sent is None

        def handle(self) -> None:
            with suppress(ConnectionError):
                super().handle()

        def log_message(self, *_: object) -> None:
            pass

    with answering(Handler) as url:
        yield url
