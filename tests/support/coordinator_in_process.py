"""A coordinator at work in this process, on SQLite or on a real PostgreSQL, and nodes with keys of their own."""

import functools
import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from shoal.client.client import CoordinatorClient
from shoal.client.rollout_store import SwarmStore
from shoal.config import RunConfig
from shoal.config_io import check_config
from shoal.coordinator.coordinator import Coordinator
from shoal.coordinator.db.database import Database
from shoal.coordinator.honeypots import Plants
from shoal.coordinator.http.server import serving
from shoal.coordinator.ledger_writer import LedgerWriter
from shoal.coordinator.policy import Terms
from shoal.coordinator.uploads import Objects
from shoal.crypto.keys import Key
from shoal.crypto.signed_request import Recipient, sign_request
from shoal.crypto.tls import server_context
from shoal.protocol.lease import Lease
from shoal.protocol.rates.rates_file import Architecture
from shoal.protocol.rollout_rules import Limits
from shoal.protocol.submission import write_rollouts
from shoal.tasks.difficulty import Table
from tests.support.submissions import LIMITS, ROOT, make_submission

TREE: dict[str, Any] = {
    "name": "test",
    "steps": 20,
    "async_level": 2,
    "tasks": [{"source": "reasoning-gym/spell_backward"}],
    "sampling": {"group_size": 4, "max_new_tokens": 8, "max_prompt_tokens": 16},
    "train": {"groups_per_step": 4, "oversample": 3.0, "token_budget": 256},
    "workers": {"groups_per_submission": 2, "lease_s": 600.0},
    "audit": {"probation": 2},
    "swarm": {"leases": 3, "relays": ["http://127.0.0.1:1"]},
}
TRAINER, VALIDATOR, ORIGIN, COORDINATOR = (Key(bytes([n]) * 32) for n in (1, 2, 3, 4))
HERE = Recipient(COORDINATOR.address, "test")


class Clock:
    """The coordinator's clock, which a test may set."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


def make_config(**changes: Any) -> RunConfig:
    tree = {key: dict(value) if isinstance(value, dict) else value for key, value in TREE.items()}
    for key, value in changes.items():
        tree[key] = tree.get(key, {}) | value if isinstance(value, dict) else value
    return check_config(tree, "test")


@functools.cache
def key_of(name: str) -> Key:
    return Key(hashlib.sha256(name.encode()).digest())


@dataclass
class World:
    """One run: its coordinator's parts, its URL while it serves, and what nodes do."""

    path: Path
    url_of_database: str
    config: RunConfig
    clock: Clock = field(default_factory=Clock)
    validators: Sequence[str] = (VALIDATOR.address,)
    plants: Plants | None = None
    pause_s: float = 10.0
    tls: bool = False
    url: str = ""
    table: Table | None = None
    """What versions are announced with."""
    architecture: Architecture | None = None
    """Of the base model, where the coordinator has it."""
    _open: ExitStack = field(default_factory=ExitStack)
    _stores: dict[str, SwarmStore] = field(default_factory=dict)

    def start(self) -> None:
        """Starts the coordinator, again after a stop."""
        database = Database(self.url_of_database)
        self._open.callback(database.close)
        self.database = database
        terms = Terms.of(self.config, TRAINER.address, frozenset(self.validators))
        self.ledger_writer = LedgerWriter.open(self.path / "ledger.db", COORDINATOR, self.config, terms)
        self._open.callback(self.ledger_writer.close)
        self.coordinator = Coordinator(
            self.config,
            terms,
            COORDINATOR,
            ORIGIN.address,
            database,
            Objects(self.config.swarm.store or self.path / "uploads", self.config.swarm.store_options),
            self.ledger_writer,
            self.clock,
            self.plants,
            self.architecture,
        )
        port = int(self.url.rpartition(":")[2]) if self.url else 0
        context = server_context(COORDINATOR) if self.tls else None
        self.url = self._open.enter_context(serving(self.coordinator, port, self.pause_s, context))

    def stop(self) -> None:
        """Stops the coordinator; the nodes stay."""
        self._open.close()
        self._open = ExitStack()

    def end(self) -> None:
        for store in self._stores.values():
            store._link.__exit__()
        self.stop()

    def link(self, key: Key, **options: Any) -> CoordinatorClient:
        return CoordinatorClient(
            f"{self.url}#{COORDINATOR.address}" if self.tls else self.url,
            key,
            **{"wait_s": 20.0, "clock": self.clock, **options},
        )

    def store(self, key: Key, role: str | None = None, limits: Limits | None = LIMITS) -> SwarmStore:
        """A joined node's store; the trainer's and validator's are such by their keys."""
        if (found := self._stores.get(key.address)) is not None:
            return found
        role = role or {TRAINER.address: "trainer", VALIDATOR.address: "validator"}.get(key.address, "worker")
        link = self.link(key)
        link.join(role)
        store = SwarmStore(link, self.path / "cache" / key.address, limits, lambda _: ROOT)
        self._stores[key.address] = store
        return store

    @property
    def trainer(self) -> SwarmStore:
        return self.store(TRAINER)

    @property
    def validator(self) -> SwarmStore:
        return self.store(VALIDATOR)

    def announce(self, number: int = 0) -> None:
        for each in range(number + 1):
            self.trainer._link.announce(each, ROOT, self.table)

    def lease(self, name: str, version: int = 0, holding: Sequence[Lease] = ()) -> Lease | None:
        key = key_of(name)
        return self.store(key).lease(key.address, version, [(lease.step, lease.submission) for lease in holding])

    def take(self, name: str, version: int = 0, holding: Sequence[Lease] = ()) -> Lease:
        lease = self.lease(name, version, holding)
        assert lease is not None
        return lease

    def take_all(self, version: int = 0) -> list[Lease]:
        """Leases to ever new nodes until none is left."""
        leases: list[Lease] = []
        for number in itertools.count():
            lease = self.lease(f"node-{number}", version)
            if lease is None:
                return leases
            leases.append(lease)
            assert len(leases) < 100
        raise AssertionError

    def hand_in(self, name: str, lease: Lease, signal: int | None = None) -> bytes:
        data = good_file(lease, signal)
        self.store(key_of(name)).put(lease, data)
        return data

    def request(
        self,
        key: Key,
        method: str,
        target: str,
        body: Any = None,
        *,
        content: bytes | None = None,
        to: Recipient = HERE,
        at: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx2.Response:
        """One signed request, as it is or with something changed."""
        data = content if content is not None else (b"" if body is None else json.dumps(body).encode())
        digest = hashlib.sha256(data).hexdigest()
        signed = sign_request(key, method, target, digest, to, self.clock() if at is None else at)
        kind = {"Content-Type": "application/json"} if body is not None else {}
        return self.send(method, target, data, kind | signed | (headers or {}))

    def send(self, method: str, target: str, data: bytes, headers: dict[str, str]) -> httpx2.Response:
        with httpx2.Client(trust_env=False, timeout=30, verify=False) as client:
            return client.request(method, self.url + target, content=data, headers=headers)


def good_file(lease: Lease, signal: int | None = None) -> bytes:
    return write_rollouts(make_submission(lease), lease.groups if signal is None else signal)


@contextmanager
def world_at(
    path: Path,
    database: str,
    validators: Sequence[str] = (VALIDATOR.address,),
    pause_s: float = 10.0,
    plants: Plants | None = None,
    tls: bool = False,
    **changes: Any,
) -> Iterator[World]:
    config = make_config(**changes)
    world = World(path, database, config, validators=validators, pause_s=pause_s, plants=plants, tls=tls)
    world.start()
    try:
        yield world
    finally:
        world.end()
