"""Private development chain for tests and benchmarks: a real anvil on 127.0.0.1."""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from shoal.errors import BenchError
from shoal.wait import wait_until
from tests.support.servers.programs import find_program
from tests.support.servers.running import free_port, is_taken

START_S = 120.0
STOP_S = 10.0
RICH = hex(10**24)


class Anvil:
    """An anvil process and its port; it can be stopped and started again, and continues where it was."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._program = find_program("anvil")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        state = ["--state", str(self._home / "state.json")]
        command = [str(self._program), "--port", str(self.port), "--accounts", "1", "--silent", *state]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        late = f"anvil: did not answer within {START_S:.0f} s"
        wait_until(self._answers, START_S, late, pause_s=0.02, error=BenchError)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            said = (self._home / "log").read_text(errors="replace")[-300:]
            raise BenchError(f"anvil: ended with {self._process.returncode}: {said}")
        try:
            self.ask("eth_chainId")
        except OSError:
            return False
        return True

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, method: str, *parameters: Any) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}).encode()
        request = Request(self.url, body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=START_S) as answer:
            tree = json.load(answer)
        if "error" in tree:
            raise BenchError(f"anvil: {method}: {tree['error']}")
        return tree["result"]

    def enrich(self, address: str) -> None:
        """Gives an address money for gas and stake."""
        self.ask("anvil_setBalance", address, RICH)


def _started(home: Path) -> Anvil:
    """A chain at work; somebody may take its port before it does, and it gets another one then."""
    chain = Anvil(home)
    try:
        chain.start()
    except BenchError as error:
        if not is_taken(error):
            raise
        chain = Anvil(home)
        chain.start()
    return chain


@contextmanager
def anvil() -> Iterator[Anvil]:
    """A chain that mines each transaction at once; BenchError if anvil is not available."""
    with tempfile.TemporaryDirectory(prefix="shoal-anvil-") as home:
        chain = _started(Path(home))
        try:
            yield chain
        finally:
            chain.stop()
