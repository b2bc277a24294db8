"""The coordinator's core without HTTP: one method per request, one transaction per method.

Each method is one request of a node whose signature is right, and one transaction. What it answers is committed.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar
from weakref import WeakValueDictionary

from sqlalchemy import Connection, select

from shoal.config import RunConfig
from shoal.config_io import public_tree
from shoal.coordinator import draws, invites, leases, nodes, rates_table, retention, spans, verdicts
from shoal.coordinator.db import queries, schema
from shoal.coordinator.db.database import Database, read_fact, write_fact
from shoal.coordinator.grants import NoLease, grant
from shoal.coordinator.honeypots import Plants
from shoal.coordinator.invites import InviteRecord
from shoal.coordinator.judging_turns import Pace, Turns, opened_secret
from shoal.coordinator.latencies import Latencies, latencies
from shoal.coordinator.lease_rules import retry_s
from shoal.coordinator.leases import Ticket
from shoal.coordinator.ledger_writer import LedgerWriter
from shoal.coordinator.node_states import State
from shoal.coordinator.nodes import Node
from shoal.coordinator.orphaned_uploads import Orphans, unnamed
from shoal.coordinator.policy import Terms
from shoal.coordinator.status import Overview, overview
from shoal.coordinator.uploads import Objects, incoming_name, object_name
from shoal.coordinator.verdicts import Explanation, Filed
from shoal.crypto.keys import Key
from shoal.crypto.signed_request import Nonces, Signed
from shoal.crypto.tls import vouched
from shoal.errors import SwarmError
from shoal.ledger.entry import Statement
from shoal.protocol.invite import Invite
from shoal.protocol.judge_note import FiledNote, JudgeNote
from shoal.protocol.messages import Role
from shoal.protocol.pacing import StepCount
from shoal.protocol.rates.rates_file import Architecture, RatesFile
from shoal.protocol.rates.rates_table import SignedRates
from shoal.protocol.refusal import Refusal
from shoal.protocol.run_card import SCHEMA, Card, SignedCard, sign_card
from shoal.protocol.signed_lease import SignedLease
from shoal.protocol.spans import SpanLease
from shoal.protocol.task_weights import SignedTable
from shoal.protocol.verdict import Verdict
from shoal.shardcast.serve.rate_limit import Rates
from shoal.tasks.build import files_of
from shoal.tasks.difficulty import Table
from shoal.tasks.package_versions import packages_of

T = TypeVar("T")
LOG = logging.getLogger(__name__)
SWEEP_S = 1.0
FORGET_NONCES_S = 10.0
OVERVIEW_S = 0.5
DIRECT_S = 600.0  # for which a URL at the object store is good
TIDY_EVERY_S = 600.0
# An object that no submission names may still become one's for this long: longer than any upload, and than any lease
# under which a file was sent to the object store and nothing said of it yet.
ORPHAN_S = 3600.0
MAX_RELAYS = 64
# What a node may enter on the ledger by itself (withdrawals, challenges): so many at once, then one each ten seconds.
STATEMENTS_PER_S, MAX_STATEMENTS = 0.1, 20
# How often a node may hand its leases back: each time leaves a row per lease.
HAND_BACKS_PER_S, MAX_HAND_BACKS = 1 / 60, 20
# How often a full run looks for room for a newcomer, per network: it looks at all nodes for that.
ROOMS_PER_S, MAX_ROOMS = 0.2, 20
# Of one lease at once: one that was cut off, and is not given up here yet, and the next try.
MAX_COMING = 3


@dataclass(frozen=True, slots=True)
class Order:
    """The answer to a heartbeat: what the node is to do."""

    do: Literal["work", "wait", "stop"]
    reason: str
    state: str
    version: int | None
    """The newest version."""
    next_s: float
    """When to say something again."""
    accepted: int
    rejected: int
    refused: str
    card: str


class Coordinator:
    """One run: its nodes, leases, files and verdicts. No other coordinator may use its database meanwhile."""

    def __init__(
        self,
        config: RunConfig,
        terms: Terms,
        key: Key,
        origin: str,
        database: Database,
        objects: Objects,
        ledger_writer: LedgerWriter,
        clock: Callable[[], float] = time.time,
        plants: Plants | None = None,
        architecture: Architecture | None = None,
        report: Callable[[Latencies], None] = lambda _latencies: None,
    ) -> None:
        """`report` hears how long each version's rollouts and verdicts took, once the next version is announced."""
        self.terms = terms
        self.key = key
        self.objects = objects
        self.clock = clock
        self._config = config
        self._architecture = architecture
        self._files = files_of(config.tasks)
        self._origin = origin
        self._database = database
        self.ledger_writer = ledger_writer
        self._plants = plants
        self._report = report
        self._seen: tuple[float, Overview] | None = None
        self._card: tuple[list[str], SignedCard] | None = None
        self._tables: dict[int, bytes] = {}
        self._workers = 0
        self._statements = Rates(STATEMENTS_PER_S, MAX_STATEMENTS)
        self._hand_backs = Rates(HAND_BACKS_PER_S, MAX_HAND_BACKS)
        self._rooms = Rates(ROOMS_PER_S, MAX_ROOMS)
        self._changed: set[asyncio.Event] = set()
        self._orphans = Orphans(objects, lambda names: self._do(lambda db: unnamed(db, names)))
        self._coming: Counter[tuple[int, int]] = Counter()
        self._settling: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.members: set[str] = set()
        """Nodes that have joined and are not banned."""
        self.nonces = database.ask(self._wake)
        self._turns = Turns(database.ask(opened_secret), Pace(config.patience_s), terms.seats, terms.quorum == 1)
        self.rates = database.ask(lambda db: rates_table.opened(db, config, key, architecture))
        """The run's honest rates, as they are served."""

    def _wake(self, db: Connection) -> Nonces:
        """Takes up where the last coordinator ended; the time between counts against nobody."""
        now = self.clock()
        alive = float(read_fact(db, "alive") or now)
        if now > alive:
            nodes.excuse(db, now - alive)
        write_fact(db, "alive", repr(now))
        self.members.update(
            db.execute(select(schema.nodes.c.address).where(schema.nodes.c.state != State.BANNED)).scalars()
        )
        used = db.execute(select(schema.nonces.c.node, schema.nonces.c.nonce, schema.nonces.c.time))
        return Nonces(used, float(read_fact(db, "horizon") or 0.0))

    # Requests of nodes

    async def join(
        self, signed: Signed, role: Role, name: str, url: str, network: str = "", profile: str = "", invite: str = ""
    ) -> None:
        now = self.clock()
        brought = self._checked(invite)
        if role == "worker" and (reason := self.rates.rates.refusal(profile, self.terms.profiles)):
            raise Refusal("not-allowed", f"{signed.node}: {reason}")
        is_full = signed.node not in self.members and len(self.members) >= self.terms.max_nodes
        if is_full and not self._rooms.take(network, time.monotonic()):
            raise Refusal(
                "full", f"run {self.terms.run}: is full, and network {network or 'here'} asks for room too often"
            )
        forgotten = await self._do(
            lambda db: nodes.join(db, self.terms, signed, role, name, url, now, network, profile, brought)
        )
        if forgotten is not None:
            self.members.discard(forgotten)
        self.members.add(signed.node)

    def _checked(self, text: str) -> Invite | None:
        """An invite whose signature is this coordinator's, for this run; None where there is no invite."""
        if not text:
            return None
        try:
            invite = Invite.parse(text)
        except SwarmError as error:
            raise Refusal("malformed", str(error)) from None
        if not invite.is_from(self.terms.run, self.key.address):
            raise Refusal(
                "not-allowed",
                f"invite {invite.id[:8]}: was not signed by the coordinator of run {self.terms.run} for it, or was "
                "changed; it may be one of another run",
            )
        return invite

    async def revoke_invite(self, signed: Signed, number: str) -> bool:
        """Makes an invite useless; the run's owner asks for it with the coordinator's own key."""
        self._must_own(signed)
        return await self._do(lambda db: invites.revoke(db, number, self.clock()))

    async def invites(self, signed: Signed) -> list[InviteRecord]:
        """Invites that were used or revoked."""
        self._must_own(signed)
        return await self._do(invites.on_record)

    def _must_own(self, signed: Signed) -> None:
        if signed.node != self.key.address:
            raise Refusal(
                "not-allowed", f"{signed.node}: only the run's owner, with the coordinator's key, may do this"
            )

    async def heartbeat(self, signed: Signed, doing: str, waits_on: str, version: int | None) -> Order:
        def work(db: Connection, node: Node, _now: float) -> Order:
            newest = leases.newest_version(db)
            if (doing, waits_on, version) != (node.doing, node.waits_on, node.version):
                db.execute(queries.SAID, {"who": node.address, "said": doing, "waits": waits_on, "has": version})
            card = self._card[1].signature[-16:] if self._card else ""
            news = newest, self.terms.heartbeat_s, node.accepted, node.rejected, node.refused, card
            if newest is not None and newest >= self.terms.steps:
                return Order("stop", "the run is complete", node.state, *news)
            if node.state == State.SUSPENDED:
                return Order("wait", node.reason, node.state, *news)
            return Order("work", draws.standing(node.accepted, node.rejected, node.owed), State.HEALTHY, *news)

        return await self._act(signed, work)

    async def lease(
        self, signed: Signed, version: int, holding: Collection[tuple[int, int]], network: str = ""
    ) -> tuple[SignedLease | NoLease, float]:
        """A lease or why there is none, and after how many seconds to ask again.

        `network` is where the node asks from (`rate_limit.neighbours_of`).
        """

        def work(db: Connection, node: Node, now: float) -> SignedLease | NoLease:
            may_hold = self._leases_of(node.address)
            return grant(db, self.terms, self.key, node, version, holding, may_hold, now, self._plants, network)

        granted = await self._act(signed, work)
        retry = retry_s(self._workers) if isinstance(granted, NoLease) else 0.0
        return granted, retry

    async def hand_back(self, signed: Signed) -> list[tuple[int, int]]:
        """Ends the leases that a node holds and cannot finish; says which."""
        # Bounded before the database is asked; a node without leases uses up nothing but its own quota.
        if not self._hand_backs.take(signed.node, time.monotonic()):
            raise Refusal(
                "too-often",
                f"{signed.node}: handed leases back more than {MAX_HAND_BACKS} times, and then once every "
                f"{1 / HAND_BACKS_PER_S:.0f} s; keep them, and finish or let them expire",
            )
        back = await self._act(signed, lambda db, node, now: draws.hand_back(db, node.address, now))
        self._tell_waiters()
        return back

    async def span(self, signed: Signed, step: int, submission: int, first: int, version: int) -> SpanLease:
        """What the answers of a node's lease go on with from a token on."""

        def work(db: Connection, node: Node, now: float) -> SpanLease:
            return spans.give(db, self.terms, self.key, node, step, submission, first, version, now)

        return await self._act(signed, work)

    def _leases_of(self, node: str) -> int:
        """How many leases the ledger lets a node hold: one that it does not know has no stake, and holds one."""
        standing = self.ledger_writer.standing(node)
        if standing is None or standing.status == "active":
            return standing.leases if standing else 1
        raise Refusal("suspended", f"{node}: is {standing.status} on the ledger, after {standing.offences} bad files")

    async def may_upload(self, signed: Signed, step: int, submission: int, sha256: str, signal: int) -> Ticket:
        def work(db: Connection, node: Node, now: float) -> Ticket:
            return leases.may_upload(db, node, step, submission, sha256, signal, now)

        return await self._act(signed, work)

    async def take_upload(
        self, signed: Signed, step: int, submission: int, sha256: str, size: int, signal: int, began: float
    ) -> bool:
        """Makes a file in the store the lease's one. The node was let in when it began."""

        def work(db: Connection) -> bool:
            node = nodes.known(db, signed.node)  # it may have been banned meanwhile
            return leases.take_upload(db, node, step, submission, sha256, size, signal, began, self.clock())

        taken = await self._do(work)
        self._tell_waiters()
        return taken

    @contextlib.contextmanager
    def receiving(self, step: int, submission: int) -> Iterator[None]:
        """A file on its way. A lease is good for one: who sends many at once fills the disk before any is looked at."""
        lease = (step, submission)
        if self._coming[lease] >= MAX_COMING:
            raise Refusal(
                "too-often", f"lease step {step} submission {submission}: {MAX_COMING} files are already being uploaded"
            )
        self._coming[lease] += 1
        try:
            yield
        finally:
            self._coming[lease] -= 1
            if not self._coming[lease]:
                del self._coming[lease]

    @contextlib.asynccontextmanager
    async def storing(self, step: int, submission: int, sha256: str) -> AsyncIterator[str]:
        """The name under which an upload is stored, which is its own until it is committed.

        Refused, as when a rival file of the same lease was faster, its bytes are removed if they are nobody's.
        """
        name = object_name(step, submission, sha256)
        try:
            async with self._orphans.holding(name, incoming_name(step, submission, sha256)):
                yield name
        except Refusal:
            await self._orphans.remove([name])
            raise

    async def direct_upload(
        self, signed: Signed, step: int, submission: int, sha256: str, size: int, signal: int
    ) -> tuple[str | None, bool]:
        """A URL at the object store for a file, or None if it is to come here; and whether it is here already."""
        ticket = await self.may_upload(signed, step, submission, sha256, signal)
        if size > self.terms.max_upload:
            raise Refusal("too-large", f"a file of {size} bytes, the run accepts at most {self.terms.max_upload}")
        if ticket.done or not self.objects.is_direct:
            return None, ticket.done
        name = incoming_name(step, submission, sha256)
        return await self.objects.leave_to_put(name, DIRECT_S), False

    async def direct_done(
        self, signed: Signed, step: int, submission: int, sha256: str, size: int, signal: int
    ) -> bool:
        """Takes a file that a node has sent to the object store itself."""
        began = self.clock()
        source = incoming_name(step, submission, sha256)
        # One after the other: what was taken is not written again by a second request that was let in before it.
        async with self._settling.setdefault(source, asyncio.Lock()):
            ticket = await self.may_upload(signed, step, submission, sha256, signal)
            if ticket.done:
                return False
            if not self.objects.is_direct:
                raise Refusal("unknown", f"run {self.terms.run}: accepts files directly; PUT them to /v1/files")
            async with self.storing(step, submission, sha256) as target:
                if (fault := await self.objects.settle(source, target, sha256, size)) is not None:
                    raise Refusal("body", f"submission {submission} of step {step}: the file {fault}")
                return await self.take_upload(signed, step, submission, sha256, size, signal, began)

    # Requests of the trainer and of validators

    async def announce(self, signed: Signed, number: int, root: str, table: Table | None) -> None:
        def work(db: Connection, node: Node, now: float) -> Latencies | None:
            nodes.must_train(self.terms, node.address)
            leases.must_be_newest(db, signed.time)
            tabled = None if table is None else SignedTable.sign(self.terms.run, number, root, table, self.key)
            is_new = leases.announce(db, self.terms, number, root, now, tabled)
            leases.note_newest(db, signed.time)
            return latencies(db, self.terms, number - 1) if is_new and number else None

        if (took := await self._act(signed, work)) is not None:
            self._report(took)
        self._tables = {}

    async def retract(self, signed: Signed, after: int) -> list[int]:
        def work(db: Connection, node: Node, _now: float) -> list[int]:
            nodes.must_train(self.terms, node.address)
            leases.must_be_newest(db, signed.time)
            gone = leases.retract(db, after)
            leases.note_newest(db, signed.time)
            return gone

        gone = await self._act(signed, work)
        self._tables = {}
        return gone

    async def loosen(self, signed: Signed, version: int, added: RatesFile) -> bool:
        """Adds honest rates to the run's table as its next version; False if they were added already.

        In the same transaction, what earlier rates said of nodes is forgotten: bans, debts and evidence.
        """

        def work(db: Connection, node: Node, now: float) -> tuple[SignedRates, bool, list[str]]:
            nodes.must_train(self.terms, node.address)
            run, model = self._config, self._architecture
            signed_rates, changed = rates_table.loosen(db, self.key, run, version, added, model)
            if not changed:
                return signed_rates, changed, []
            draws.acquit(db)
            verdicts.forget_evidence(db)
            return signed_rates, changed, nodes.readmit(db, self.terms, version, now)

        self.rates, changed, readmitted = await self._act(signed, work)
        self.members.update(readmitted)
        self._seen = None
        return changed

    async def filed(
        self,
        signed: Signed,
        first: int,
        last: int,
        accept: bool | None,
        beyond: int,
        wait_s: float,
        hand: int = 0,
    ) -> list[Filed]:
        """Files that wait for a verdict (None) or are accepted; waits a while for more than `beyond`.

        With a `hand`, at most so many that the validator who asks is to judge now.
        """

        def listed(db: Connection) -> list[Filed]:
            if hand and accept is None and signed.node in self.terms.validators:
                return verdicts.filed_for(db, self.terms, signed.node, first, last, self._turns, hand, self.clock())
            return verdicts.filed(db, self.terms, signed.node, first, last, accept)

        def work(db: Connection, node: Node, _now: float) -> list[Filed]:
            nodes.must_read(self.terms, node.address)
            return listed(db)

        with self._watch() as changed:
            found = await self._act(signed, work)
            deadline = time.monotonic() + wait_s
            while len(found) <= beyond and (left := deadline - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), left)
                    changed.clear()
                    found = await self._do(listed)
        return found

    async def file(self, signed: Signed, step: int, submission: int) -> tuple[AsyncIterator[bytes], int]:
        """An upload's bytes and how many they are."""

        name, size = await self._read(signed, lambda db: verdicts.place_of(db, step, submission))
        return await self.objects.get(name), size

    async def issued(self, signed: Signed, step: int, submission: int) -> SignedLease:
        """The lease that a submission was handed in under: what it is judged by."""
        return await self._read(signed, lambda db: leases.issued(db, self.terms, self.key, step, submission))

    async def judge(
        self, signed: Signed, step: int, submission: int, verdict: Verdict, note: JudgeNote | None = None
    ) -> bool:
        def work(db: Connection, node: Node, now: float) -> tuple[bool, float]:
            rates = self.rates.version
            entered = verdicts.judge(db, self.terms, node, step, submission, verdict, now, note, rates)
            return entered, verdicts.received(db, step, submission)

        entered, received = await self._act(signed, work)
        if signed.node in self.terms.validators:
            self._turns.judged(signed.node, (step, submission), received, self.clock())
        self._tell_waiters()
        return entered

    async def notes(self, signed: Signed, after: int) -> list[FiledNote]:
        """What the run's validators tell each other of files that they judged."""
        return await self._read(signed, lambda db: verdicts.notes_after(db, after))

    async def ban(self, signed: Signed, address: str, reason: str, rates: int | None = None) -> bool:
        """Whether the node is banned now, or a quorum of validators is yet to ask for it.

        What a validator says by honest rates that were loosened meanwhile holds nothing against a node any more.
        """

        def work(db: Connection, node: Node, now: float) -> bool:
            if rates is not None and rates < self.rates.version:
                nodes.must_judge(self.terms, node.address)
                return False
            return nodes.ban(db, self.terms, node.address, address, reason, now, rates)

        if banned := await self._act(signed, work):
            self.members.discard(address)
            self._seen = None
        return banned

    async def forget(self, signed: Signed, before: int) -> int:
        """Removes the files of old steps; where several validators decide, not before the ledger has settled them."""
        if self.terms.quorum > 1:
            before = min(before, await asyncio.to_thread(self.ledger_writer.first_unsettled))

        def work(db: Connection, node: Node, _now: float) -> list[str]:
            nodes.must_train(self.terms, node.address)
            return verdicts.forget(db, before)

        names = await self._act(signed, work)
        await self.objects.remove(names)
        return len(names)

    async def heard(self, signed: Signed) -> None:
        """Lets a request in that is about the ledger alone: of a node; of the owner of an account there, because one
        that
        is banned may take out what it had earned; or of the arbiter, who need not be a node."""
        if signed.node != self.ledger_writer.arbiter and self.ledger_writer.standing(signed.node) is None:
            await self._act(signed, lambda _db, _node, _now: None)

    async def take_statement(self, statement: Statement) -> bool:
        """Enters what its author signed on the ledger; False if it was there already.

        The author has joined, or has an account, and has a budget: every validator follows and checks what is entered,
        and keys cost nothing. The run's own roles have none to keep to: what they say grows with the work.
        """
        author = statement.author
        if author not in {*self.terms.validators, self.terms.trainer, self.ledger_writer.arbiter, self.key.address}:
            if (
                self.ledger_writer.standing(author) is None
                and await self._do(lambda db: nodes.find(db, author)) is None
            ):
                raise Refusal("not-joined", f"{author}: has not joined this run, and has no account on its ledger")
            statement.check()  # first, or anybody could use up another's budget
            if not self._statements.take(author, time.monotonic()):
                raise Refusal(
                    "too-often", f"{author}: more than {STATEMENTS_PER_S:g} statements per second for the ledger; wait"
                )
        return await asyncio.to_thread(self.ledger_writer.take, statement)

    # What anybody may know

    async def count(self, step: int) -> StepCount:
        return await self._do(lambda db: leases.count_of(db, self.terms, step, self.clock()))

    async def newest(self) -> int | None:
        return await self._do(leases.newest_version)

    async def table(self, number: int) -> bytes:
        """The signed table of weights that came with a version, as JSON: every node asks for it once per step."""
        known = self._tables  # which another one replaces when versions change
        if number not in known:
            known[number] = (await self._do(lambda db: leases.table_of(db, number))).encode()
        return known[number]

    async def explain(self, step: int, submission: int) -> Explanation:
        return await self._do(lambda db: verdicts.explain(db, step, submission))

    async def evidence_against(self, node: str) -> verdicts.Against | None:
        return await self._do(lambda db: verdicts.evidence_against(db, node))

    async def overview(self) -> Overview:
        """The state of the run, at most half a second old: looking at it costs the run little."""
        if self._seen is None or time.monotonic() - self._seen[0] > OVERVIEW_S:
            found = await self._do(lambda db: overview(db, self.terms, self.clock()))
            self._seen = (time.monotonic(), found)
        return self._seen[1]

    def task_file(self, sha256: str) -> Path:
        """A file that the run's tasks are made of."""
        if (path := self._files.get(sha256)) is None:
            raise Refusal("unknown", f"task file {sha256[:12]}...: the run's tasks name no file with that hash")
        return path

    async def card(self) -> SignedCard:
        """The run card, with the relays of the config and those that have joined; the key that one of these joined with
        vouches for its certificate."""
        query = select(schema.nodes.c.url, schema.nodes.c.address).where(
            schema.nodes.c.role == "relay",
            schema.nodes.c.url != "",
            schema.nodes.c.state.in_((State.JOINED, State.HEALTHY)),
        )
        found = await self._do(lambda db: list(db.execute(query.order_by(schema.nodes.c.joined))))
        joined = [vouched(url, address) for url, address in found]
        relays = list(dict.fromkeys([*self._config.swarm.relays, *joined]))[:MAX_RELAYS]
        if self._card is None or self._card[0] != relays:
            config = self._config.model_copy(update={"ledger": self.ledger_writer.config})
            card = Card(
                schema_version=SCHEMA,
                run=self.terms.run,
                coordinator=self.key.address,
                origin=self._origin,
                relays=tuple(relays),
                max_upload=self.terms.max_upload,
                heartbeat_s=self.terms.heartbeat_s,
                direct_uploads=self.objects.is_direct,
                packages=packages_of(self._config.tasks),
                config=public_tree(config),
            )
            self._card = (relays, sign_card(card, self.key))
        return self._card[1]

    # What time brings

    async def keep(self) -> None:
        """Sweeps until cancelled."""
        last = 0.0
        while True:
            try:
                await self._do(self.sweep)
                if time.monotonic() - last > FORGET_NONCES_S:
                    last = time.monotonic()
                    await self.forget_nonces()
                    await self.drop_rejected()
                await self.card()  # relays come and go
            except Exception as error:  # a database that is away comes back
                LOG.warning("coordinator: %s; trying again", error)
            await asyncio.sleep(SWEEP_S)

    async def tell(self) -> None:
        """Tells the ledger until cancelled. It may be on a chain that is slow or away: nothing else waits for it."""
        said = ""
        try:
            while True:
                try:
                    await asyncio.to_thread(self.ledger_writer.keep, self._database)
                    said = ""
                except Exception as error:  # nothing is struck out that was not entered
                    if str(error) != said:
                        said = str(error)
                        LOG.warning("coordinator: %s; trying again", error)
                await asyncio.sleep(SWEEP_S)
        finally:
            self.ledger_writer.stop()

    async def tidy(self) -> None:
        """Removes orphans from the object store now and then, until cancelled."""
        while True:
            await asyncio.sleep(TIDY_EVERY_S)
            try:
                if removed := await self._orphans.sweep(self.clock() - max(ORPHAN_S, 2 * self.terms.lease_s)):
                    LOG.info("coordinator: %d objects belonged to no submission and were removed", removed)
            except Exception as error:  # a store that is away comes back
                LOG.warning("coordinator: %s; trying again", error)

    def sweep(self, db: Connection) -> None:
        now = self.clock()
        nodes.sweep(db, now)
        write_fact(db, "alive", repr(now))
        workers = select(schema.nodes.c.address).where(
            schema.nodes.c.role == "worker", schema.nodes.c.state.in_((State.JOINED, State.HEALTHY))
        )
        self._workers = len(db.execute(workers).all())

    async def forget_nonces(self) -> None:
        horizon = self.nonces.forget(self.clock())

        def work(db: Connection) -> None:
            db.execute(schema.nonces.delete().where(schema.nonces.c.time <= horizon))
            write_fact(db, "horizon", repr(horizon))

        await self._do(work)

    async def drop_rejected(self) -> None:
        """Removes the bytes of rejected files that no challenge can be about any more, and those beyond the budget."""
        open_from = await asyncio.to_thread(self.ledger_writer.first_open)
        budget = self._config.keep.rejected_mib << 20
        names = await self._do(lambda db: retention.drop_rejected(db, self.terms.quorum, open_from, budget))
        # The rows say that they are gone already: a coordinator that is killed here leaves orphans.
        await self._orphans.remove(names)

    async def _act(self, signed: Signed, work: Callable[[Connection, Node, float], T]) -> T:
        now = self.clock()
        return await self._do(lambda db: work(db, nodes.enter(db, signed, now), now))

    async def _read(self, signed: Signed, work: Callable[[Connection], T]) -> T:
        """Something that trainer and validators may read, and the arbiter, who need not be a node."""

        def checked(db: Connection, node: Node, _now: float) -> T:
            nodes.must_read(self.terms, node.address)
            return work(db)

        return await (self._do(work) if signed.node == self.ledger_writer.arbiter else self._act(signed, checked))

    async def _do(self, work: Callable[[Connection], T]) -> T:
        future: Future[T] = self._database.do(work)
        # Once asked for it is done: who does not wait for the answer any more leaves nothing half done.
        return await asyncio.shield(asyncio.wrap_future(future))

    @contextlib.contextmanager
    def _watch(self) -> Iterator[asyncio.Event]:
        changed = asyncio.Event()
        self._changed.add(changed)
        try:
            yield changed
        finally:
            self._changed.discard(changed)

    def _tell_waiters(self) -> None:
        for changed in self._changed:
            changed.set()
