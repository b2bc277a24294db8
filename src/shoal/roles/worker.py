"""The worker: holds several leases at once, generates with the versions that they name, scores and sends beside it.

`generate/pipeline.py` decides; this is the shell around it. One loop moves the engine token by token and looks in
between for what came: a version, a lease, a file that was handed in. All else is done in threads (`roles/beside.py`).
"""

import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from math import inf

from shoal.client.weight_source import noting
from shoal.devices import CPU, set_up
from shoal.files import locked
from shoal.generate.environment_calls import EnvironmentCalls
from shoal.generate.flights import Flight
from shoal.generate.pipeline import FileTime, Pipeline, can_be_met, tools_can_meet
from shoal.generate.submission_builder import Asked, Maker
from shoal.protocol.stores import Version
from shoal.roles.beside import Beside, Refused
from shoal.roles.finish_signal import told_to_finish
from shoal.roles.session import JoinOptions, ignore_refused
from shoal.roles.turns import TurnWorker
from shoal.roles.worker_base import LOOK_FOR_LEASES_S, POLL_S, WorkerBase, not_here, now, places
from shoal.roles.worker_engine import engine_of, start_engine, worker_profile
from shoal.roles.worker_limits import check_model_fits, limit_gpu_memory, memory_bound
from shoal.rundir import TAKEOVER_S, RunDir, check_worker_name
from shoal.tasks.rewards.scorer import Scorer
from shoal.telemetry.waiting import Patience

Place = tuple[int, int]


@dataclass(slots=True)
class Meter:
    """What the engine has done: tokens of answers, and seconds in which it had some to generate."""

    tokens: int = 0
    answers: int = 0
    busy_s: float = 0.0

    def rate_since(self, before: "Began") -> float:
        return (self.tokens - before.tokens) / max(self.busy_s - before.busy_s, 1e-9)


@dataclass(frozen=True, slots=True)
class Began:
    """What there was when a lease began."""

    tokens: int
    busy_s: float
    """As the meter had them."""
    at: float
    open_answers: int
    """Of all leases, this one's included."""


@dataclass(slots=True)
class Worker(WorkerBase):
    """A worker with an honest maker."""

    pipeline: Pipeline[Flight] = field(init=False)
    beside: Beside = field(init=False)
    calls: EnvironmentCalls = field(init=False)
    """Episodes that wait for their environments, while the engine goes on with the others."""
    patience: Patience = field(init=False)
    meter: Meter = field(default_factory=Meter)
    asked: dict[Place, Asked] = field(default_factory=dict)
    """What each lease asks for."""
    began: dict[Place, Began] = field(default_factory=dict)
    pieces: dict[int, tuple[Flight, int]] = field(default_factory=dict)
    """Which answer of which lease the engine knows under a key."""
    next_key: int = 0
    lease_s: float = 0.0
    """What the last lease lasted."""
    last_file: FileTime | None = None
    refused: tuple[object, float] = ((), -inf)
    """What a lease was asked for with in vain, and when to do so again."""
    seen: Version | None = None
    """The newest version when it was last looked for."""
    look_at: float = -inf
    finish: threading.Event = field(default_factory=threading.Event)
    """Once set, the worker asks for no more leases, and ends when those under way are handed in."""

    def __post_init__(self) -> None:
        config = self.config
        self.pipeline = Pipeline(config.workers.max_batch, config.async_level, config.workers.in_flight)
        self.beside = Beside(self.name, self.store, self.maker)
        self.calls = EnvironmentCalls(self.maker.judge, on_news=self.beside.wake)
        self.patience = Patience(self.metrics, config.patience_s)

    def run(self) -> None:
        """Works until the last version is out, or until it is told to finish."""
        while self.turn():
            pass
        self.maker.engine.abort()
        self.status.done("its leases are done" if self.is_finished else "the run is complete")

    @property
    def is_finished(self) -> bool:
        """Whether it was told to finish, and nothing is under way any more."""
        busy = self.pipeline.flights or self.beside.sending or self.beside.is_asking
        return self.finish.is_set() and not busy

    def turn(self) -> bool:
        """Hears what came, and takes one step of the engine or waits a moment; False when there is no more to do."""
        newest = self._look()
        if newest.number >= self.config.steps:
            return False
        self._hear(newest)
        if self.is_finished:
            return False
        self._change_version(newest)
        self._ask(newest)
        if self._submit():
            self._generate()
            self.patience.progressed()
        else:
            self._wait(newest)
        return True

    def _look(self) -> Version:
        """The newest version, looked for now and then: the engine takes many steps meanwhile. When there is another
        one, leases are let go of whose files nobody would take any more."""
        if self.seen is not None and now() < self.look_at:
            return self.seen
        newest, self.look_at = self.newest(), now() + POLL_S
        if newest != self.seen:
            self.seen = newest
            for flight in [own for own in self.pipeline.flights if self._is_over(own, newest)]:
                why = "its step is over, or its version was taken back; its draw is given again"
                self._let_go(flight, f"{flight.lease}: {why}")
        return newest

    def _is_over(self, flight: Flight, newest: Version) -> bool:
        return flight.lease.step < newest.number or any(map(self._was_taken_back, flight.versions))

    def _was_taken_back(self, version: Version) -> bool:
        known = self.channel.version(version.number)  # None: it was, or is no longer kept here and loaded all the same
        return known != version if known is not None else self.channel.was_retracted(version)

    def _hear(self, newest: Version) -> None:
        """Takes what the threads have found."""
        for done in self.beside.sent():
            if isinstance(done, Refused):
                self.note(done.reason)
            else:
                self.report(done.submission, done.tokens_per_s)
        for flight, span in self.beside.spans():
            if not isinstance(span, Refused):
                flight.later.append(span)
            elif flight in self.pipeline.flights:
                self._let_go(flight, span.reason)
        self.meter.answers += self.calls.hear()
        self._send_finished()
        if self.beside.is_answered:
            found = self.beside.answer()
            if isinstance(found, Refused):
                self._pause(found.reason)
            elif found is None:
                self._pause("")
            else:
                self._take(found, newest)

    def _take(self, asked: Asked, newest: Version) -> None:
        """Begins a lease, whose answers wait for their version if another one is loaded."""
        lease = asked.lease
        version = self.channel.version(lease.version)
        if version is None:
            self._pause(f"{lease}: {not_here(lease.version)}")
            return
        if lease.step < newest.number:
            self._pause(f"{lease}: its step is over; its draw is given again")
            return
        self.note_again(lease)
        flight = self.maker.flight(asked, version)
        self.asked[flight.name] = asked
        self.lease_s = lease.deadline - time.time()
        self.pipeline.flights.append(flight)
        meter = self.meter
        self.began[flight.name] = Began(meter.tokens, meter.busy_s, now(), self.pipeline.unfinished)

    def _pause(self, text: str) -> None:
        """After a request that gave no work, waits before the next, unless it asks for something else."""
        if text:
            self.note(text)
        self.refused = (self.refused[0], now() + LOOK_FOR_LEASES_S)

    def _ask(self, newest: Version) -> None:
        version = self.pipeline.ask_with(self.loaded, newest, bool(self.beside.sending))
        if version is None or self.finish.is_set() or self.beside.is_asking or not self._in_time():
            return
        holding = self.pipeline.holds(self.beside.sending)
        question = (version, *holding)
        if question == self.refused[0] and now() < self.refused[1]:
            return
        self.refused = (question, -inf)
        self.beside.ask(version, holding)

    def _in_time(self) -> bool:
        """Whether one more lease would be done in time, by what the engine does and, where answers are episodes, by
        what whole files take with their tools."""
        meter, unfinished = self.meter, self.pipeline.unfinished
        answers = self.config.workers.groups_per_submission * self.config.sampling.group_size
        by_engine = can_be_met(
            unfinished,
            meter.tokens / meter.answers if meter.answers else 0.0,
            answers,
            meter.tokens / meter.busy_s if meter.busy_s else 0.0,
            self.lease_s,
        )
        if not by_engine or not self.config.has_environments:
            return by_engine
        return tools_can_meet(unfinished, answers, self.last_file, self.lease_s)

    def _change_version(self, newest: Version) -> None:
        """Asks what answers go on with that have come to the end of a span, and loads the version that is due."""
        pipeline = self.pipeline
        pipeline.notice(self.loaded, newest)
        for flight in pipeline.flights:
            if (first := flight.unleased()) is not None and not self.beside.is_asking_for(flight):
                self.beside.ask_span(flight, first, pipeline.span_version(flight, self.loaded, newest))
        version = pipeline.to_load(self.loaded, newest, self.maker.engine.running, self.beside.is_asking)
        if version is not None and not self.load(version):
            self.look_at = -inf  # it was taken back: another one is the newest by now
            for flight in [own for own in pipeline.flights if version in own.needs()]:
                self._let_go(flight, f"{flight.lease}: {not_here(version.number)}")

    def _submit(self) -> bool:
        """Asks the engine for the pieces that are due; whether it has something to do."""
        for flight in self.pipeline.flights:
            for number in flight.due(self.loaded):
                self.maker.engine.submit(self.next_key, flight.ask(number))
                self.pieces[self.next_key] = flight, number
                self.next_key += 1
        return self.maker.engine.running > 0

    def _generate(self) -> None:
        """One step of the engine, whose answers go to their leases."""
        if self.pipeline.flights and self.loaded is not None:
            leases = places(flight.lease for flight in self.pipeline.flights)
            self.status.working(f"{leases} with version {self.loaded.number}")
        began = now()
        for piece in self.maker.engine.step():
            self.meter.tokens += len(piece.tokens)
            if (found := self.pieces.pop(piece.key, None)) is not None:
                flight, number = found
                self.meter.answers += self.calls.add(flight, number, piece)
        self.meter.busy_s += now() - began
        self._send_finished()

    def _send_finished(self) -> None:
        for flight in self.pipeline.take_finished():
            began = self.began.pop(flight.name)
            self.last_file = FileTime(now() - began.at, began.open_answers)
            rate = self.meter.rate_since(began)
            self.beside.send(self.asked.pop(flight.name), flight, rate)

    def _let_go(self, flight: Flight, reason: str) -> None:
        """Stops work on a lease; the coordinator gives its draw again."""
        self._pause(reason)
        self.pipeline.flights.remove(flight)
        self.calls.forget(flight)
        for key in [key for key, (own, _) in self.pieces.items() if own is flight]:
            del self.pieces[key]
            self.maker.engine.drop(key)
        self.asked.pop(flight.name, None)
        self.began.pop(flight.name, None)

    def _wait(self, newest: Version) -> None:
        """Waits until there may be work: a new version, a lease that went back to the pool, room for another.

        For as long as that takes: a coordinator that does not answer any more is found by asking it for leases.
        """
        if self.calls:
            self.status.working(f"{len(self.calls)} episodes wait for their environments")
        elif self.pipeline.flights:
            self.status.waiting("the version of the next span", "coordinator", None)
        elif self.beside.sending:
            self.status.working(f"scoring and sending {places(self.beside.sending)}")
        elif not self.beside.is_asking:
            self.status.waiting(f"policy version {newest.number + 1}", "trainer", None)
            self.patience.waits(f"policy version {newest.number + 1} or a lease")
        self.beside.wait(POLL_S)


def start_worker(run: RunDir, name: str, options: JoinOptions, attack: str | None = None) -> None:
    """Runs one worker of a run in this process until the run is done; with an attack's name, one that cheats."""
    check_worker_name(name)
    config = run.config
    limits = options.limits
    device = set_up(config.device_of("workers"), config.workers.threads)
    limit_gpu_memory(device, limits.gpu_memory)
    which = engine_of(config, device) if attack is None else "torch"  # who cheats does it in our own engine
    bound = limits.memory if which == "torch" and device == CPU else None  # other engines compute elsewhere
    profile = options.profile or worker_profile(config, device).name
    taken = f"worker {name}: another process of that name is at work in {run.path}; give this one another --name"
    with (
        told_to_finish() as finish,
        locked(run.path / "locks" / name, taken, wait_s=TAKEOVER_S),
        run.role(name) as (status, metrics),
        options.session(run, "worker", name, status, metrics, profile) as session,
        memory_bound(bound),
    ):
        if finish.is_set():
            status.done("it was told to finish before it had begun")
            return
        channel = session.weights
        status.working("loading the newest version")
        if bound is not None:
            check_model_fits(run.first_version(channel)[1], config, bound)
        say = noting(metrics)
        first, policy, engine = start_engine(run, channel, device, say, which, limits.gpu_memory)
        with closing(engine), Scorer(config.tasks, turns=config.turns) as judge:
            store = session.open_store(None, ignore_refused)
            parts = (config, policy, engine, judge.tasks, judge, store.table, store.span)
            if attack is None:
                Worker(session.node, config, channel, store, Maker(*parts), status, metrics, first, finish=finish).run()
                return
            from shoal.attacks import attack_named

            TurnWorker(session.node, config, channel, store, attack_named(attack)(*parts), status, metrics, first).run()
