"""The planter: submits honeypots, files of the run's owner whose verdict is known, to test validators.

To validators its addresses are nodes like others, each with a key that only the owner can compute
(`coordinator/honeypots.py`). Most of what it hands in is honest work. Some of its files are bad, and one that is handed
in as bad is rejected by an honest validator for sure: the planter has judged it with the same checks before, and where
numbers are weighed, by more than any validator asks for.
"""

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Self

from shoal.attacks import attack_named
from shoal.client.client import CoordinatorClient
from shoal.client.honest_rates import RatesFollower
from shoal.client.rollout_store import SwarmStore
from shoal.config import RunConfig
from shoal.coordinator.honeypots import LIFE, MAX_KEYS, Plants
from shoal.crypto.keys import Key
from shoal.devices import resolve, set_up
from shoal.errors import BannedError, ConfigError, RolloutError, WaitError
from shoal.files import locked, parse_json, read_regular, write_whole
from shoal.generate.submission_builder import Maker
from shoal.protocol import messages as m
from shoal.protocol.lease import Lease
from shoal.protocol.rates.rates_file import read_architecture
from shoal.protocol.refusal import Refusal
from shoal.protocol.run_card import Join
from shoal.protocol.spans import SpanLease
from shoal.protocol.stores import Version, WeightSource, roots_of
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import NOBODYS_FAULT
from shoal.roles.session import Heartbeat, JoinOptions, ignore_refused, swarm_store
from shoal.roles.turns import TurnWorker
from shoal.roles.worker_engine import load_engine, worker_profile
from shoal.rundir import TAKEOVER_S, RunDir, role_key
from shoal.tasks.difficulty import Table
from shoal.tasks.rewards.scorer import Scorer
from shoal.telemetry.metrics import MetricsWriter
from shoal.telemetry.status import RoleStatus, StatusFile
from shoal.validate.checks.all_checks import Checks
from shoal.validate.numerics.account import BAN_NATS
from shoal.validate.numerics.judge import VOID_NATS

OnRelays = Callable[[Sequence[str]], None]
NAME = "planter"
JOIN_NAME = "worker"  # what a machine that is lent is called if nobody says otherwise
# Ways to cheat that look like honest work to a validator that does not recompute the file ...
COMPUTED = ("own_mean_proof",)
SEEDED = ("early_ending", "small_model_text", "temperature")
# ... and to one that does not look at it at all. The last of them is wrong whatever was drawn.
SEEN_AT_ONCE = ("false_reward", "false_advantage")
MAX_DUE = 4.0
"""Files that a planter is behind with at most: after a pause it does not hand in many at once."""
KEPT = 3
"""Addresses that stay after their planted file: who leaves the moment that it has handed one in gives itself away."""


def ways(config: RunConfig) -> tuple[str, ...]:
    """How a bad file may go wrong: in ways that this run's validators look for in every file of a newcomer."""
    if not config.audit.rate or not config.audit.probation:
        return SEEN_AT_ONCE
    if config.model.dtype == "bfloat16" and config.audit.count > 1:
        return SEEN_AT_ONCE  # a file whose predecessor another validator is still at is not blamed for its numbers
    return (*COMPUTED, *(SEEDED if config.sampling.mode == "seeded" else ()), *SEEN_AT_ONCE)


@dataclass(slots=True, kw_only=True)
class PlantingMaker(Maker):
    """Makes what is due at a lease's place: an honest file, or a bad one."""

    plants: Plants
    checks: Checks
    rates: RatesFollower | None = None
    """Follows the run's honest rates, where numbers are judged by them: what looser ones acquit is not bad."""

    def __post_init__(self) -> None:
        if self.rates is not None:
            self.checks.judge_by(self.rates.table)

    def file(self, lease: Lease, version: Version) -> tuple[Submission, bytes]:
        if self.plants.letter(lease.step, lease.submission) != "r":
            return Maker.file(self, lease, version)
        known = ways(self.config)
        first = known[self.plants.draw(lease.step, lease.submission, len(known))]
        made = self._bad(first, lease, version)
        if not self._is_rejected(made[0]):  # a sure model answers alike in many ways
            made = self._bad(SEEN_AT_ONCE[-1], lease, version)
        return made

    def _bad(self, way: str, lease: Lease, version: Version) -> tuple[Submission, bytes]:
        kind = attack_named(way)
        maker = kind(self.config, self.policy, self.engine, self.tasks, self.judge, self.table_of, self.span_of)
        return maker.file(lease, version)

    def _is_rejected(self, submission: Submission) -> bool:
        """Whether an honest validator blames the node for it."""
        if self.rates is not None and (newer := self.rates.newer()):
            self.checks.judge_by(newer)
        finding = self.checks.cheap(submission)
        if finding is None and self.checks.numbers is not None:
            return self._shows_enough(submission)
        finding = finding or next(iter(self.checks.costly([submission])))
        return finding is not None and finding.check not in NOBODYS_FAULT

    def _shows_enough(self, submission: Submission) -> bool:
        """Whether numbers show so much that every honest validator blames the address, whichever of its files it is.

        A validator counts its n-th file at 1 / (n (n + 1)) of what it shows, and draws in secret what it compares it
        with. What is merely void for it would cost it its standing.
        """
        audit = self.config.audit
        enough = BAN_NATS + math.log(audit.probation * (audit.probation + 1)) + VOID_NATS
        return audit.enforce and self.checks.weigh(submission, ()).shown >= enough


class Identity:
    """One of the planter's addresses: joined, and heard as long as it is open."""

    def __init__(
        self, run: RunDir, join: str | Join, key: Key, source: WeightSource, status: StatusFile, on_relays: OnRelays
    ) -> None:
        self._status = status
        self._newest: Callable[[], int] = lambda: version.number if (version := source.latest()) else 0
        self.files = 0
        self.is_spent = False
        """Whether it has handed in its planted file."""
        wait_s = run.config.patience_s
        self.address = key.address
        with ExitStack() as opened:
            link = opened.enter_context(
                CoordinatorClient(join, key, wait_s, lambda what, left_s: status.waiting(what, "coordinator", left_s))
            )
            link.join(
                "worker",
                JOIN_NAME,
                profile=_like_others(link, key) or _own_profile(run.config),
            )
            heart = Heartbeat(link, self)
            heart.version = self._newest
            heart.on_relays = on_relays
            opened.enter_context(heart)
            self.store: SwarmStore = swarm_store(run, NAME, link, source, None, ignore_refused)
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    @property
    def now(self) -> RoleStatus:
        """What it says that it does: a spent one waits, as a worker does that gets no lease."""
        now = self._status.now
        return replace(now, doing=f"policy version {self._newest() + 1}", on="trainer") if self.is_spent else now


def _like_others(link: CoordinatorClient, key: Key) -> str:
    """The profile of some other worker: everybody sees profiles, and one that only planted files have tells on them.

    Nobody is judged by it.
    """
    nodes = link.look(m.StatusOut, "/v1/status").nodes
    known = sorted(node.profile for node in nodes if node.role == "worker" and node.profile)
    return known[int(key.address, 16) % len(known)] if known else ""


class PlanterStore:
    """A worker's store behind which the address changes, and that has a lease now and then."""

    def __init__(
        self,
        run: RunDir,
        join: str | Join,
        plants: Plants,
        source: WeightSource,
        status: StatusFile,
        metrics: MetricsWriter,
        on_relays: OnRelays = lambda _urls: None,
    ) -> None:
        """`on_relays` is told when the run card names other relays than before."""
        self._run, self._join, self._plants, self._source = run, join, plants, source
        self._status, self._metrics, self._on_relays = status, metrics, on_relays
        self._noted = run.path / "nodes" / "planter.json"
        self._number = self._read_number()
        self._identities: list[Identity] = []
        self._version, self._due = 0, 1.0
        config = run.config
        files = math.ceil(config.train.groups_per_step / config.workers.groups_per_submission)
        self._files_per_step = files * LIFE / config.ledger.plants

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for identity in self._identities:
            identity.close()

    def lease(self, node: str, version: int, holding: Collection[tuple[int, int]] = ()) -> Lease | None:
        """A lease of the address that is at work, if a file is due."""
        del node, holding  # the worker is many, and works in turns
        if version > self._version:
            self._due = min(MAX_DUE, self._due + (version - self._version) * self._files_per_step)
            self._version = version
        if self._due < 1 or (identity := self._current()) is None:
            return None
        try:
            return identity.store.lease(identity.address, version)
        except BannedError:  # by a validator that rejects everything
            identity.is_spent = True
            return None

    def span(self, lease: Lease, first: int, version: int) -> SpanLease:
        return self._identities[-1].store.span(lease, first, version)

    def table(self, lease: Lease) -> Table | None:
        return self._identities[-1].store.table(lease)

    def put(self, lease: Lease, data: bytes) -> None:
        identity = self._identities[-1]
        letter = self._plants.letter(lease.step, lease.submission)
        self._due -= 1
        identity.files += 1
        # A planted file is an address's last, and a bad one must be among those that validators compute again, whole.
        identity.is_spent = letter != "." or identity.files == self._run.config.audit.probation
        try:
            identity.store.put(lease, data)
        except BannedError as error:
            identity.is_spent = True
            raise RolloutError(str(error)) from None
        if letter != ".":
            kind = "good" if letter == "a" else "bad"
            self._metrics.write("planted", step=lease.step, submission=lease.submission, kind=kind)

    def _current(self) -> Identity | None:
        """The address that is at work; the next one joins when the last is spent."""
        if self._identities and not self._identities[-1].is_spent:
            return self._identities[-1]
        if self._number >= MAX_KEYS:
            return None
        key = self._plants.key(self._number)
        self._number += 1
        write_whole(self._noted, str(self._number).encode())  # a planter that was killed goes on with the next
        try:
            found = Identity(self._run, self._join, key, self._source, self._status, self._on_relays)
        except BannedError:  # an earlier planter had it, and lost count
            return None
        except (Refusal, WaitError) as error:  # the run has no room, and goes on without what would be planted
            self._metrics.write("note", text=f"nothing more is planted: {error}")
            self._number = MAX_KEYS
            return None
        self._identities.append(found)
        while len(self._identities) > KEPT + 1:
            self._identities.pop(0).close()
        return self._identities[-1]

    def _read_number(self) -> int:
        try:
            return int(parse_json(read_regular(self._noted)))
        except (OSError, ValueError, TypeError):
            return 0


def _own_profile(config: RunConfig) -> str:
    return worker_profile(config, resolve(config.device_of("workers"))).name


def start_planter(run: RunDir, options: JoinOptions) -> None:
    """Runs the planter of a run in this process until the run is done."""
    config = run.config
    if not config.ledger.plants:
        raise ConfigError("planter: ledger.plants = 0, so the coordinator would take its bad files for a cheater's")
    device = set_up(config.device_of("workers"), config.workers.threads)
    taken = f"planter: another one is at work in {run.path}; a run has one planter"
    secret = Key.load(options.key) if options.key else role_key(run.path, NAME)
    plants = Plants(secret, config.name)
    with (
        locked(run.path / "locks" / NAME, taken, wait_s=TAKEOVER_S),
        run.role(NAME) as (status, metrics),
        options.link(run, NAME, status) as link,
        options.versions(run, NAME, link, status, metrics) as channel,
    ):
        status.working("loading the newest version")
        first, policy, engine = load_engine(run, channel, device, computed="float32")  # as its own checks compute
        on_relays: OnRelays = channel.also_from if not options.relays else lambda _urls: None
        planting = PlanterStore(run, link.join_at, plants, channel, status, metrics, on_relays)
        with Scorer(config.tasks, turns=config.turns) as judge, planting as store:
            checks = Checks(config, policy, judge.tasks, judge, roots_of(channel), store.table)
            rounds = config.model.dtype == "bfloat16"
            kept = run.path / "nodes" / "planter-rates.json"
            rates = RatesFollower(link.rates, read_architecture(channel.fetch(first)), kept=kept) if rounds else None
            maker = PlantingMaker(
                config,
                policy,
                engine,
                judge.tasks,
                judge,
                store.table,
                store.span,
                plants=plants,
                checks=checks,
                rates=rates,
            )
            TurnWorker(NAME, config, channel, store, maker, status, metrics, first).run()
