"""What every generating role does: follows versions, loads them into its engine, says what it did and waits for."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.config import RunConfig
from shoal.errors import ModelError, WeightsError
from shoal.generate.submission_builder import Maker
from shoal.protocol.lease import Lease
from shoal.protocol.stores import LeaseStore, Version, WeightSource, newest_of
from shoal.protocol.submission import Submission
from shoal.telemetry.metrics import MetricsWriter
from shoal.telemetry.status import StatusFile

# A waiting worker looks for a new version this often, which costs nothing, and for a lease that went back to the pool
# less often, which is a request.
POLL_S = 0.02
LOOK_FOR_LEASES_S = 0.25


@dataclass(slots=True)
class WorkerBase:
    """One generating node. It knows the run through its two interfaces and nothing else."""

    name: str
    config: RunConfig
    channel: WeightSource
    store: LeaseStore
    maker: Maker
    status: StatusFile
    metrics: MetricsWriter
    loaded: Version | None

    def newest(self) -> Version:
        return newest_of(self.channel)

    def load(self, version: Version) -> bool:
        """Makes `version` the one in the engine; False if it vanished meanwhile, an error if it is damaged."""
        if version == self.loaded:
            return True
        self.status.working(f"loading version {version.number}")
        try:
            folder = self.channel.fetch(version)
            self.loaded = None  # an engine that cannot load a version may have half of it
            self.maker.engine.load(folder, f"version {version.number}")
        except (WeightsError, ModelError) as error:
            if self.channel.latest() == version:
                raise
            self.metrics.write("note", text=str(error))
            return False
        self.loaded = version
        return True

    def note(self, text: str) -> None:
        self.metrics.write("note", text=text)

    def note_again(self, lease: Lease) -> None:
        if lease.draw_of:
            self.note(f"{lease}: gives the draw of lease {lease.draw_of} again, which was let go")

    def report(self, submission: Submission, tokens_per_s: float) -> None:
        """Says what was handed in; `tokens_per_s` is the engine's while it was made."""
        lease = submission.lease
        rewards = [r.reward for r in submission.rollouts if r.reward is not None]
        solved = [r.task_reward for r in submission.rollouts if r.task_reward is not None]
        self.metrics.write(
            "submission",
            step=lease.step,
            version=submission.version,
            versions=[span.version for span in submission.spans],
            submission=lease.submission,
            samples=len(submission.rollouts),
            tokens=sum(r.drawn_count for r in submission.rollouts),
            tokens_per_s=tokens_per_s,
            reward=sum(rewards) / len(rewards) if rewards else None,
            solve_rate=sum(r >= 1.0 for r in solved) / len(solved) if solved else None,
            scorer_errors=len(submission.rollouts) - len(rewards),
            **self.status.shares(),
        )


def not_here(version: int) -> str:
    return f"version {version}, which it names, is not available; its draw is given again"


def places(leases: Iterable[Lease]) -> str:
    """Leases in a few words."""
    first, *others = leases
    more = f" and {len(others)} more" if others else ""
    return f"step {first.step} submission {first.submission}{more}"


def now() -> float:
    return time.monotonic()
