"""A simulated worker. What it does next is decided by `generate.pipeline`, as on a real one."""

from random import Random
from typing import Protocol

from shoal.generate.pipeline import Pipeline, can_be_met
from shoal.protocol.stores import Version
from shoal.simulate.book import OWN, Book, File, NodeRow
from shoal.simulate.broadcast import Group
from shoal.simulate.engine import Engine, Flight
from shoal.simulate.events import Events
from shoal.simulate.inputs import Inputs
from shoal.simulate.processor import Job, Processor


class Surroundings(Protocol):
    """What a worker finds around it."""

    inputs: Inputs
    events: Events
    book: Book
    rng: Random
    processor: Processor

    def seeks(self, worker: "Worker") -> None: ...

    def waits(self, worker: "Worker") -> None: ...

    def upload_s(self, size: float, rate: float) -> float: ...

    def handed_in(self, file: File | None, flight: Flight) -> None: ...

    def let_go(self, flight: Flight) -> None: ...


class Worker:
    """One machine that generates."""

    __slots__ = (
        "_answers",
        "_began",
        "_busy_s",
        "_engine",
        "_free_since",
        "_is_asking",
        "_is_loading",
        "_job",
        "_lease_s",
        "_loaded",
        "_sending",
        "_sent",
        "_tokens",
        "around",
        "group",
        "is_gone",
        "number",
        "pipeline",
        "place",
        "row",
        "speed",
        "upload",
    )

    def __init__(self, around: Surroundings, row: NodeRow, group: Group, speed: float, upload: float) -> None:
        inputs = around.inputs
        self.around, self.row, self.group, self.speed, self.upload = around, row, group, speed, upload
        self.pipeline: Pipeline[Flight] = Pipeline(inputs.machines.places, inputs.terms.async_level, False)
        self.is_gone = False
        self.number = self.place = -1
        self._engine: Engine | None = None
        self._job: Job | None = None
        self._loaded: Version | None = None
        self._is_asking = self._is_loading = False
        self._sending: list[Flight] = []
        self._sent = self._began = self._free_since = self._busy_s = self._lease_s = 0.0
        self._tokens, self._answers = 0.0, 0

    @property
    def newest(self) -> Version | None:
        """The newest version that is here."""
        return None if self.group.version is None else Version(self.group.version, "")

    @property
    def is_working(self) -> bool:
        return bool(self.pipeline.flights)

    def busy_s(self) -> float:
        """Seconds for which its engine had something to generate."""
        return self._busy_s + (self.around.events.now - self._began if self._job else 0.0)

    def turn(self) -> None:
        """Looks at what is here and does what follows from it: loads a version, asks for a lease, generates."""
        newest = self.newest
        if self.is_gone or self._is_loading or newest is None:
            return
        self._drop_old(newest)
        self.pipeline.notice(self._loaded, newest)
        if not self._load(newest):
            return
        self._submit()
        self._ask(newest)

    def _drop_old(self, newest: Version) -> None:
        """Lets go of leases whose files nobody would take any more."""
        for flight in [own for own in self.pipeline.flights if own.lease.step < newest.number]:
            self.pipeline.flights.remove(flight)
            self.around.let_go(flight)
            if flight.is_submitted and self._engine is not None:
                self._stop()
                self._engine.drop(flight)
                self._go_on()

    def _load(self, newest: Version) -> bool:
        """Loads the version that is due; False if that takes a while from now."""
        under_way = self._engine.unfinished if self._engine else 0
        version = self.pipeline.to_load(self._loaded, newest, under_way, self._is_asking)
        if version is None:
            return True
        since = max(self._free_since, self.group.arrived if version == newest else self.around.events.now)
        left = since + self.around.inputs.machines.load_s - self.around.events.now
        if left > 0:
            self._is_loading = True
            self.around.events.after(left, self._has_loaded, version)
            return False
        self._loaded = version
        return True

    def _has_loaded(self, version: Version) -> None:
        self._is_loading, self._loaded = False, version
        self.turn()

    def _ask(self, newest: Version) -> None:
        version = self.wants(newest)
        if version is not None and not self._is_asking:
            self._is_asking = True
            self.around.events.after(self.around.inputs.machines.request_s, self.ask, version)

    def wants(self, newest: Version) -> int | None:
        """The version to ask for a lease with now; None for no lease."""
        version = self.pipeline.ask_with(self._loaded, newest, bool(self._sending))
        if version is None or self.is_gone or self._is_loading:
            return None
        inputs = self.around.inputs
        in_time = can_be_met(
            self.pipeline.unfinished,
            self._tokens / self._answers if self._answers else 0.0,
            inputs.terms.groups_per_submission * inputs.group_size,
            self._tokens / self._busy_s if self._busy_s else 0.0,
            self._lease_s,
        )
        return version if in_time else None

    def ask(self, version: int) -> bool:
        """The coordinator's answer to a request for a lease; whether it was a lease."""
        self._is_asking = False
        if self.is_gone:
            return False
        holding = set(self.pipeline.holds())
        holding.update(flight.name for flight in self._sending)
        found = self.around.book.grant(self.row, version, holding)
        if isinstance(found, str):
            if found == OWN:
                self.around.waits(self)
            else:
                self.around.seeks(self)
            return False
        inputs, now = self.around.inputs, self.around.events.now
        self._lease_s = found.until - now
        self.pipeline.flights.append(Flight(found, inputs.lengths(found.groups, self.around.rng)))
        self.turn()
        return True

    def poll(self) -> bool:
        """Asks again, as one of many that wait for work; whether there was some."""
        newest = self.newest
        if newest is None or self._is_asking or self.is_gone:
            return False
        self.pipeline.notice(self._loaded, newest)
        if self._is_loading or not self._load(newest):
            return False
        version = self.wants(newest)
        return version is not None and self.ask(version)

    # ---- the engine

    def _submit(self) -> None:
        due = [flight for flight in self.pipeline.flights if flight.due(self._loaded)]
        if not due:
            return
        if self._engine is None:
            machines = self.around.inputs.machines
            self._engine = Engine(machines.places, machines.pass_s / self.speed, machines.answer_s / self.speed)
        self._stop()
        for flight in due:
            self._engine.submit(flight)
        self._go_on()

    def _stop(self) -> None:
        if self._job is not None and self._engine is not None:
            self._engine.advance(self._job.cancel())
            self._busy_s += self.around.events.now - self._began
            self._job = None

    def _go_on(self) -> None:
        if self._engine is not None and self._engine.unfinished:
            self._began = self.around.events.now
            self._job = self.around.processor.run(self._engine.work_ahead(), self._milestone)

    def _milestone(self) -> None:
        """Answers have ended: leases that are done go out, and there may be room for another."""
        job, engine, now = self._job, self._engine, self.around.events.now
        assert job is not None
        assert engine is not None
        self._busy_s += now - self._began
        self._job = None
        engine.finish(job.work)
        for flight in self.pipeline.take_finished():
            self._tokens += flight.tokens
            self._answers += len(flight.lengths)
            self._send(flight)
        self._go_on()
        if not engine.unfinished:
            self._free_since = now
        self.turn()

    # ---- files

    def _send(self, flight: Flight) -> None:
        """Scores a lease's answers and hands their file in, one file after the other."""
        inputs, events = self.around.inputs, self.around.events
        self._sending.append(flight)
        began = max(events.now, self._sent) + inputs.machines.score_s
        size = flight.tokens * inputs.file_token_bytes
        self._sent = began + self.around.upload_s(size, self.upload)
        events.after(self._sent + inputs.machines.request_s - events.now, self._handed_in, flight, began)

    def _handed_in(self, flight: Flight, began: float) -> None:
        if self.is_gone:
            self.around.handed_in(None, flight)
            return
        self._sending.remove(flight)
        rng, signal = self.around.rng, self.around.inputs.signal
        right = sum(rng.random() < signal for _ in range(flight.lease.groups))
        file = self.around.book.hand_in(flight.lease, right, flight.tokens, began)
        self.around.handed_in(file, flight)
        self.turn()

    def leave(self, heard_s: float) -> None:
        """Is gone from one moment to the next; it was last heard `heard_s` seconds ago."""
        self._stop()
        self.is_gone = True
        self.around.book.leave(self.row, heard_s)
