"""Work that takes time: on a machine of its own, or on cores that all roles of a machine share."""

from collections.abc import Callable
from math import inf

from shoal.simulate.events import Events


class Job:
    """Work under way. `worked` is how much of it is done, in seconds at full speed."""

    __slots__ = ("_since", "call", "is_over", "left", "processor", "share", "work")

    def __init__(self, processor: "Processor", work: float, call: Callable[[], None]) -> None:
        self.processor, self.work, self.left, self.call = processor, work, work, call
        self.share, self._since, self.is_over = 1.0, processor.events.now, False

    def pass_time(self) -> None:
        now = self.processor.events.now
        self.left -= (now - self._since) * self.share
        self._since = now

    @property
    def worked(self) -> float:
        return self.work - self.left + (self.processor.events.now - self._since) * self.share

    def cancel(self) -> float:
        """Ends it where it is; how much of it was done."""
        done = min(self.work, self.worked)
        self.processor.end(self)
        return done


class Processor:
    """Cores that jobs share evenly. While there is a core for each, all run at full speed."""

    __slots__ = ("_alarm", "_jobs", "cores", "events")

    def __init__(self, events: Events, cores: float = inf) -> None:
        self.events, self.cores = events, cores
        self._jobs: list[Job] = []
        self._alarm = 0

    def run(self, work: float, call: Callable[[], None]) -> Job:
        """Begins work; `call` is called when it is done, unless it was cancelled."""
        job = Job(self, max(0.0, work), call)
        if self.cores == inf:
            self.events.after(job.work, self._alone, job)
        else:
            self._jobs.append(job)
            self._share()
        return job

    def end(self, job: Job) -> None:
        job.is_over = True
        if self.cores != inf:
            self._jobs.remove(job)
            self._share()

    def _alone(self, job: Job) -> None:
        if not job.is_over:
            job.is_over = True
            job.call()

    def _share(self) -> None:
        """Deals the cores again; the job that is done first is looked at then."""
        self._alarm += 1
        share = min(1.0, self.cores / max(1, len(self._jobs)))
        for job in self._jobs:
            job.pass_time()
            job.share = share
        if self._jobs:
            first = min(self._jobs, key=lambda job: job.left)
            self.events.after(max(0.0, first.left) / share, self._done, first, self._alarm)

    def _done(self, job: Job, alarm: int) -> None:
        if alarm == self._alarm:
            self.end(job)
            job.call()
