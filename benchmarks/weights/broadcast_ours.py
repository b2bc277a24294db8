"""Our side of `python -m benchmarks broadcast`: `shoal origin`, `shoal relay` and `shoal fetch` as people run them."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.weights.broadcast_sides import SEND_S, Send
from shoal.crypto.keys import Key
from shoal.errors import WaitError
from shoal.files import write_whole
from tests.support.servers.running import await_port, free_port, running

# The first version of every swarm: a node that has it is ready and waits for the next.
FIRST = b"shoal"


class Origin:
    """`shoal origin`, and the directory in which it finds new versions."""

    def __init__(self, folder: Path, port: int, address: str) -> None:
        self.port = port
        self.address = address
        self._inbox = folder
        self._next = 0

    def publish_first(self) -> int:
        """Publishes a version of a few bytes; its number."""
        write_whole(self._take(), FIRST)
        return self._next - 1

    def publish(self, data: Path) -> int:
        """Puts a file where the origin publishes from, in one step and without a copy; its version's number."""
        os.link(data, self._take())
        return self._next - 1

    def _take(self) -> Path:
        self._next += 1
        return self._inbox / f"v{self._next - 1:06d}.bin"


class Client:
    """`shoal fetch --follow`, which prints the directory of every version that it has fetched."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log
        self._came: dict[int, Path] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def await_version(self, number: int, deadline_s: float = SEND_S) -> Path:
        """The version's file, once all of it has come and been checked."""
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._came or self._process.poll() is not None, deadline_s):
                raise WaitError(f"shoal fetch: version {number} did not come within {deadline_s:.0f} s{self._said()}")
            if number not in self._came:
                raise WaitError(f"shoal fetch ended before version {number} came{self._said()}")
            return self._came[number] / "model.bin"

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            files = Path(line.decode().strip())
            with self._changed:
                self._came[int(files.parent.name.split("-")[0])] = files
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _said(self) -> str:
        tail = self._log.read_text(errors="replace").splitlines()[-10:]
        return ". The last lines it wrote:\n" + "\n".join(tail) if tail else "; it wrote nothing"


class Ours:
    """An origin, a relay and clients, each a process of its own."""

    name = "shoal"

    @contextmanager
    def swarm(self, folder: Path, clients: int) -> Iterator[Send]:
        with ExitStack() as stack:
            origin = stack.enter_context(self.origin(folder))
            relay = stack.enter_context(self.relay(folder / "relay", origin.port, origin.address))
            waiting = [
                stack.enter_context(self.client(folder / f"client-{i}", relay, origin.address)) for i in range(clients)
            ]
            first = origin.publish_first()
            for client in waiting:
                client.await_version(first)

            def send(data: Path) -> list[Path]:
                version = origin.publish(data)
                return [client.await_version(version) for client in waiting]

            yield send

    @contextmanager
    def origin(self, folder: Path) -> Iterator[Origin]:
        inbox, key, port = folder / "inbox", folder / "origin.key", free_port()
        inbox.mkdir()
        address = Key.load_or_create(key).address
        options = ["--store", folder / "store", "--key", key, "--port", port]
        with running(_shoal("origin", inbox, *options), folder / "origin.log"):
            await_port(port, "shoal origin")
            yield Origin(inbox, port, address)

    @contextmanager
    def relay(self, store: Path, upstream: int, address: str) -> Iterator[int]:
        """A relay in front of the server on `upstream`; its port."""
        port = free_port()
        options = ["--from", f"http://127.0.0.1:{upstream}", "--store", store, "--origin", address, "--port", port]
        with running(_shoal("relay", *options), store.with_suffix(".log")):
            await_port(port, "shoal relay")
            yield port

    @contextmanager
    def client(self, store: Path, upstream: int, address: str) -> Iterator[Client]:
        options = ["--to", store, "--origin", address, "--follow", "--quiet"]
        log = store.with_suffix(".log")
        with running(_shoal("fetch", f"http://127.0.0.1:{upstream}", *options), log, listen=True) as process:
            yield Client(process, log)


def _shoal(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "shoal", *map(str, arguments)]
