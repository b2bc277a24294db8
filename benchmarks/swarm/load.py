"""Load test of the coordinator: a thousand simulated nodes, in one process, against a real `shoal coordinator`.

Nodes, trainer and validator share the machine's cores with the coordinator, and with PostgreSQL where that is used. All
of them heartbeat as often as the run says. They work in two ways, one after the other:

- *in a hurry*: a few dozen nodes at a time each take a lease and hands its file in at once. What comes of
  it is the most that coordinator, validator and trainer get done together, for nobody runs ahead of the trainer.
- *steadily*: each takes a lease, thinks, hands its file in and takes the next one. How long it thinks is chosen so that
  all of them together ask for `SHARE` of that most. The heartbeats that count are those of this part.

Any answer but 200, and none at all, is an error, from joining to the end.
"""

import json
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.common.progress import Progress
from benchmarks.common.result import Figure
from benchmarks.swarm.nodes import Load
from shoal.config import RunConfig
from shoal.config_io import check_config, to_toml
from shoal.errors import BenchError
from shoal.process import Child, free_ports, stop_all
from shoal.rundir import key_path
from shoal.wait import wait_until
from tests.support.servers.postgres import postgres

SHARE = 0.5
HURRIED = 32
FILES_PER_STEP = 500
START_S = 60.0
LOG_BYTES = 1000
# Besides the times of its parts: joining, the time that nodes take to think, and a machine that is slow.
PATIENCE_S = 600.0
CONFIG: dict[str, Any] = {
    "name": "bench-swarm",
    "steps": 1_000_000,
    # Steps v .. v + 4 are open at once: a lease for every node, and as many places again.
    "async_level": 4,
    "tasks": [{"source": "reasoning-gym/spell_backward"}],
    "train": {"groups_per_step": FILES_PER_STEP},
    "workers": {"groups_per_submission": 1},
    "keep": {"versions": 8},
}


def load_figures(quick: bool, progress: Progress) -> dict[str, Figure]:
    """The figures of the load on SQLite, and with the suffix `_postgres` those on PostgreSQL."""
    nodes = 100 if quick else 1000
    values: dict[str, Figure] = {"nodes": nodes}
    with postgres() as server:
        for suffix, database in (("", ""), ("_postgres", f"{server}/postgres")):
            progress.stage(f"{nodes} nodes, {'PostgreSQL' if database else 'SQLite'}")
            found = load_once(database, nodes, quick, progress)
            values |= {f"{name}{suffix}": value for name, value in found.items()}
    return values


def load_once(database: str, nodes: int, quick: bool, progress: Progress) -> dict[str, Figure]:
    """One coordinator under load, from an empty database."""
    config = check_config({**CONFIG, "swarm": {"database": database}}, "of the benchmark")
    warm_s, hurry_s, steady_s = (1.0, 2.0, 3.0) if quick else (10.0, 20.0, 40.0)
    with tempfile.TemporaryDirectory(prefix="shoal-bench-swarm-") as scratch:
        run = Path(scratch) / "run"
        with coordinator_of(config, run) as url:
            load = Load(
                url=url,
                trainer=str(key_path(run, "trainer")),
                validator=str(key_path(run, "validator")),
                nodes=nodes,
                files_per_step=FILES_PER_STEP,
                hurried=HURRIED,
                warm_s=warm_s,
                hurry_s=hurry_s,
                steady_s=steady_s,
                share=SHARE,
            )
            found = play(load, progress, Path(scratch) / "nodes.log")
    if found["errors"]:
        progress.console.print(f"errors: {found['faults']}", markup=False)
    return figures(found)


def figures(found: dict[str, Any]) -> dict[str, Figure]:
    """What is reported of one load."""
    steady, hurried = found["steady"], found["hurried"]
    return {
        "errors": found["errors"],
        **{name: steady[name] for name in ("heartbeat_p99_ms", "leases_per_s", "uploads_per_s", "heartbeat_p50_ms")},
        **{name: steady[name] for name in ("lease_p99_ms", "upload_p99_ms", "requests_per_s")},
        "most_leases_per_s": hurried["leases_per_s"],
        "most_uploads_per_s": hurried["uploads_per_s"],
        "most_requests_per_s": hurried["requests_per_s"],
        "hurried_heartbeat_p99_ms": hurried["heartbeat_p99_ms"],
        "joins_per_s": found["joins_per_s"],
    }


@contextmanager
def coordinator_of(config: RunConfig, run: Path) -> Iterator[str]:
    """`shoal coordinator` at work; gives its URL."""
    (port,) = free_ports([0])
    file = run.with_suffix(".toml")
    file.write_text(to_toml(config))
    command = ["coordinator", str(file), "--out", str(run), "--set", f"swarm.port={port}"]
    child = Child("coordinator", command, 1, run.with_suffix(".log"), is_service=True)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(child, url)
        yield url
    finally:
        stop_all([child])


def _wait(child: Child, url: str) -> None:
    def answers() -> bool:
        try:
            urllib.request.urlopen(f"{url}/v1/card", timeout=START_S).close()
        except OSError as error:
            if child.poll() is not None:
                log = child.log.read_text(errors="replace")[-LOG_BYTES:]
                raise BenchError(f"coordinator: ended with {child.poll()}; its log ends:\n{log}") from error
            return False
        return True

    late = f"coordinator {url}: did not answer within {START_S:.0f} s"
    wait_until(answers, START_S, late, pause_s=0.05, error=BenchError)


def play(load: Load, progress: Progress, log: Path) -> dict[str, Any]:
    """Lets the nodes loose in a process of their own; what they measured."""
    last: dict[str, Any] = {}
    command = [sys.executable, "-m", "benchmarks.swarm.nodes"]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as nodes,
    ):
        watchdog = threading.Timer(load.warm_s + load.hurry_s + load.steady_s + PATIENCE_S, nodes.kill)
        watchdog.start()
        try:
            assert nodes.stdin
            assert nodes.stdout
            nodes.stdin.write(json.dumps(asdict(load)) + "\n")
            nodes.stdin.close()
            for line in nodes.stdout:
                last = json.loads(line)
                if "at" in last:
                    progress.detail(last["at"])
        except BaseException:
            nodes.kill()
            raise
        finally:
            watchdog.cancel()
    if nodes.returncode != 0 or "steady" not in last:
        said = log.read_text(errors="replace")[-LOG_BYTES:]
        raise BenchError(f"simulated nodes: ended with {nodes.returncode} at {last.get('at', 'the start')}:\n{said}")
    return last
