"""A whole run that a machine is lent to with `shoal lend`: real processes from the command line to the ledger."""

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shoal.client.client import CoordinatorClient
from shoal.crypto.keys import Key
from tests.support.run_processes import CONFIG, SMALLEST, Runs, own_worker_stopped
from tests.support.until import until

WAIT_S = 240.0
# A pause is heard within a tenth of a second; the rest is for a supervisor that waits its turn beside a whole run. The
# command itself waits no longer.
PAUSE_S = 30.0
pytestmark = pytest.mark.timeout(900)


class Machine:
    """A machine with a home directory of its own, and `shoal lend` on it."""

    def __init__(self, home: Path, cache: str) -> None:
        home.mkdir()
        own = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home / "config")}
        self.env = {**os.environ, **own, "SHOAL_CACHE": cache, "NO_COLOR": "1"}
        self.folder = home / "state" / "shoal" / "lend" / "worker"

    def lend(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "shoal", "lend", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self.env, cwd="/", timeout=WAIT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def state(self) -> str:
        found = json.loads((self.folder / "status.json").read_text())
        return f"{found['state']} {found['reason']}"

    @property
    def took_s(self) -> float:
        """From the owner's wish to the state that followed: without the start of the command, which is Python's."""
        since: float = json.loads((self.folder / "status.json").read_text())["since"]
        return since - (self.folder / "control.json").stat().st_mtime


def test_a_machine_is_lent_paused_resumed_and_finished(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG)
    with Runs(tmp_path / "cache") as runs, ExitStack() as stack:
        run = runs.start(config, tmp_path / "run", *SMALLEST)
        log = tmp_path / "run.log"
        until(lambda: re.search(r"shoal worker --join (\S+)", log.read_text()) or run.poll() is not None, WAIT_S)
        found = re.search(r"shoal worker --join (\S+)", log.read_text())
        assert found is not None, log.read_text()
        stack.enter_context(own_worker_stopped(tmp_path / "run", WAIT_S))
        machine = Machine(tmp_path / "home", runs.env["SHOAL_CACHE"])
        link = CoordinatorClient(found[1], Key.create(), wait_s=WAIT_S)

        def node() -> dict[str, Any]:
            nodes: list[dict[str, Any]] = link.get("/v1/status")["nodes"]
            return next((n for n in nodes if n["name"] == "worker" and n["role"] == "worker"), {"accepted": 0})

        try:
            machine.lend("start", found[1], "--memory", "4G", "--disk", "1G", "--threads", "1", "--download", "50M")
            until(lambda: node()["accepted"] > 0, WAIT_S)
            machine.lend("pause")
            until(lambda: machine.state.startswith("paused"), WAIT_S)
            paused_s = machine.took_s
            before = node()["accepted"]
            machine.lend("resume")
            until(lambda: machine.state.startswith(("starting", "working")), WAIT_S)
            until(lambda: node()["accepted"] > before + 1, WAIT_S)
            machine.lend("finish")
            until(lambda: machine.state.startswith("ended"), WAIT_S)
            assert machine.state == "ended the leases were handed in"
            assert node().get("rejected") == 0
            assert 0 < paused_s < PAUSE_S
        finally:
            subprocess.run(
                [sys.executable, "-m", "shoal", "lend", "finish", "--now"],
                env=machine.env,
                cwd="/",
                capture_output=True,
            )
            link.__exit__()
