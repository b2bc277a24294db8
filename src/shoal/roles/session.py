"""A role's place in a run: who it is there, where it fetches versions, and which store it works through.

A role joins the run's coordinator with its key, sends a heartbeat every few seconds, and takes everything else from
the run card.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from shoal.client.announce import AnnouncedChannel
from shoal.client.client import CoordinatorClient
from shoal.client.identity import default_home, default_key
from shoal.client.known_coordinators import remember, trusted
from shoal.client.rollout_store import SwarmStore
from shoal.client.weight_source import CastChannel
from shoal.config import TaskConfig
from shoal.crypto.keys import Key
from shoal.errors import ShoalError
from shoal.files import tree_bytes, whole_file
from shoal.limits import NO_LIMITS, MachineLimits
from shoal.protocol.messages import Role
from shoal.protocol.rollout_rules import Limits
from shoal.protocol.run_card import Join
from shoal.protocol.stores import RolloutStore, WeightChannel, WeightSource, roots_of
from shoal.rundir import RunDir, is_own, role_key, write_run_file
from shoal.shardcast.fetch.downloader import KEEP
from shoal.shardcast.fetch.http import distance_to
from shoal.tasks.files import MAX_BYTES, check_foreign, is_whole, named, place_of
from shoal.tasks.isolation.landlock import check_confinement
from shoal.tasks.package_versions import check_packages
from shoal.tasks.sources.filtered import layers
from shoal.tasks.untrusted import try_tasks
from shoal.telemetry.metrics import MetricsWriter
from shoal.telemetry.status import RoleStatus, StatusFile
from shoal.wait import wait_until

Refused = Callable[[str, str], None]
OpenStore = Callable[[Limits | None, Refused], RolloutStore]
LOOK_FOR_RELAYS_S = 0.5
WORKERS_KEEP = 2  # whole versions on a worker's disk: the one in use, and the one that comes after it
END_S = 2.0
SAY_EVERY_S = 5.0
# As the config has it: a coordinator that says something else is not to be hammered, nor to send a node to sleep.
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 30.0


@dataclass(frozen=True, slots=True)
class Session:
    """What a role works with."""

    node: str
    """Who it is to the store."""
    weights: WeightSource
    open_store: OpenStore
    link: CoordinatorClient
    """The connection to the coordinator."""


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """How a role joins a run: where the coordinator is, with which key, and from which relays it fetches."""

    join: str
    key: Path | None = None
    """The role's own key; one in the run's directory if not given."""
    relays: Sequence[str] = ()
    say: Callable[[str], None] = lambda _text: None
    """Told, a line at a time, what a person who lent this machine wants to know."""
    profile: str = ""
    """What a worker says of how it computes; what this machine looks like if not given."""
    limits: MachineLimits = NO_LIMITS
    """What the role may use of this machine."""

    @contextmanager
    def session(
        self, run: RunDir, role: Role, name: str, status: StatusFile, metrics: MetricsWriter, profile: str = ""
    ) -> Iterator[Session]:
        """Joins as a worker, which computes as its profile says, or as a validator."""
        with (
            self.member(run, role, name, status, profile=profile) as (link, heart),
            self.versions(run, name, link, status, metrics, WORKERS_KEEP if role == "worker" else KEEP) as source,
        ):
            heart.version = lambda: version.number if (version := source.latest()) else None
            if not self.relays:
                heart.on_relays = source.also_from
            store = partial(swarm_store, run, name, link, source)
            yield Session(link.key.address, source, store, link)

    @contextmanager
    def versions(
        self,
        run: RunDir,
        name: str,
        link: CoordinatorClient,
        status: StatusFile,
        metrics: MetricsWriter,
        keep: int = KEEP,
    ) -> Iterator[CastChannel]:
        """Versions from the relays that were given, or else from those of the run card; `keep` are here at most."""
        relays = list(self.relays) or _relays(link, run.config.patience_s, status)
        nearest = 0 if self.relays else self.nearest()
        path, wait_s, most = run.path / "nodes" / name, run.config.patience_s, self.limits.disk
        room = None if most is None else partial(_room_for_versions, run.path, path, most)
        with CastChannel(
            path, relays, link.card.origin, run.config.name, name, wait_s, metrics, nearest, keep, room
        ) as source:
            yield source

    @contextmanager
    def trainer(self, run: RunDir, status: StatusFile) -> Iterator[tuple[WeightChannel, OpenStore]]:
        """The trainer's place: it writes versions into the run's directory, from which the origin publishes them, and
        announces them to the coordinator."""
        channel = run.channel()
        with self.member(run, "trainer", "trainer", status) as (link, _):
            announced = AnnouncedChannel(channel, link)
            yield announced, lambda *asked: swarm_store(run, "trainer", link, channel, *asked)

    @contextmanager
    def relay(
        self, run: RunDir, status: StatusFile, sources: Sequence[str], own_url: str
    ) -> Iterator[tuple[str, Sequence[str], "Heartbeat"]]:
        """A relay's place: the address that signs versions, where it fetches them, and the heartbeat that brings news
        of other relays.

        A relay without given sources fetches from the run's other relays, as they are before it joins them.
        """
        with self.link(run, "relay", status) as link:
            found = sources or _relays(link, run.config.patience_s, status, besides=own_url)
        with self.member(run, "relay", "relay", status, own_url) as (link, heart):
            yield link.card.origin, found, heart

    @contextmanager
    def member(
        self, run: RunDir, role: Role, name: str, status: StatusFile, url: str = "", profile: str = ""
    ) -> Iterator[tuple[CoordinatorClient, "Heartbeat"]]:
        """Joins, and says what the role does until the block ends."""
        with self.link(run, name, status) as link:
            if role in ("worker", "validator"):
                check_packages(link.card.packages, run.config.tasks, f"run card of {link.card.run}")
            status.working(f"joining {link.join_at.url}")
            link.join(role, name, url, profile)
            if not is_own(run.path):
                remember(link.join_at, link.card.coordinator)
            self.say(f"joined run {link.card.run} at {link.join_at.url} as {role} {link.key.address}")
            with Heartbeat(link, status, self.say) as heart:
                yield link, heart

    def nearest(self) -> int:
        """How near a relay of the run card may be: as near as the coordinator. Otherwise a stranger who joins as a
        relay could make this machine send requests into its own network."""
        return distance_to(Join.parse(self.join).url)

    def own_key(self, run: RunDir, name: str) -> Key:
        return Key.load_or_create(self.key) if self.key else role_key(run.path, name)

    def link(self, run: RunDir, name: str, status: StatusFile) -> CoordinatorClient:
        """A line to the coordinator; what is waited for is the role's status."""
        key, wait_s = self.own_key(run, name), run.config.patience_s
        join = coordinator_of(self.join, run.path)
        return CoordinatorClient(join, key, wait_s, lambda what, left_s: status.waiting(what, "coordinator", left_s))


def _room_for_versions(home: Path, versions: Path, most: int) -> int:
    """Bytes that versions may take, of what the whole directory of a node may: logs and fetched files are there too."""
    return max(0, most - (tree_bytes(home) - tree_bytes(versions)))


def ignore_refused(_file: str, _reason: str) -> None:
    """For roles that do not read what was accepted."""


class Doing(Protocol):
    """Says what a role does now."""

    @property
    def now(self) -> RoleStatus: ...


class Heartbeat:
    """A thread that tells the coordinator what its role does, and a person what the coordinator answers."""

    def __init__(self, link: CoordinatorClient, status: Doing, say: Callable[[str], None] = lambda _text: None) -> None:
        # A line of its own: a heartbeat waits for nothing that its role does.
        self._link = CoordinatorClient(link.join_at, link.key, wait_s=0.0)
        self._pause_s = link.card.heartbeat_s
        self._status = status
        self._say = say
        self.on_relays: Callable[[Sequence[str]], None] = lambda _urls: None
        """Told when the run card names other relays than before."""
        self.version: Callable[[], int | None] = lambda: None
        """The newest version that the role has."""
        self._card = ""
        self._said: tuple[object, ...] = ()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heart", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(END_S)

    def _beat(self) -> None:
        with self._link:
            while not self._stopped.is_set():
                now = self._status.now
                # The role itself meets what is wrong, and says so or gives up.
                with suppress(ShoalError):
                    order = self._link.heartbeat(now.doing, now.on, self.version())
                    self._tell(now.doing, order)
                    if order["card"] != self._card:
                        self.on_relays(self._link.refresh().relays)
                        self._card = order["card"]
                    self._pause_s = min(max(MIN_PAUSE_S, order["next_s"]), MAX_PAUSE_S)
                self._stopped.wait(self._pause_s)

    def _tell(self, doing: str, order: dict[str, Any]) -> None:
        done = order["accepted"], order["rejected"], order["do"], order["reason"]
        if done == self._said:
            return
        self._said = done
        self._say(f"{order['accepted']} files accepted, {order['rejected']} rejected; now: {doing}")
        if order["refused"]:
            self._say(f"the last one that was rejected: {order['refused']}")
        if order["do"] != "work":
            self._say(f"told to {order['do']}: {order['reason']}")
        elif order["reason"]:
            self._say(f"this node {order['reason']}")


def coordinator_of(text: str, run: Path) -> Join:
    """Whom a role of a run takes for its coordinator: the one whose key is in the run's directory, if there is one, or
    else the one that this machine found at the URL before."""
    if not is_own(run):
        return trusted(text)
    join = Join.parse(text)
    return join if join.coordinator else replace(join, coordinator=role_key(run, "coordinator").address)


def join_run(
    join: str, key: Path | None, home: Path | None, wait_s: float, say: Callable[[str], None], code: bool | None
) -> RunDir:
    """A directory for a node of somebody else's run, with what the run card says of it.

    `code` is whether this machine runs code that the run's tasks call for; None for a role that asks no tasks.
    """
    key = key or default_key()
    own = Key.load_or_create(key)
    said = -SAY_EVERY_S

    def now_and_then(text: str) -> None:
        nonlocal said
        if time.monotonic() - said >= SAY_EVERY_S:
            said = time.monotonic()
            say(text)

    with CoordinatorClient(
        trusted(join), own, wait_s, lambda what, left_s: now_and_then(f"waiting for {what}, {left_s:.0f} s longer")
    ) as link:
        card = link.card
        remember(link.join_at, card.coordinator)
        config = card.run_config()
        if code is False:
            check_confinement(f"run card of {card.run}", [key])
        if code is not None:
            fetch_tasks(link, config.tasks, code, now_and_then)
    path = home or default_home() / f"{card.run}-{card.coordinator[2:10]}-{own.address[2:10]}"
    write_run_file(path, config, time.time())
    say(f"run {card.run}: {config.steps} steps, model {config.model.source}; files are kept in {path}")
    return RunDir(path, config)


def fetch_tasks(link: CoordinatorClient, tasks: Sequence[TaskConfig], code: bool, say: Callable[[str], None]) -> None:
    """Has the files that a run's tasks are made of from its coordinator; TaskError for what is not to be run here."""
    room, whose = MAX_BYTES, f"run card of {link.card.run}"
    for lines in layers(tasks, whose):
        check_foreign(lines, whose, code)
        for name, sha256 in {name: task.files[name] for task in lines for name in named(task)}.items():
            target = place_of(sha256, name)
            if not is_whole(target, sha256):
                tell = partial(_tell_bytes, say, name)
                with whole_file(target) as file:
                    link.fetch(f"/v1/tasks/{sha256}", file, room, sha256, tell)
                room -= target.stat().st_size
    check_packages(link.card.packages, tasks, whose)
    if not code:  # a lender that trusts them to run code trusts them with memory and time
        say("checking its tasks")
        try_tasks(tasks, whose)


def _tell_bytes(say: Callable[[str], None], name: str, came: int) -> None:
    say(f"fetching task file {name}: {came / 1e6:.0f} MB")


def swarm_store(
    run: RunDir,
    name: str,
    link: CoordinatorClient,
    source: WeightSource,
    limits: Limits | None,
    refused: Refused,
) -> SwarmStore:
    """The store of a run through its coordinator."""
    return SwarmStore(link, run.path / "fetched" / name, limits, roots_of(source), refused)


def others(relays: Sequence[str], own_url: str) -> list[str]:
    """The relays of a run card but for one's own."""
    return [url for url in relays if url.partition("#")[0] != own_url]


def _relays(link: CoordinatorClient, wait_s: float, status: StatusFile, besides: str = "") -> list[str]:
    """The relays that the run card names; there is one soon after a run began."""
    return wait_until(
        lambda: others(link.refresh().relays, besides),
        wait_s,
        f"run {link.card.run}: no relay joined within {wait_s:.0f} s, so there is no source for the model; start one "
        "with shoal relay --join URL",
        pause_s=LOOK_FOR_RELAYS_S,
        on_wait=lambda left_s: status.waiting("a relay", "relay", left_s),
    )
