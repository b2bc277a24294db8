"""The simulation: puts the actors together, lets machines come and go, and runs until the last step is trained."""

import gc
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from shoal.coordinator.lease_rules import retry_s
from shoal.simulate.book import Book, File, NodeRow
from shoal.simulate.broadcast import CLASSES, Group, Origin
from shoal.simulate.engine import Flight
from shoal.simulate.events import Events
from shoal.simulate.inputs import Inputs
from shoal.simulate.log import Log, StepTimes, Totals, VersionTimes
from shoal.simulate.processor import Processor
from shoal.simulate.seekers import Seekers
from shoal.simulate.trainer import Trainer
from shoal.simulate.validators import Validators
from shoal.simulate.worker import Worker

# Newcomers of this many seconds fetch their first version as one.
COHORT_S = 60.0
# At most so many cohorts fetch at once; others wait and join the next.
MAX_COHORTS = 16
DAY_S = 86_400.0
# Simulated time after which a run that has not ended is given up.
LONGEST_S = 400 * DAY_S


class Simulation:
    """One run. `progress` hears how many steps are trained."""

    def __init__(self, inputs: Inputs, progress: Callable[[int, float], None] = lambda _step, _now: None) -> None:
        self.inputs, self._progress = inputs, progress
        self.events = events = Events()
        self.rng = Random(inputs.seed)
        self.processor = Processor(events, inputs.cores)
        self.log = Log()
        self.seekers = Seekers(events, self.rng, min(inputs.machines.count, CLASSES), lambda: self.count)
        self.book = Book(inputs.terms, events, self._freed, self._look_soon)
        self.validators = Validators(inputs, events, self.book, self.processor, self._accepted)
        self.trainer = Trainer(inputs, events, self.book, self.processor, self._begun, self._ended, self._trained)
        self.origin = Origin(events, inputs.services, inputs.training)
        self.log.versions[0] = VersionTimes(0.0)
        self.count = self.arriving = 0
        """Machines that may work, and newcomers that fetch their first version: together as many as there are."""
        self._uploads_free = 0.0
        self._numbers = 0
        self._newcomers: list[float] = []
        self._cohorts = 0
        self._is_counting = False
        self._refused: dict[int, Worker] = {}
        self._worked_s = 0.0
        self._make_classes()

    # ---- machines

    def _make_classes(self) -> None:
        """Machines sorted by their download rates, cut into classes; each class fetches the base model."""
        machines = self.inputs.machines
        rates = sorted(machines.download.draw(self.rng) for _ in range(machines.count))
        classes = min(machines.count, CLASSES)
        cuts = [round(at * machines.count / classes) for at in range(classes + 1)]
        self.classes: list[Group] = []
        self.members: list[list[Worker]] = [[] for _ in range(classes)]
        self._bounds = [rates[cut - 1] for cut in cuts[1:-1]]
        for index in range(classes):
            own = rates[cuts[index] : cuts[index + 1]]
            group = Group(self.origin, len(own), sum(own) / len(own), self.rng, self._here)
            group.index = index
            self.classes.append(group)
            for _ in own:
                self._join(group)

    def _join(self, group: Group) -> Worker:
        machines = self.inputs.machines
        self._numbers += 1
        row = NodeRow(self._numbers)
        worker = Worker(self, row, group, machines.speed.draw(self.rng), machines.upload.draw(self.rng))
        members = self.members[group.index]
        worker.number = len(members)
        members.append(worker)
        self.count += 1
        return worker

    def _leave(self) -> None:
        """One machine of all is drawn and leaves without a word, and another one begins to fetch its first version.
        One that is still fetching it stays: who would come instead of it would do the same."""
        at = self.rng.randrange(self.inputs.machines.count)
        for members in self.members:
            if at < len(members):
                self._remove(members, members[at])
                self._arrive()
                break
            at -= len(members)
        self._plan_leaving()

    def _arrive(self) -> None:
        """A new machine begins to fetch its first version, with those of the same minute."""
        self.arriving += 1
        self._newcomers.append(self.inputs.machines.download.draw(self.rng))
        if not self._is_counting:
            self._is_counting = True
            self.events.after(COHORT_S, self._fetch_as_one)

    def _remove(self, members: list[Worker], worker: Worker) -> None:
        last = members.pop()
        if last is not worker:
            members[worker.number] = last
            last.number = worker.number
        worker.group.weight -= 1
        self.count -= 1
        self.log.left += 1
        self.seekers.remove(worker)
        for flight in worker.pipeline.flights:
            self.log.tokens += flight.tokens / 2
            self.log.tokens_lost += flight.tokens / 2
        self._worked_s += worker.busy_s()
        worker.leave(self.rng.random() * self.inputs.terms.heartbeat_s)

    def _plan_leaving(self) -> None:
        rate = self.inputs.machines.churn * self.inputs.machines.count / 3600
        if rate:
            self.events.after(self.rng.expovariate(rate), self._leave)

    def _fetch_as_one(self) -> None:
        self._is_counting = False
        if not self._newcomers:
            return
        if self._cohorts >= MAX_COHORTS:
            self._is_counting = True
            self.events.after(COHORT_S, self._fetch_as_one)
            return
        rates, self._newcomers = self._newcomers, []
        self._cohorts += 1
        group = Group(self.origin, len(rates), sum(rates) / len(rates), self.rng, lambda _group, _version: admit())
        is_in = False

        def admit() -> None:
            nonlocal is_in
            if not is_in:  # what it would fetch next, its class fetches
                is_in = True
                group.weight = 0
                self._cohorts -= 1
                self._admit(rates)

        group.look()

    def _admit(self, rates: list[float]) -> None:
        """Newcomers that have their first version join the machines that are as fast; where those have none yet, they
        wait for it with them."""
        self.arriving -= len(rates)
        for rate in rates:
            group = self.classes[bisect_left(self._bounds, rate)]
            group.weight += 1
            self.log.joined += 1
            self._join(group).turn()
        self.seekers.wake()

    # ---- what happens

    def _here(self, group: Group, version: int) -> None:
        """A class has a version: those at work look whether their leases are over, the others ask for one."""
        self.log.arrived(version, group.index, [one.weight for one in self.classes], self.events.now)
        self.events.after(self.inputs.machines.load_s, self._look_again, group)

    def _look_again(self, group: Group) -> None:
        for worker in list(self.members[group.index]):
            if worker.place < 0 or worker.is_working:
                worker.turn()
        self.seekers.wake()

    def _freed(self) -> None:
        self.seekers.wake()
        self.trainer.look()

    def seeks(self, worker: Worker) -> None:
        self.seekers.add(worker)

    def waits(self, worker: Worker) -> None:
        """A worker was refused for what it has under way, or for what it has shown. It would ask again and again; until
        a verdict on a file of its own, a new version or the end of its suspension the answer is the same."""
        self._refused[worker.row.number] = worker

    def _look_soon(self, node: NodeRow) -> None:
        worker = self._refused.pop(node.number, None)
        if worker is not None:
            self.events.after(self.rng.random() * retry_s(self.count), worker.turn)

    def upload_s(self, size: float, rate: float) -> float:
        """Seconds of a file on its way through its machine's link and the coordinator's, which takes one after the
        other where they come too fast."""
        now, services = self.events.now, self.inputs.services
        self.log.uploaded += size
        self._uploads_free = max(now, self._uploads_free) + size / services.coordinator_rate
        return max(size / rate, self._uploads_free - now)

    def handed_in(self, file: File | None, flight: Flight) -> None:
        self.log.tokens += flight.tokens
        if file is None:
            self.log.tokens_lost += flight.tokens
            self.seekers.wake()
            return
        self.log.filed(flight.lease.version, self.events.now)
        if self.inputs.services.beside_s:
            self.processor.run(self.inputs.services.beside_s, _nothing)
        self.validators.add(file)

    def let_go(self, flight: Flight) -> None:
        done = 1 - flight.unfinished / len(flight.lengths)
        self.log.tokens += flight.tokens * done
        self.log.tokens_lost += flight.tokens * done

    def _accepted(self, file: File) -> None:
        lease, terms = file.lease, self.inputs.terms
        filling = file.signal if terms.online_filter else lease.groups
        self.log.accepted(lease.version, filling, terms.groups_per_step, self.events.now)
        if self.trainer.accepted(file):
            self.log.collected(lease.version, lease.step, filling)
        self._look_soon(lease.node)
        self.trainer.look()
        self.seekers.wake()

    def _begun(self, step: int) -> None:
        self.log.steps.setdefault(step, StepTimes()).began = self.events.now
        self.log.waiting_files.append(self.validators.waiting)

    def _ended(self, step: int) -> None:
        self.log.steps[step].ended = self.events.now
        self.log.totals.append(self.totals())

    def _trained(self, version: int) -> None:
        """A step is over, and its version is out."""
        now = self.events.now
        self._progress(version, now)
        self.log.versions[version] = VersionTimes(now)
        self.book.announce(version)
        self.origin.publish(version)
        for group in self.classes:
            group.look()
        for worker in self._refused.values():
            if not worker.is_gone:
                self.seekers.add(worker)
        self._refused.clear()
        self._freed()

    def run(self) -> float:
        """Runs to the last version, or until nothing more comes of it; the seconds that simulating took."""
        began = time.perf_counter()
        with _without_collector():
            for group in self.classes:
                group.look()
            self._plan_leaving()
            last = self.inputs.terms.steps
            self.events.run(lambda: self.book.newest >= last, LONGEST_S)
        return time.perf_counter() - began

    def totals(self) -> Totals:
        """What was done from the beginning to now."""
        log, book, validators, trainer, links = self.log, self.book, self.validators, self.trainer, self.origin.links
        for link in links:
            link.pass_time()
        return Totals(
            at=self.events.now,
            trained_s=trainer.busy_s,
            worked_s=self._worked_s + sum(worker.busy_s() for members in self.members for worker in members),
            judged_s=validators.busy_s(),
            relayed_s=sum(link.busy_s for link in links),
            relayed=sum(link.sent for link in links),
            uploaded=log.uploaded,
            requests=book.requests,
            granted=book.granted,
            expired=book.expired,
            verdicts=len(validators.waited_s),
            tokens=log.tokens,
            tokens_lost=log.tokens_lost + validators.dropped_tokens + trainer.unused_tokens,
        )


def _nothing() -> None:
    """What follows from work that nobody waits for."""


@contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of live objects make each full collection take seconds, and hardly any of them are in cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
