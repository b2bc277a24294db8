"""The real command, killed at any moment while nodes work: nothing acknowledged is lost, nothing counts twice."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.client.client import CoordinatorClient
from shoal.client.rollout_store import SwarmStore
from shoal.config_io import to_toml
from shoal.crypto.keys import Key
from shoal.files import sha256_file
from shoal.rundir import role_key
from shoal.wait import wait_until
from tests.support.coordinator_in_process import good_file, key_of, make_config
from tests.support.servers.running import free_port
from tests.support.submissions import LIMITS, ROOT, judge_formats

KILLS = 2
NODES = 4


class Command:
    """`shoal coordinator`, which can be killed and started again on the same port."""

    def __init__(self, config: Path, run: Path, port: int) -> None:
        self._arguments = [str(config), "--out", str(run), "--set", f"swarm.port={port}"]
        self.url = f"http://127.0.0.1:{port}"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "shoal", "coordinator", *self._arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def kill(self) -> None:
        assert self._process.poll() is None, self._process.communicate()[1].decode()
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    def end(self) -> str:
        self._process.terminate()
        return self._process.communicate(timeout=30)[1].decode()


@contextmanager
def coordinator(tmp_path: Path, database: str) -> Iterator[Command]:
    port = free_port()
    changes = {"groups_per_step": 2000}
    config = make_config(train=changes, swarm={"database": database, "heartbeat_s": 0.5, "probation_files": 10_000})
    (tmp_path / "run.toml").write_text(to_toml(config))
    command = Command(tmp_path / "run.toml", tmp_path / "run", port)
    try:
        yield command
    finally:
        assert "Traceback" not in command.end()


class Node(threading.Thread):
    """Takes leases and hands files in until told to end; remembers what was acknowledged."""

    def __init__(self, url: str, key: Key, over: threading.Event, cache: Path) -> None:
        super().__init__(daemon=True)
        self.key, self.over = key, over
        self.link = CoordinatorClient(url, key, wait_s=60)
        self.store = SwarmStore(self.link, cache)
        self.leased: list[tuple[int, int]] = []
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failed: Exception | None = None

    def run(self) -> None:
        try:
            self.link.join("worker")
            while not self.over.is_set():
                lease = self.store.lease(self.key.address, 0)
                if lease is None:
                    time.sleep(0.02)
                    continue
                place = (lease.step, lease.submission)
                self.leased.append(place)
                data = good_file(lease)
                self.store.put(lease, data)
                assert place not in self.acknowledged, f"{place} was given twice"
                self.acknowledged[place] = data
                self.link.heartbeat("working")
                time.sleep(0.05)
        except Exception as error:
            self.failed = error


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_coordinator_that_is_killed_loses_nothing_and_counts_nothing_twice(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = ""
    if kind == "postgres":
        database = f"{request.getfixturevalue('postgres_url')}/postgres"
    rng = random.Random(0)
    over = threading.Event()
    run = tmp_path / "run"
    with coordinator(tmp_path, database) as command:
        nodes = [Node(command.url, key_of(f"n{n}"), over, tmp_path / f"n{n}") for n in range(NODES)]
        trainer = CoordinatorClient(command.url, role_key(run, "trainer"), wait_s=60)
        trainer.join("trainer")
        store = SwarmStore(trainer, tmp_path / "trainer", LIMITS, lambda _: ROOT)
        store._link.announce(0, ROOT)
        for node in nodes:
            node.start()
        for _ in range(KILLS):
            time.sleep(0.5 + rng.random() * 0.5)
            command.kill()
            command.start()
            wait_for_work(nodes)
        over.set()
        for node in nodes:
            node.join(60)
            assert node.failed is None, node.failed
        assert_nothing_lost(run, nodes, store, command.url, tmp_path)


def wait_for_work(nodes: list[Node]) -> None:
    """Until every node has been acknowledged something more: the coordinator is back and they went on by themselves."""
    before = [len(node.acknowledged) for node in nodes]
    pairs = list(zip(nodes, before, strict=True))
    wait_until(
        lambda: all(len(node.acknowledged) > had or node.failed is not None for node, had in pairs),
        60,
        "the nodes did not go on by themselves",
    )


def assert_nothing_lost(run: Path, nodes: list[Node], store: SwarmStore, url: str, tmp_path: Path) -> None:
    acknowledged = {place: data for node in nodes for place, data in node.acknowledged.items()}
    assert len(acknowledged) == sum(len(node.acknowledged) for node in nodes), "two nodes had the same number"
    assert len(acknowledged) > KILLS * NODES
    judging = CoordinatorClient(url, role_key(run, "validator"), wait_s=60)
    judging.join("validator")
    validator = SwarmStore(judging, tmp_path / "validator", LIMITS, lambda _: ROOT)
    judge_formats(validator, 0, 2)
    trained = Counter(
        (submission.lease.step, submission.lease.submission) for step in range(3) for submission in store.accepted(step)
    )
    assert set(trained.values()) == {1}
    assert set(trained) >= set(acknowledged)
    assert len(set(trained) - set(acknowledged)) <= NODES, "at most the request in hand was done and not acknowledged"
    for step in range(3):
        count = store.count(step)
        assert count.seen == 2 * sum(place[0] == step for place in trained)
    kept = {path.name.split("-")[-1].removesuffix(".parquet"): path for path in run.rglob("*.parquet")}
    assert all(sha256_file(path) == sha256 for sha256, path in kept.items())
